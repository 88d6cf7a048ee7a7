"""vLLM as an engine: POST /inference/v1/generate, ids in and ids out (`vllm serve ... --enable-scale-out`)."""

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import cache, partial
from http import HTTPStatus
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import UNSET, Struct, UnsetType, structs
from numpy.typing import NDArray

from evener.engines.answers import chunk
from evener.engines.connection import HttpRefusal, encoded
from evener.engines.port import PROBE_PREFIX, Chunk, EngineFacts, EngineRefused, GenerateRequest
from evener.engines.vllm_http import FINISH_REASONS, MISSING, VLLM_NEUTRAL, VllmHttp, known_logprob, version_number
from evener.proto.prepared import Converter
from evener.proto.spec import Sampling

GENERATE: Final = "/inference/v1/generate"
LARGEST_ID: Final = 999_999
"""Ids above this, which no vocabulary has, are written the slow way."""
NO_SUCH_ENDPOINT: Final = MISSING | {HTTPStatus.NOT_IMPLEMENTED}


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


class VllmEngine(VllmHttp):
    """An engine behind vLLM's token endpoint. Versions come with the end of an answer (`Chunk.answer_versions`).

    If they are not reported for each token of an answer, they are unknown for all of them.
    """

    async def facts(self) -> EngineFacts:
        label = await self._label()
        context = await self._context_length()
        with self._http.reading(GENERATE, label):
            return EngineFacts(context_length=context, reports_versions=True, version=version_number(label), label=label)

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        return self._to_its_end(GENERATE, self._chunks(request))

    async def top_logprobs(self, ids: NDArray[np.int32], sampling: Sampling, count: int) -> tuple[int, dict[int, float]]:
        body = self._body(ids, sampling, 1)
        body["sampling_params"]["logprobs"] = count
        answer = await self._probe(body)
        with self._http.reading(GENERATE, answer):
            (content,) = answer["choices"][0]["logprobs"]["content"]
            top = {int(each["token_id"]): known_logprob(each["logprob"]) for each in content["top_logprobs"] if each["rank"] <= count}
            return int(content["token_id"]), top

    async def _label(self) -> str:
        """Return the label of the weights, which only an answer reveals."""
        try:
            answer = await self._probe(self._body(np.zeros(1, np.int32), Sampling(), 1))
        except HttpRefusal as refusal:
            if refusal.status not in NO_SUCH_ENDPOINT:
                raise
            raise NotAnEngine(str(refusal.args[0])) from refusal
        with self._http.reading(GENERATE, answer):
            return _spans.convert(answer["choices"][0]["weight_versions"])[-1].version

    def _streamed(self, request: GenerateRequest) -> bytes:
        body = self._body(request.ids, request.sampling, request.max_tokens)
        body["sampling_params"] |= {"stop_token_ids": list(request.stop_ids), "stream_interval": request.stream_interval}
        return msgspec.json.encode(body | {"request_id": request.request_id, "stream": True})

    async def _chunks(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        sampled = 0
        async with aclosing(self._events(GENERATE, partial(encoded, self._streamed, request))) as batches:
            async for lines in batches:
                part = self._chunk([self._event(line) for line in lines], sampled)
                sampled += len(part.ids)
                yield part

    def _event(self, line: bytes) -> _Event:
        try:
            event = _events.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            event = None
        if event is None or event.error is not UNSET:
            raise self._event_error(GENERATE, line)
        return event

    async def _probe(self, body: dict[str, Any]) -> Any:
        """Return the answer to a request whose id shows that it belongs to the check at start."""
        return await self._post(GENERATE, body | {"request_id": f"{PROBE_PREFIX}-{secrets.token_hex(8)}"})

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
                logprobs += [known_logprob(each.logprob) for each in content]
        with self._http.reading(GENERATE, events[-1]):
            reason, spans = choice.finish_reason, choice.weight_versions
            part = chunk(ids, logprobs, finish_reason=None if reason is None else FINISH_REASONS[reason])
            versions = None if spans is None else _versions(spans, sampled + len(ids))
            if versions is None:
                return part
            return structs.replace(part, versions=versions[sampled:], answer_versions=versions)

    def _body(self, ids: NDArray[np.int32], sampling: Sampling, max_tokens: int) -> dict[str, Any]:
        params = VLLM_NEUTRAL | structs.asdict(sampling) | {"max_tokens": max_tokens, "logprobs": 0, "detokenize": False}
        return {"token_ids": ids_json(ids), "sampling_params": params}


def ids_json(ids: NDArray[np.int32]) -> msgspec.Raw:
    """Return ids as a JSON list, assembled from a table: 60,000 ids would take milliseconds as Python integers."""
    largest = int(ids.max(initial=0))
    if largest > LARGEST_ID:
        return msgspec.Raw(msgspec.json.encode(ids.tolist()))
    return msgspec.Raw(b"[" + _spelled(min(1 << largest.bit_length(), LARGEST_ID + 1))[ids].tobytes()[:-1] + b"]")


@cache
def _spelled(count: int) -> NDArray[np.bytes_]:
    """Return numbers followed by a comma and preceded by blanks, all of one length. 14 MB hold the tables of all sizes together."""
    return np.array([b"%6d," % number for number in range(count)])


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
