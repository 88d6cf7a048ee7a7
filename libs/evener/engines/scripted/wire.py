"""What is sampled, and what every endpoint writes of it: pieces of answers, events, models. Pure."""

import time
from collections.abc import Sequence
from typing import Any, Final, Protocol

import msgspec
from msgspec import Struct

DONE: Final = b"data: [DONE]\n\n"

encode: Final = msgspec.json.Encoder().encode


class Top(Struct, frozen=True):
    """A likely token at a place, as vLLM writes it."""

    token_id: int
    logprob: float
    rank: int


class Token(Struct, frozen=True):
    """One sampled token, as vLLM writes it in `logprobs.content`."""

    token_id: int
    logprob: float
    rank: int
    top_logprobs: list[Top]
    """The sampled one first, then the most likely ones."""


class End(Struct, frozen=True):
    """Why an answer ended."""

    finish_reason: str
    stop_reason: int | None = None


class Part(Struct, frozen=True):
    """Tokens of one choice that go out together, as they are reported."""

    choice: int
    ids: list[int]
    tokens: list[Token]
    """Equally long, unless the script reports them wrongly."""
    end: End | None
    """Set in the last part of a choice."""
    labels: Sequence[str]
    """Of the weights, of the whole answer so far."""


class Form(Protocol):
    """How answers are written: one for each endpoint."""

    def whole(self, parts: Sequence[Part]) -> bytes:
        """Return the body of an answer that is not streamed: one part a choice."""
        ...


class StreamForm(Form, Protocol):
    """The same of an endpoint that streams them too."""

    def opening(self) -> bytes:
        """Return what comes before the first part."""
        ...

    def part(self, part: Part) -> bytes:
        """Return one event."""
        ...

    def closing(self, sampled: int) -> bytes:
        """Return what ends a stream of so many tokens."""
        ...


def event(body: object) -> bytes:
    """Return a server-sent event."""
    return b"data: " + encode(body) + b"\n\n"


def usage(prompt: int, sampled: int) -> dict[str, Any]:
    """Return what a stream says of the tokens used."""
    return {"prompt_tokens": prompt, "total_tokens": prompt + sampled, "completion_tokens": sampled}


def whole_usage(prompt: int, sampled: int) -> dict[str, Any]:
    """Return what an answer that is not streamed says of them."""
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
