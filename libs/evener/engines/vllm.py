"""vLLM as an engine: POST /inference/v1/generate, ids in and ids out (`vllm serve ... --enable-scale-out`)."""

import json
import math
import re
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import UNSET, Struct, UnsetType
from numpy.typing import NDArray

from evener.engines.answers import chunk
from evener.engines.connection import EngineHttp, HttpRefusal, encoded
from evener.engines.port import (
    HEALTH_SECONDS,
    PROBE,
    Chunk,
    ContextOverflow,
    EngineError,
    EngineFacts,
    EngineRefused,
    EngineUnreachable,
    GenerateRequest,
)
from evener.proto.prepared import Converter
from evener.proto.sessions import FinishReason
from evener.proto.spec import Sampling

GENERATE: Final = "/inference/v1/generate"
PROMPT_LENGTH: Final = re.compile(r"(?:\(length |at least )(\d+)(?:\)| input tokens)")
CONTEXT_LENGTH: Final = re.compile(r"maximum (?:model length of|context length is) (\d+)")
"""Matches the message for a prompt that does not fit, by ids and by messages."""
LARGEST_ID: Final = 999_999
"""Ids above this, which no vocabulary has, are written the slow way."""
NO_SUCH_ENDPOINT: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED})
DONE: Final = b"[DONE]"
"""The data of the event that ends a stream."""
FINISH: Final = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORTED}
UNKNOWN_LOGPROB: Final = -9999.0
"""vLLM's value for a logprob that it does not have, and for minus infinity."""
NEUTRAL: Final[dict[str, Any]] = {
    "n": 1,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
    "ignore_eos": False,
    "detokenize": False,
    "skip_special_tokens": False,
}


class NotAnEngine(EngineRefused):
    """The server has no token endpoint. An ordinary OpenAI-compatible server takes text and returns no ids.

    Serve the model with `vllm serve MODEL --enable-scale-out`, which adds POST /inference/v1/generate: ids in, ids and logprobs out.
    """


class _Token(Struct):
    """One sampled token. Other fields are ignored, here and below."""

    token_id: int
    logprob: float


class _Logprobs(Struct):
    content: list[_Token] | None


class _Span(Struct):
    """Tokens [start, end) of one version."""

    version: str
    start: int
    end: int


class _Choice(Struct):
    token_ids: list[int] | None
    logprobs: _Logprobs | None
    finish_reason: str | None
    weight_versions: list[_Span] | None = None


class _Event(Struct):
    """An event of a stream."""

    choices: list[_Choice]
    error: msgspec.Raw | UnsetType = UNSET


_events: Final = msgspec.json.Decoder(_Event)
_spans: Final = Converter(list[_Span])


class VllmEngine:
    """An engine behind vLLM's token endpoint. Versions come with the end of an answer (`Chunk.answer_versions`).

    If they are not reported for each token of an answer, they are unknown for all of them.
    """

    def __init__(self, url: str, model: str | None = None, *, kind: str = "vllm") -> None:
        """`model`: the served model's name. None: the first that the server lists."""
        self._http: Final = EngineHttp(url)
        self._model: Final = model
        self._kind: Final = kind

    async def health(self, seconds: float = HEALTH_SECONDS) -> None:
        await self._http.health(seconds)

    async def facts(self) -> EngineFacts:
        label = await self._label()
        model, context = await served_model(self._http, self._model)
        with self._http.reading(GENERATE, label):
            version = version_number(label)
        return EngineFacts(kind=self._kind, model=model, context_length=context, reports_versions=True, version=version, label=label)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        ended, sampled = False, 0
        async with aclosing(self._events(request)) as batches:
            async for events in batches:  # to [DONE], so that the connection is used again
                part = self._chunk(events, sampled)
                sampled += len(part.ids)
                ended = ended or part.finish_reason is not None
                yield part
        if not ended:
            raise unfinished(self._http, GENERATE)

    async def tokenize(self, text: str) -> list[int]:
        return await encode_there(self._http, text, self._name())

    async def top_logprobs(self, ids: NDArray[np.int32], sampling: Sampling, count: int) -> tuple[int, dict[int, float]]:
        body = self._body(ids, sampling, 1)
        body["sampling_params"]["logprobs"] = count
        answer = await self._probe(body)
        with self._http.reading(GENERATE, answer):
            (content,) = answer["choices"][0]["logprobs"]["content"]
            top = {int(each["token_id"]): _logprob(each["logprob"]) for each in content["top_logprobs"] if each["rank"] <= count}
            return int(content["token_id"]), top

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _label(self) -> str:
        """Return the label of the weights, which only an answer reveals."""
        try:
            answer = await self._probe(self._body(np.zeros(1, np.int32), Sampling(), 1))
        except HttpRefusal as refusal:
            if refusal.status not in NO_SUCH_ENDPOINT:
                raise
            if self._model is not None and self._model in refusal.body:
                await served_model(self._http, self._model)  # which names those that there are
            raise NotAnEngine(str(refusal.args[0])) from refusal
        with self._http.reading(GENERATE, answer):
            return _spans.convert(answer["choices"][0]["weight_versions"])[-1].version

    def _streamed(self, request: GenerateRequest) -> bytes:
        body = self._body(request.ids, request.sampling, request.max_tokens)
        body["sampling_params"] |= {"stop_token_ids": list(request.stop_ids), "stream_interval": request.stream_interval}
        return msgspec.json.encode(body | {"request_id": request.request_id, "stream": True})

    async def _events(self, request: GenerateRequest) -> AsyncGenerator[list[_Event], None]:
        """Yield the events of a streamed answer up to [DONE], in lists of those that arrived together. An error event is raised."""
        try:
            async with aclosing(self._http.events(GENERATE, partial(encoded, self._streamed, request))) as batches:
                async for data in batches:
                    done = DONE in data
                    if events := [self._event(line) for line in (data[: data.index(DONE)] if done else data)]:
                        yield events
                    if done:
                        return
        except HttpRefusal as refusal:
            raise overflow(refusal.body) or refusal from None

    def _event(self, line: bytes) -> _Event:
        try:
            event = _events.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            event = None
        if event is None or event.error is not UNSET:
            raise event_error(self._http, GENERATE, line.decode(errors="replace"))
        return event

    async def _probe(self, body: dict[str, Any]) -> Any:
        """Return the answer to a request whose id says that it is not a call."""
        try:
            return await self._http.post(GENERATE, body | {"request_id": f"{PROBE}-{secrets.token_hex(8)}"})
        except HttpRefusal as refusal:
            raise overflow(refusal.body) or refusal from None

    def _chunk(self, events: list[_Event], sampled: int) -> Chunk:
        """Return the tokens of events that arrived together, after `sampled` earlier tokens."""
        ids, logprobs = list[int](), list[float]()
        for event in events:
            with self._http.reading(GENERATE, event):
                (choice,) = event.choices
                content = (choice.logprobs and choice.logprobs.content) or []
                if [each.token_id for each in content] != (choice.token_ids or []):
                    raise self._http.rubbish(GENERATE, event)
                ids += choice.token_ids or []
                logprobs += [_logprob(each.logprob) for each in content]
        with self._http.reading(GENERATE, events[-1]):
            reason, spans = choice.finish_reason, choice.weight_versions
            part = chunk(ids, logprobs, finish_reason=None if reason is None else FINISH[reason])
            versions = None if spans is None else _versions(spans, sampled + len(ids))
            return part if versions is None else _with_versions(part, versions)

    def _body(self, ids: NDArray[np.int32], sampling: Sampling, max_tokens: int) -> dict[str, Any]:
        params = NEUTRAL | {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "seed": sampling.seed,
            "max_tokens": max_tokens,
            "logprobs": 0,
        }
        return {"token_ids": ids_json(ids), "sampling_params": params} | self._name()

    def _name(self) -> dict[str, str]:
        return {} if self._model is None else {"model": self._model}


def ids_json(ids: NDArray[np.int32]) -> msgspec.Raw:
    """Return ids as a JSON list, assembled from a table: 60,000 ids would take milliseconds as Python integers."""
    largest = int(ids.max(initial=0))
    if largest > LARGEST_ID:
        return msgspec.Raw(msgspec.json.encode(ids.tolist()))
    return msgspec.Raw(b"[" + _spelled(min(1 << largest.bit_length(), LARGEST_ID + 1))[ids].tobytes()[:-1] + b"]")


@lru_cache(maxsize=4)
def _spelled(count: int) -> NDArray[np.bytes_]:
    """Return numbers followed by a comma and preceded by blanks, all of one length."""
    return np.array([b"%6d," % number for number in range(count)])


async def served_model(http: EngineHttp, wanted: str | None) -> tuple[str, int]:
    """Return the name and context length of a served model, the first one if `wanted` is None. Raises EngineError."""
    models = await http.get("/v1/models")
    with http.reading("/v1/models", models):
        served = {str(each["id"]): int(each["max_model_len"]) for each in models["data"]}
        model = list(served)[0] if wanted is None else wanted  # noqa: RUF015 (a LookupError if there is none)
    if model not in served:
        msg = f"{http.url} serves {', '.join(served)}, not {model}"
        raise EngineError(msg)
    return model, served[model]


async def encode_there(http: EngineHttp, text: str, name: dict[str, str]) -> list[int]:
    """Return the ids of a text by the server's tokenizer. Special tokens are parsed, and none are added."""
    answer = await http.post("/tokenize", {"prompt": text, "add_special_tokens": False} | name)
    with http.reading("/tokenize", answer):
        return [int(token) for token in answer["tokens"]]


def version_number(label: str) -> int:
    """Return the policy version in a label: the number at its end (`step-7`), 0 for `default`. Raises ValueError."""
    digits = re.search(r"\d+$", label)
    if digits:
        return int(digits[0])
    if label == "default":
        return 0
    msg = f"the weight version {label!r} has no number at its end"
    raise ValueError(msg)


def overflow(text: str) -> ContextOverflow | None:
    """Return the error for a prompt that does not fit, if this error body says so."""
    try:
        message = str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return None
    if "maximum model length" not in message and "maximum context length" not in message:  # by ids; by messages
        return None
    asked, limit = PROMPT_LENGTH.search(message), CONTEXT_LENGTH.search(message)
    numbers = (int(asked[1]), int(limit[1])) if asked and limit else None
    return ContextOverflow(message.split(". ", maxsplit=1)[0], numbers)


def event_error(http: EngineHttp, path: str, text: str) -> EngineError:
    """Return the error in an event of a stream: the prompt does not fit, the request is refused, or the engine failed."""
    rubbish = http.rubbish(path, text)
    try:
        code = json.loads(text)["error"].get("code")
    except (ValueError, KeyError, TypeError, AttributeError):
        return rubbish
    refused = isinstance(code, int) and HTTPStatus.BAD_REQUEST <= code < HTTPStatus.INTERNAL_SERVER_ERROR
    return overflow(text) or (rubbish if refused else EngineUnreachable(rubbish.args[0]))


def unfinished(http: EngineHttp, path: str) -> EngineUnreachable:
    """Return the error for an answer that breaks off because its engine is gone."""
    return EngineUnreachable(f"{http.url}{path} ended its answer without a finish reason")


def _with_versions(part: Chunk, versions: NDArray[np.int32]) -> Chunk:
    return Chunk(
        ids=part.ids,
        logprobs=part.logprobs,
        versions=versions[len(versions) - len(part.ids) :],
        finish_reason=part.finish_reason,
        answer_versions=versions,
    )


def _versions(spans: list[_Span], count: int) -> NDArray[np.int32] | None:
    """Return int32[S] from contiguous spans, S = `count`. None: they cover another number of tokens. Raises ValueError."""
    if (spans[-1].end if spans else 0) != count:
        return None
    at = 0
    parts: list[NDArray[np.int32]] = []
    for span in spans:
        if span.start != at or not at <= span.end <= count:
            msg = f"weight versions are not contiguous: {spans}"
            raise ValueError(msg)
        parts.append(np.full(span.end - at, version_number(span.version), dtype=np.int32))
        at = span.end
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)


def _logprob(value: float) -> float:
    return math.nan if value <= UNKNOWN_LOGPROB else float(value)
