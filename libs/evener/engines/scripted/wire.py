"""What every endpoint writes of an answer: parts, events, models. Pure."""

import time
from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

DONE_EVENT: Final = b"data: [DONE]\n\n"

encode: Final = msgspec.json.Encoder().encode


class Top(Struct, frozen=True):
    """A likely token at a position, as vLLM writes it."""

    token_id: int
    logprob: float
    rank: int


class WireToken(Struct, frozen=True):
    """One sampled token, as vLLM writes it in `logprobs.content`."""

    token_id: int
    logprob: float
    rank: int
    top_logprobs: list[Top]
    """The sampled token first, then the most likely ones."""


class AnswerEnd(Struct, frozen=True):
    """Why an answer ended."""

    finish_reason: str
    stop_reason: int | None = None


class Part(Struct, frozen=True):
    """Tokens of one choice that leave together, as they are reported."""

    choice: int
    ids: list[int]
    tokens: list[WireToken]
    """The tokens. All lists have the same length unless the script reports wrongly."""
    end: AnswerEnd | None
    """Why the answer ended; set in the last part of a choice."""
    labels: Sequence[str]
    """The labels of the weights, of the whole answer so far."""


class Form(Protocol):
    """How one endpoint writes answers."""

    def whole(self, parts: Sequence[Part]) -> bytes:
        """Return the body of an answer that is not streamed, with one part per choice."""
        ...


class StreamForm(Form, Protocol):
    """How one endpoint writes answers, streamed ones too."""

    def opening(self) -> bytes:
        """Return what precedes the first part."""
        ...

    def part(self, part: Part) -> bytes:
        """Return one event."""
        ...

    def closing(self, sampled: int) -> bytes:
        """Return what ends a stream of this many tokens."""
        ...


def event(body: object) -> bytes:
    """Return a server-sent event."""
    return b"data: " + encode(body) + b"\n\n"


def usage(prompt: int, sampled: int) -> dict[str, Any]:
    """Return the token counts of a stream."""
    return {"prompt_tokens": prompt, "total_tokens": prompt + sampled, "completion_tokens": sampled}


def whole_usage(prompt: int, sampled: int) -> dict[str, Any]:
    """Return the token counts of an answer that is not streamed."""
    return usage(prompt, sampled) | {"prompt_tokens_details": None, "completion_tokens_details": None}


def model_card(model: str, context: int) -> dict[str, Any]:
    """Return an element of /v1/models."""
    flags = ("create_engine", "sampling", "logprobs", "search_indices", "view", "fine_tuning")
    allowed = {f"allow_{flag}": flag not in {"create_engine", "search_indices", "fine_tuning"} for flag in flags}
    made = {"created": int(time.time())}
    permission = {
        "id": "modelperm-0",
        "object": "model_permission",
        **made,
        **allowed,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    card = {"id": model, "object": "model", **made, "owned_by": "vllm", "root": model, "parent": None, "max_model_len": context}
    return card | {"permission": [permission]}
