"""Parses requests of OpenAI Chat Completions. Pure."""

from typing import Any, Final

from evener.dialects.canonical import CanonicalRequest
from evener.dialects.fields import as_count, as_flag, as_list, as_model, as_object, as_string, malformed, read_field, read_fields, refuse
from evener.dialects.images import images_of
from evener.dialects.items import Items
from evener.dialects.offered import OfferedTool, as_function, record_dropped
from evener.dialects.openai_chat_messages import parse_message
from evener.dialects.rules import CONSTRAINED, LOGPROBS, NEW_TURN, Only, Rules, beside, chooses_none

MAX_CHOICES: Final = 128
HOSTED_TOOLS: Final = frozenset(
    {"web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation", "mcp", "url_context", "google_search"}
)
"""Tools that a provider would run itself. The model does not see them, which is the same as never using them."""
DISTRIBUTION: Final = "it would change the sampled distribution"
CONTINUED: Final = "an answer cannot continue a given one"
ENDS: Final = "an answer ends where the policy ends it"
RULES: Final = Rules(
    obeyed={
        "model": "the run's model map says who answers",
        "messages": "roles system, developer, user, assistant and tool; text, and images as data URLs. A `name` is recorded in `names`; "
        + NEW_TURN,
        "tools": "functions; hosted tools are removed, other kinds refused",
        "tool_choice": "`auto` and `none`; a forced or narrowed choice is refused: it is constrained sampling",
        "response_format": "`text`; any other is refused: it is constrained sampling",
        "modalities": "`text`; others are refused",
        "n": f"up to {MAX_CHOICES}",
        "stream": "both ways",
        "stream_options": "`include_usage`; anything else in it is recorded",
    },
    limits=("max_completion_tokens", "max_tokens"),
    bounds={"temperature": (0, 2), "top_p": (0, 1), "min_p": (0, 1), "frequency_penalty": (-2, 2), "presence_penalty": (-2, 2)},
    integers=frozenset({"seed", "top_k"}),
    recorded={
        "parallel_tool_calls": "`false` too: real harnesses send it. The policy calls as many tools at once as it likes",
        "reasoning_effort": "how the policy reasons is set by the run",
        "store": "everything is kept, and nothing served from there",
    },
    hosted=frozenset({"web_search_options"}),
    refused={
        "functions": "use tools",
        "function_call": "use tools and tool_choice",
        "audio": "audio is not served",
        "prediction": "predicted outputs are not served",
        "logprobs": LOGPROBS,
        "top_logprobs": LOGPROBS,
        "prompt_logprobs": LOGPROBS,
        "logit_bias": DISTRIBUTION,
        "logits_processors": DISTRIBUTION,
        "use_beam_search": DISTRIBUTION,
        "allowed_token_ids": DISTRIBUTION,
        "bad_words": DISTRIBUTION,
        "stop_token_ids": ENDS,
        "ignore_eos": ENDS,
        "include_stop_str_in_output": "an answer is shown without the token that ends it",
        "guided_json": CONSTRAINED,
        "guided_regex": CONSTRAINED,
        "guided_choice": CONSTRAINED,
        "guided_grammar": CONSTRAINED,
        "structured_outputs": CONSTRAINED,
        "structural_tag": CONSTRAINED,
        "continue_final_message": CONTINUED,
        "echo": "an answer does not repeat its prompt",
        "chat_template": "the policy's own template is used",
        "chat_template_kwargs": "the policy's own template is used, with the run's options",
        "truncate_prompt_tokens": "nothing is cut out of a history",
        "documents": "documents are not served; put them into a message",
    },
    only={
        "add_generation_prompt": Only(value=True, why=CONTINUED),
        "best_of": Only(1, "answers are not chosen among several; ask for n"),
    },
    stops="stop",
)
TOOL: Final = Rules(
    at="tools[].function",
    obeyed=dict.fromkeys(("name", "description", "parameters"), "shown to the policy as it is"),
    recorded={"strict": "arguments are not constrained while they are sampled; a client that validates them may find them wrong"},
)


def parse_request(dialect: str, body: bytes) -> CanonicalRequest:
    """Return the request in `body`. Raises RequestError naming the field."""
    raw = read_fields(body)
    items = _messages.of(raw.pop("messages", b"null"), "messages") or malformed("messages", "must not be empty")
    offered = _tools.of(raw.pop("tools", b"null"), "tools")
    fields = {name: value for name in raw if (value := read_field(raw, name)) is not None}
    requested_params = RULES.requested_params(fields)
    _check_forms(fields)
    include_usage = _include_usage(fields.get("stream_options", {}), requested_params)
    tools = [tool.function for tool in offered if tool.function is not None]
    record_dropped(requested_params, offered, RULES.removed(fields))
    if names := list(dict.fromkeys(item.name for item in items if item.name)):
        requested_params["names"] = names
    if chooses_none(fields.get("tool_choice", "auto")):
        requested_params["tool_choice"], tools = "none", []
    return CanonicalRequest(
        dialect=dialect,
        model=as_model(fields.get("model")),
        messages=tuple(item.message for item in items),
        digests=tuple(item.digest for item in items),
        tools=tuple(tools),
        stream=as_flag(fields.get("stream"), "stream"),
        include_usage=include_usage,
        n=as_count(fields.get("n", 1), "n", at_most=MAX_CHOICES),
        max_tokens=RULES.limit(fields),
        requested_params=requested_params,
        images=images_of((item.images for item in items), "messages"),
    )


def _check_forms(fields: dict[str, Any]) -> None:
    """Refuse forms of an answer other than text."""
    if any(kind != "text" for kind in as_list(fields.get("modalities", []), "modalities")):
        refuse("modalities", "only text is served")
    form = as_object(fields.get("response_format", {}), "response_format")
    if form.get("type", "text") != "text":
        refuse("response_format", f"{form['type']!r} is not served: its sampling is constrained; ask for it in the prompt")


def _tool(value: Any, path: str) -> OfferedTool:
    """Parse an entry of `tools`."""
    tool = as_object(value, path)
    kind = as_string(tool.get("type"), f"{path}.type")
    if kind == "function":
        function = as_object(tool.get("function"), f"{path}.function")
        more = beside(tool, ("type", "function")) | beside(function, TOOL.obeyed)
        return OfferedTool(function=as_function(function, f"{path}.function"), beside=more)
    if kind not in HOSTED_TOOLS:
        refuse(f"{path}.type", f"{kind!r} tools are not served, only functions")
    return OfferedTool(hosted=kind)


def _include_usage(value: Any, requested_params: dict[str, Any]) -> bool:
    options = as_object(value, "stream_options")
    if more := {name: value for name, value in options.items() if value is not None and name != "include_usage"}:
        requested_params["stream_options"] = more
    return as_flag(options.get("include_usage"), "stream_options.include_usage")


_messages: Final = Items(parse_message)
_tools: Final = Items(_tool)
