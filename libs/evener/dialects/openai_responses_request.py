"""Parsing of OpenAI Responses requests. Pure."""

from typing import Any, Final

from evener.dialects.canonical import CanonicalRequest
from evener.dialects.fields import (
    as_count,
    as_flag,
    as_list,
    as_name,
    as_number,
    as_object,
    as_string,
    read_field,
    read_fields,
    read_raw,
    refuse,
)
from evener.dialects.items import Items
from evener.dialects.openai_responses_items import Piece, assembled, check_format, parse_item, whole
from evener.dialects.openai_responses_tools import Toolset, forms_of, joined, parse_tool

UNSUPPORTED: Final = {
    "previous_response_id": "answers are not stored; send the whole input",
    "conversation": "conversations are not stored; send the whole input",
    "background": "answers come over the open connection only",
    "prompt": "stored prompts are not served; send instructions and input",
    "top_logprobs": "log-probabilities are kept in the log, not sent to the harness",
}
"""Fields that would change what the answer means. Null and empty values ask for nothing."""
LOGPROBS: Final = "message.output_text.logprobs"
NUMBERS: Final = {"temperature": (0, 2), "top_p": (0, 1)}
"""Wishes for sampling, with the provider's bounds. The run's parameters hold, but a mistake of the harness is told."""
READ: Final = frozenset({"model", "instructions", "tool_choice", "stream", "max_output_tokens", *UNSUPPORTED})
"""Every other field but input and tools is a wish."""


class Parser:
    """Parses requests; remembers input items and tools, which a growing history repeats."""

    def __init__(self) -> None:
        self._items: Items[Piece] = Items(parse_item)
        self._tools: Items[Toolset] = Items(parse_tool)

    def parse(self, dialect: str, body: bytes, *, count_only: bool) -> CanonicalRequest:
        """Return the request in `body`. Raises RequestError naming the field."""
        raw = read_fields(body)
        pieces = self._pieces(bytes(raw.pop("input", b"null")))
        offered = self._tools.of(raw.pop("tools", b"null"), "tools")
        fields = {name: value for name in raw if (value := read_field(raw, name)) is not None}
        _refuse_unsupported(fields)
        _check_sampling(fields)
        said, opening = assembled((*_instructions(fields), *pieces))
        shown = joined((*offered, *opening))
        known = joined((shown, *(piece.tools for piece in pieces)))
        wishes = {name: value for name, value in fields.items() if name not in READ}
        if known.removed:
            wishes["removed_tools"] = list(dict.fromkeys(known.removed))
        if chooses_none := _chooses_none(fields.get("tool_choice", "auto")):
            wishes["tool_choice"] = "none"
        return CanonicalRequest(
            dialect=dialect,
            model=as_name(fields.get("model"), "model"),
            messages=tuple(message for message, _ in said),
            digests=tuple(digest for _, digest in said),
            tools=() if chooses_none else tuple(tool.shown for tool in shown.tools),
            forms=forms_of(known.tools),
            stream=as_flag(fields.get("stream"), "stream"),
            count_only=count_only,
            max_tokens=as_count(fields["max_output_tokens"], "max_output_tokens") if "max_output_tokens" in fields else None,
            wishes=wishes,
            images=tuple({image.digest: image for piece in pieces for image in piece.images}.values()),
        )

    def _pieces(self, raw: bytes) -> list[Piece]:
        if raw.lstrip().startswith(b'"'):
            return [whole("user", as_string(read_raw(raw, "input"), "input"))]
        return self._items.of(raw, "input") or refuse("input", "must not be empty")


def _instructions(fields: dict[str, Any]) -> tuple[Piece, ...]:
    text = as_string(fields.get("instructions", ""), "instructions")
    return (whole("system", text),) if text else ()


def _refuse_unsupported(fields: dict[str, Any]) -> None:
    for name, why in UNSUPPORTED.items():
        if fields.get(name):
            refuse(name, why)
    if fields.get("truncation", "disabled") != "disabled":
        refuse("truncation", "only 'disabled' is served: nothing is cut out of a history")
    if LOGPROBS in as_list(fields.get("include", []), "include"):
        refuse("include", UNSUPPORTED["top_logprobs"])
    check_format(as_object(fields.get("text", {}), "text").get("format"), "text.format")


def _check_sampling(fields: dict[str, Any]) -> None:
    for name, (least, most) in NUMBERS.items():
        if name in fields:
            as_number(fields[name], name, least=least, most=most)


def _chooses_none(value: Any) -> bool:
    """Tell whether the model is to see no tools. A forced or narrowed choice is constrained sampling."""
    if value not in ("auto", "none"):
        refuse("tool_choice", "only 'auto' and 'none' are served: a forced call is constrained sampling")
    return bool(value == "none")
