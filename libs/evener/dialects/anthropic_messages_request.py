"""Parsing of requests of Anthropic's Messages API. Pure."""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from evener.dialects.anthropic_messages_items import Item, parse_item, parse_text
from evener.dialects.canonical import CanonicalRequest, Image, Message
from evener.dialects.fields import (
    as_count,
    as_flag,
    as_integer,
    as_list,
    as_name,
    as_number,
    as_object,
    as_string,
    read_field,
    read_fields,
    refuse,
)
from evener.dialects.items import Items
from evener.tokens.digests import message_digest

MAX_STOPS: Final = 16
HOSTED_TOOLS: Final = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset", "advisor_")
"""How the types of tools begin that the provider runs itself, outside the sandbox. The model is not shown them."""
TOOL_SEARCH: Final = "tool_search_tool_"
NUMBERS: Final = {"temperature": (0, 1), "top_p": (0, 1)}
INTEGERS: Final = ("top_k",)
READ: Final = frozenset({"model", "messages", "system", "tools", "tool_choice", "stream", "max_tokens", "stop_sequences", "mcp_servers"})
"""Every other field is a wish: `thinking`, `context_management`, `metadata`, `output_config`, `betas` and what is new."""


class Tool(Struct, frozen=True, kw_only=True, eq=False):
    """What one entry of `tools` is."""

    function: Message | None = None
    hosted: str | None = None
    """Its type, where the provider would run it."""
    deferred: bool = False
    """Not shown before a result of a tool refers to it."""


def parse_tool(value: Any, path: str) -> Tool:
    """Return what a tool is. Raises RequestError."""
    sent = as_object(value, path)
    kind = "custom" if sent.get("type") is None else as_string(sent["type"], f"{path}.type")
    if kind.startswith(HOSTED_TOOLS):
        return Tool(hosted=kind)
    if kind != "custom":
        refuse(f"{path}.type", f"{kind!r} has a schema that only its provider's models know; declare it with its `input_schema`")
    function: Message = {"name": as_name(sent.get("name"), f"{path}.name")}
    if sent.get("description") is not None:
        function["description"] = as_string(sent["description"], f"{path}.description")
    if sent.get("input_schema") is not None:
        function["parameters"] = as_object(sent["input_schema"], f"{path}.input_schema")
    return Tool(function=function, deferred=as_flag(sent.get("defer_loading"), f"{path}.defer_loading"))


_messages: Final = Items(parse_item)
_tools: Final = Items(parse_tool)


def parse_request(dialect: str, body: bytes, *, count_only: bool) -> CanonicalRequest:
    """Return the request in `body`. Raises RequestError naming the field."""
    raw = {name: value for name, value in read_fields(body).items() if bytes(value) != b"null"}
    items = _messages.of(raw.pop("messages", b"[]"), "messages") or refuse("messages", "must not be empty")
    tools = _tools.of(raw.pop("tools", b"[]"), "tools")
    fields = {name: read_field(raw, name) for name in raw}
    system = _system(fields.get("system"))
    messages = system + [message for item in items for message in item.messages]
    digests = [message_digest(message) for message in system] + [digest for item in items for digest in item.digests]
    if messages[-1]["role"] == "assistant" and not count_only:
        refuse("messages", "must not end with an answer: it cannot be continued")
    _check_meaning(fields)
    wishes = {name: value for name, value in fields.items() if name not in READ}
    removed = [tool.hosted for tool in tools if tool.hosted] + (["mcp_servers"] if fields.get("mcp_servers") else [])
    if removed:
        wishes["removed_tools"] = removed
    shown = [] if _chooses_none(fields.get("tool_choice"), wishes) else _shown(tools, items, wishes)
    return CanonicalRequest(
        dialect=dialect,
        model=as_name(fields.get("model"), "model"),
        messages=tuple(messages),
        digests=tuple(digests),
        tools=tuple(shown),
        stream=as_flag(fields.get("stream"), "stream") and not count_only,
        count_only=count_only,
        max_tokens=as_count(fields["max_tokens"], "max_tokens") if "max_tokens" in fields else None,
        wishes=wishes,
        stop=_stop(fields.get("stop_sequences", [])),
        images=_images(items),
    )


def _system(value: Any) -> list[Message]:
    """Return the system prompt as one message. Claude Code's billing header is its first line then, where its noise is cut."""
    text = parse_text(value, "system") if value is not None else ""
    return [{"role": "system", "content": text}] if text else []


def _check_meaning(fields: dict[str, Any]) -> None:
    """Refuse constrained sampling and mistakes in wishes."""
    config = as_object(fields.get("output_config", {}), "output_config")
    for name, value in (("output_config.format", config.get("format")), ("output_format", fields.get("output_format"))):
        if value:
            refuse(name, "constrained sampling is not served; ask for the format in the prompt")
    for name, (least, most) in NUMBERS.items():
        if name in fields:
            as_number(fields[name], name, least=least, most=most)
    for name in INTEGERS:
        if name in fields:
            as_integer(fields[name], name)


def _chooses_none(value: Any, wishes: dict[str, Any]) -> bool:
    """Tell whether the model is to see no tools. A forced choice is constrained sampling."""
    if value is None:
        return False
    choice = as_object(value, "tool_choice")
    kind = as_string(choice.get("type"), "tool_choice.type")
    if kind not in {"auto", "none"}:
        refuse("tool_choice.type", "only 'auto' and 'none' are served: a forced call is constrained sampling")
    if choice != {"type": "auto"}:
        wishes["tool_choice"] = choice
    return kind == "none"


def _shown(tools: Sequence[Tool], items: Sequence[Item], wishes: dict[str, Any]) -> list[Message]:
    """Return the functions that the model sees. Deferred ones nobody could find are shown where the search for them was hosted."""
    found = frozenset[str]().union(*(item.references for item in items))
    searched = any(tool.hosted and tool.hosted.startswith(TOOL_SEARCH) for tool in tools)
    shown: list[Message] = []
    hidden: list[str] = []
    for tool in tools:
        if tool.function is None:
            continue
        if tool.deferred and not searched and tool.function["name"] not in found:
            hidden.append(tool.function["name"])
        else:
            shown.append(tool.function)
    if hidden:
        wishes["deferred_tools"] = hidden
    return shown


def _stop(value: Any) -> tuple[str, ...]:
    texts = as_list(value, "stop_sequences")
    if len(texts) > MAX_STOPS:
        refuse("stop_sequences", f"at most {MAX_STOPS} strings")
    return tuple(as_name(text, f"stop_sequences[{index}]") for index, text in enumerate(texts))


def _images(items: Sequence[Item]) -> tuple[Image, ...]:
    return tuple({image.digest: image for item in items for image in item.images}.values())
