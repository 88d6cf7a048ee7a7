"""The tools that a request offers, as several dialects spell them. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from evener.dialects.fields import as_name, as_object, as_string
from evener.tokens.digests import Message


class OfferedTool(Struct, frozen=True, kw_only=True, eq=False):
    """The parsed form of one entry of `tools`: a function, or a hosted tool."""

    function: Message | None = None
    hosted: str | None = None
    """The kind of a tool that the provider would run itself."""
    deferred: bool = False
    """Anthropic: whether the tool is hidden until a tool result refers to it."""
    beside: Mapping[str, Any] = {}
    """What was dropped from the function."""


def as_function(sent: Mapping[str, Any], path: str, *, schema: str = "parameters") -> Message:
    """Return the function that a definition declares, with the JSON Schema in its field `schema`, or refuse."""
    function: Message = {"name": as_name(sent.get("name"), f"{path}.name")}
    if sent.get("description") is not None:
        function["description"] = as_string(sent["description"], f"{path}.description")
    if sent.get(schema) is not None:
        function["parameters"] = as_object(sent[schema], f"{path}.{schema}")
    return function


def record_dropped(requested_params: dict[str, Any], tools: Sequence[OfferedTool], fields: Sequence[str]) -> None:
    """Record the hosted tools and the `fields` that were removed, and what was dropped from functions."""
    if removed := [*(tool.hosted for tool in tools if tool.hosted is not None), *fields]:
        requested_params["removed_tools"] = removed
    if besides := {tool.function["name"]: tool.beside for tool in tools if tool.function is not None and tool.beside}:
        requested_params["tools"] = besides
