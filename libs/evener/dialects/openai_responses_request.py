"""Parses requests of OpenAI Responses. Pure."""

from typing import Any, Final

from evener.dialects.canonical import CanonicalRequest
from evener.dialects.fields import as_flag, as_list, as_model, as_object, as_string, malformed, read_field, read_fields, read_raw, refuse
from evener.dialects.images import images_of
from evener.dialects.items import Items
from evener.dialects.openai_responses_items import ItemPart, assembled, check_format, parse_item, whole
from evener.dialects.openai_responses_tools import Toolset, forms_of, joined, parse_tool
from evener.dialects.rules import LOGPROBS, NEW_TURN, Only, Rules, chooses_none

LOGPROBS_VALUE: Final = "message.output_text.logprobs"
CUT: Final = "nothing is cut out of a history; send what the model is to see"
RULES: Final = Rules(
    obeyed={
        "model": "the run's model map says who answers",
        "input": "a text, or items: messages, reasoning, calls of functions, custom tools and tool searches, and their results. Items that "
        f"are only named are refused; {NEW_TURN}",
        "instructions": "a system message before all others",
        "tools": "functions, custom tools, namespaces of them, the client's own tool search; hosted tools are removed, others refused",
        "tool_choice": "`auto` and `none`; a forced or narrowed choice is refused: it is constrained sampling",
        "stream": "both ways",
    },
    limits=("max_output_tokens",),
    bounds={"temperature": (0, 2), "top_p": (0, 1)},
    recorded={
        "parallel_tool_calls": "`false` too: real harnesses send it. The policy calls as many tools at once as it likes",
        "reasoning": "how the policy reasons is set by the run",
        "store": "everything is kept, and nothing served from there",
        "text": "`verbosity` and the like; any `format` but `text` is refused: it is constrained sampling",
        "include": f"everything available is sent in any case; `{LOGPROBS_VALUE}` is refused",
    },
    refused={
        "previous_response_id": "answers are not stored; send the whole input",
        "conversation": "conversations are not stored; send the whole input",
        "background": "answers come over the open connection only",
        "prompt": "stored prompts are not served; send instructions and input",
        "context_management": CUT,
        "top_logprobs": LOGPROBS,
    },
    only={"truncation": Only("disabled", CUT)},
    stops="stop",
)


class ResponsesParser:
    """Parses requests and caches input items and tools, which a growing history repeats."""

    def __init__(self) -> None:
        self._items: Items[ItemPart] = Items(parse_item)
        self._tools: Items[Toolset] = Items(parse_tool)

    def parse(self, dialect: str, body: bytes, *, count_only: bool) -> CanonicalRequest:
        """Return the request in `body`. Raises RequestError naming the field."""
        raw = read_fields(body)
        pieces = self._pieces(bytes(raw.pop("input", b"null")))
        offered = self._tools.of(raw.pop("tools", b"null"), "tools")
        fields = {name: value for name in raw if (value := read_field(raw, name)) is not None}
        requested_params = RULES.requested_params(fields, count_only=count_only)
        _check_forms(fields)
        said, opening = assembled((*_instructions(fields), *pieces))
        shown = joined((*offered, *opening))
        known = joined((shown, *(piece.tools for piece in pieces)))
        if known.removed:
            requested_params["removed_tools"] = list(dict.fromkeys(known.removed))
        if known.beside:
            requested_params["tools"] = known.beside
        if no_tools := chooses_none(fields.get("tool_choice", "auto")):
            requested_params["tool_choice"] = "none"
        return CanonicalRequest(
            dialect=dialect,
            model=as_model(fields.get("model")),
            messages=tuple(message for message, _ in said),
            digests=tuple(digest for _, digest in said),
            tools=() if no_tools else tuple(tool.shown for tool in shown.tools),
            forms=forms_of(known.tools),
            stream=as_flag(fields.get("stream"), "stream") and not count_only,
            count_only=count_only,
            max_tokens=RULES.limit(fields),
            requested_params=requested_params,
            images=images_of((piece.images for piece in pieces), "input"),
        )

    def _pieces(self, raw: bytes) -> list[ItemPart]:
        if raw.lstrip().startswith(b'"'):
            return [whole("user", as_string(read_raw(raw, "input"), "input"))]
        return self._items.of(raw, "input") or malformed("input", "must not be empty")


def _instructions(fields: dict[str, Any]) -> tuple[ItemPart, ...]:
    text = as_string(fields.get("instructions", ""), "instructions")
    return (whole("system", text),) if text else ()


def _check_forms(fields: dict[str, Any]) -> None:
    """Refuse forms of an answer other than text."""
    if LOGPROBS_VALUE in as_list(fields.get("include", []), "include"):
        refuse("include", LOGPROBS)
    check_format(as_object(fields.get("text", {}), "text").get("format"), "text.format")
