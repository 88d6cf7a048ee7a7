"""Parses requests of Anthropic's Messages API. Pure."""

from collections.abc import Sequence
from typing import Any, Final

from evener.dialects.anthropic_messages_items import MessageItem, parse_item, parse_text
from evener.dialects.canonical import CanonicalRequest
from evener.dialects.fields import as_flag, as_items, as_list, as_model, as_object, as_string, malformed, read_field, read_fields, refuse
from evener.dialects.images import images_of
from evener.dialects.items import Items
from evener.dialects.offered import OfferedTool, as_function, record_dropped
from evener.dialects.rules import CONSTRAINED, Rules, beside
from evener.tokens.digests import Message, message_digest

HOSTED_TOOLS: Final = ("web_search_", "web_fetch_", "code_execution_", "tool_search_tool_", "mcp_toolset", "advisor_")
"""The first part of the types of tools that the provider runs itself, outside the sandbox. The model does not see them."""
TOOL_SEARCH: Final = "tool_search_tool_"
KEPT_EDITS: Final = "clear_thinking_"
"""The first part of the types of history edits that real harnesses request, and that keep the whole history."""
RULES: Final = Rules(
    obeyed={
        "model": "the run's model map says who answers",
        "messages": "roles user, assistant and system; text, thinking, base64 images, tools' calls and results. Refused where they end "
        "with an answer, unless they are only counted: it cannot be continued",
        "system": "text",
        "tools": "those with an `input_schema`; hosted tools are removed, and those of which only the type is given are refused",
        "tool_choice": "`auto` and `none`; a forced call is refused: it is constrained sampling. `disable_parallel_tool_use` is recorded: "
        "the policy calls as many tools at once as it likes",
        "stream": "both ways",
    },
    limits=("max_tokens",),
    bounds={"temperature": (0, 1), "top_p": (0, 1)},
    integers=frozenset({"top_k"}),
    recorded={
        "thinking": "how the policy reasons is set by the run. Without it, or `disabled`, no thinking is shown; the policy keeps it",
        "output_config": "`effort` and the like; a `format` is refused: it is constrained sampling",
        "context_management": f"`{KEPT_EDITS}*` edits: Claude Code sends one. Nothing is cut out of a history; other edits are refused",
        "metadata": "and everything else that is harmless",
    },
    hosted=frozenset({"mcp_servers", "container"}),
    refused={"output_format": CONSTRAINED},
    stops="stop_sequences",
)
TOOL: Final = Rules(
    at="tools[]",
    obeyed={
        **dict.fromkeys(("name", "description", "input_schema"), "shown to the policy as it is"),
        "type": "`custom`",
        "defer_loading": "shown once a `tool_reference` in a result names it",
        "allowed_callers": "with `direct` among them; others are refused: the model could not call it",
    },
    recorded={
        "strict": "arguments are not constrained while they are sampled; a client that validates them may find them wrong",
        "input_examples": "not shown to the policy",
    },
)


def parse_tool(value: Any, path: str) -> OfferedTool:
    """Parse a tool. Raises RequestError."""
    sent = as_object(value, path)
    kind = "custom" if sent.get("type") is None else as_string(sent["type"], f"{path}.type")
    if kind.startswith(HOSTED_TOOLS):
        return OfferedTool(hosted=kind)
    if kind != "custom":
        refuse(f"{path}.type", f"{kind!r} has a schema that only its provider's models know; declare it with its `input_schema`")
    function = as_function(sent, path, schema="input_schema")
    if sent.get("allowed_callers") and "direct" not in as_list(sent["allowed_callers"], f"{path}.allowed_callers"):
        refuse(f"{path}.allowed_callers", "only tools that the model itself may call are served; add 'direct'")
    deferred = as_flag(sent.get("defer_loading"), f"{path}.defer_loading")
    return OfferedTool(function=function, deferred=deferred, beside=beside(sent, TOOL.obeyed))


_messages: Final = Items(parse_item)
_tools: Final = Items(parse_tool)


def parse_request(dialect: str, body: bytes, *, count_only: bool) -> CanonicalRequest:
    """Return the request in `body`. Raises RequestError naming the field."""
    raw = {name: value for name, value in read_fields(body).items() if bytes(value) != b"null"}
    items = _messages.of(raw.pop("messages", b"[]"), "messages") or malformed("messages", "must not be empty")
    tools = _tools.of(raw.pop("tools", b"[]"), "tools")
    fields = {name: read_field(raw, name) for name in raw}
    system = _system(fields.get("system"))
    messages = system + [message for item in items for message in item.messages]
    digests = [message_digest(message) for message in system] + [digest for item in items for digest in item.digests]
    if messages[-1]["role"] == "assistant" and not count_only:
        refuse("messages", "must not end with an answer: it cannot be continued")
    requested_params = RULES.requested_params(fields, count_only=count_only)
    _check_meaning(fields)
    record_dropped(requested_params, tools, RULES.removed(fields))
    shown = [] if _chooses_none(fields.get("tool_choice"), requested_params) else _shown(tools, items, requested_params)
    return CanonicalRequest(
        dialect=dialect,
        model=as_model(fields.get("model")),
        messages=tuple(messages),
        digests=tuple(digests),
        tools=tuple(shown),
        stream=as_flag(fields.get("stream"), "stream") and not count_only,
        reasoning_withheld=not _thinks(fields.get("thinking")),
        count_only=count_only,
        max_tokens=RULES.limit(fields),
        requested_params=requested_params,
        images=images_of((item.images for item in items), "messages"),
    )


def _system(value: Any) -> list[Message]:
    """Return the system prompt as one message. Its first line is then Claude Code's billing header, which is cut there as noise."""
    text = parse_text(value, "system") if value is not None else ""
    return [{"role": "system", "content": text}] if text else []


def _check_meaning(fields: dict[str, Any]) -> None:
    """Refuse constrained sampling, and edits that would remove something from the history."""
    if as_object(fields.get("output_config", {}), "output_config").get("format"):
        refuse("output_config.format", CONSTRAINED)
    edits = as_object(fields.get("context_management", {}), "context_management").get("edits") or []
    for edit, at in as_items(edits, "context_management.edits"):
        kind = as_string(as_object(edit, at).get("type"), f"{at}.type")
        if not kind.startswith(KEPT_EDITS):
            refuse(f"{at}.type", f"{kind!r} is not served: nothing is cut out of a history; send what the model is to see")


def _thinks(value: Any) -> bool:
    """Return whether thinking is requested, by any type."""
    return value is not None and as_string(as_object(value, "thinking").get("type"), "thinking.type") != "disabled"


def _chooses_none(value: Any, requested_params: dict[str, Any]) -> bool:
    """Return whether the model is to see no tools. A forced choice is refused: it is constrained sampling."""
    if value is None:
        return False
    choice = as_object(value, "tool_choice")
    kind = as_string(choice.get("type"), "tool_choice.type")
    if kind not in {"auto", "none"}:
        refuse("tool_choice.type", "only 'auto' and 'none' are served: a forced call is constrained sampling")
    if choice != {"type": "auto"}:
        requested_params["tool_choice"] = choice
    return kind == "none"


def _shown(tools: Sequence[OfferedTool], items: Sequence[MessageItem], requested_params: dict[str, Any]) -> list[Message]:
    """Return the functions that the model sees. Deferred tools that nobody could find are shown if the search for them was hosted."""
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
        requested_params["deferred_tools"] = hidden
    return shown
