"""Parsing of OpenAI Chat Completions requests. Pure."""

from typing import Any, Final

from evener.dialects.canonical import CanonicalRequest
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
from evener.dialects.openai_chat_messages import parse_message

MAX_CHOICES: Final = 128
MAX_STOPS: Final = 16
UNSUPPORTED: Final = {
    "functions": "use tools",
    "function_call": "use tools and tool_choice",
    "audio": "audio is not served",
    "prediction": "predicted outputs are not served",
    "web_search_options": "web search is not served",
    "logprobs": "log-probabilities are kept in the log, not sent to the harness",
    "top_logprobs": "log-probabilities are kept in the log, not sent to the harness",
    "logit_bias": "it would change the sampled distribution",
    "guided_json": "constrained sampling is not served",
    "guided_regex": "constrained sampling is not served",
    "guided_choice": "constrained sampling is not served",
    "guided_grammar": "constrained sampling is not served",
    "structured_outputs": "constrained sampling is not served",
    "continue_final_message": "an answer cannot continue a given one",
    "chat_template": "the policy's own template is used",
    "documents": "documents are not served; put them into a message",
}
"""Fields that would change what the answer means. Null and empty values ask for nothing."""
HOSTED_TOOLS: Final = frozenset(
    {"web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation", "mcp", "url_context", "google_search"}
)
"""Tools that a provider would run itself. The model is not shown them, which is the same as never using them."""
NUMBERS: Final = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
}
"""Wishes for sampling, with the bounds that providers set. The run's parameters hold, but a mistake of the harness is told."""
INTEGERS: Final = ("seed", "top_k")
READ: Final = frozenset(
    {"model", "messages", "tools", "tool_choice", "response_format", "n", "stream", "stream_options", "max_tokens"}
    | {"max_completion_tokens", "stop", "modalities", *UNSUPPORTED}
)
"""Every other field is a wish."""


def parse_request(dialect: str, body: bytes) -> CanonicalRequest:
    """Return the request in `body`. Raises RequestError naming the field."""
    raw = read_fields(body)
    items = _messages.of(raw.pop("messages", b"null"), "messages") or refuse("messages", "must not be empty")
    offered = _tools.of(raw.pop("tools", b"null"), "tools")
    fields = {name: value for name in raw if (value := read_field(raw, name)) is not None}
    _refuse_unsupported(fields)
    _check_sampling(fields)
    wishes = {key: value for key, value in fields.items() if key not in READ}
    tools, hosted = [tool for tool in offered if isinstance(tool, dict)], [kind for kind in offered if isinstance(kind, str)]
    if hosted:
        wishes["removed_tools"] = hosted
    if _chooses_none(fields.get("tool_choice", "auto")):
        wishes["tool_choice"], tools = "none", []
    return CanonicalRequest(
        dialect=dialect,
        model=as_name(fields.get("model"), "model"),
        messages=tuple(item.message for item in items),
        digests=tuple(item.digest for item in items),
        tools=tuple(tools),
        stream=as_flag(fields.get("stream"), "stream"),
        include_usage=_include_usage(fields.get("stream_options", {})),
        n=as_count(fields.get("n", 1), "n", at_most=MAX_CHOICES),
        max_tokens=_max_tokens(fields),
        wishes=wishes,
        stop=_stop(fields.get("stop", [])),
        images=tuple({image.digest: image for item in items for image in item.images}.values()),
    )


def _refuse_unsupported(fields: dict[str, Any]) -> None:
    for name, why in UNSUPPORTED.items():
        if fields.get(name):
            refuse(name, why)
    if any(kind != "text" for kind in as_list(fields.get("modalities", []), "modalities")):
        refuse("modalities", "only text is served")
    form = as_object(fields.get("response_format", {}), "response_format")
    if form.get("type", "text") != "text":
        refuse("response_format", f"{form['type']!r} is not served: its sampling is constrained; ask for it in the prompt")


def _check_sampling(fields: dict[str, Any]) -> None:
    for name, (least, most) in NUMBERS.items():
        if name in fields:
            as_number(fields[name], name, least=least, most=most)
    for name in INTEGERS:
        if name in fields:
            as_integer(fields[name], name)


def _tool(value: Any, path: str) -> dict[str, Any] | str:
    """Return the canonical tool, or the kind of a hosted one, which is left out."""
    tool = as_object(value, path)
    kind = as_string(tool.get("type"), f"{path}.type")
    if kind == "function":
        return _function(as_object(tool.get("function"), f"{path}.function"), f"{path}.function")
    if kind not in HOSTED_TOOLS:
        refuse(f"{path}.type", f"{kind!r} tools are not served, only functions")
    return kind


def _function(function: dict[str, Any], path: str) -> dict[str, Any]:
    tool: dict[str, Any] = {"name": as_name(function.get("name"), f"{path}.name")}
    if function.get("description") is not None:
        tool["description"] = as_string(function["description"], f"{path}.description")
    if function.get("parameters") is not None:
        tool["parameters"] = as_object(function["parameters"], f"{path}.parameters")
    return tool


def _chooses_none(value: Any) -> bool:
    """Tell whether the model is to see no tools. A forced choice is constrained sampling."""
    if value not in ("auto", "none"):
        refuse("tool_choice", "only 'auto' and 'none' are served: a forced call is constrained sampling")
    return bool(value == "none")


def _include_usage(value: Any) -> bool:
    return as_flag(as_object(value, "stream_options").get("include_usage"), "stream_options.include_usage")


def _max_tokens(fields: dict[str, Any]) -> int | None:
    """Return the limit; the newer name wins where both are given."""
    limits = [as_count(fields[name], name) for name in ("max_completion_tokens", "max_tokens") if name in fields]
    return limits[0] if limits else None


def _stop(value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else as_list(value, "stop")
    if len(texts) > MAX_STOPS:
        refuse("stop", f"at most {MAX_STOPS} strings")
    return tuple(as_name(text, f"stop[{index}]") for index, text in enumerate(texts))


_messages: Final = Items(parse_message)
_tools: Final = Items(_tool)
