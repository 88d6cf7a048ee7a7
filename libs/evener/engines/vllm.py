"""vLLM as an engine: POST /inference/v1/generate, ids in and ids out (`vllm serve ... --enable-scale-out`)."""

import json
import math
import re
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evener.engines.answers import chunk
from evener.engines.connection import EngineHttp, HttpRefusal
from evener.engines.port import PROBE, Chunk, ContextOverflow, EngineError, EngineFacts, GenerateRequest
from evener.proto.sessions import FinishReason
from evener.proto.spec import Sampling

GENERATE: Final = "/inference/v1/generate"
FINISH: Final = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORTED}
UNKNOWN_LOGPROB: Final = -9999.0
"""vLLM's word for a logprob that it does not have (and for minus infinity)."""
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


class VllmEngine:
    """An engine behind vLLM's token endpoint. Versions come with the end of an answer (`Chunk.answer_versions`)."""

    def __init__(self, url: str, model: str | None = None, *, kind: str = "vllm") -> None:
        """`model`: its served name. None: the one that the server names first."""
        self._http: Final = EngineHttp(url)
        self._model: Final = model
        self._kind: Final = kind

    async def facts(self) -> EngineFacts:
        models = await self._http.get("/v1/models")
        with self._http.reading("/v1/models", models):
            served = {str(each["id"]): int(each["max_model_len"]) for each in models["data"]}
            model = list(served)[0] if self._model is None else self._model  # noqa: RUF015 (a LookupError if there is none)
        if model not in served:
            msg = f"{self._http.url} serves {', '.join(served)}, not {model}"
            raise EngineError(msg)
        version = await self._version()
        return EngineFacts(kind=self._kind, model=model, context_length=served[model], reports_versions=True, version=version)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        body = self._body(request.ids, request.sampling, request.max_tokens)
        body["sampling_params"]["stop_token_ids"] = list(request.stop_ids)
        body |= {"request_id": request.request_id, "stream": True}
        ended = False
        async with aclosing(self._events(body)) as events:
            async for event in events:  # to [DONE], so that the connection is used again
                part = self._chunk(event)
                ended = ended or part.finish_reason is not None
                yield part
        if ended:
            return
        msg = f"{self._http.url}{GENERATE} ended its answer without a finish reason"
        raise EngineError(msg)

    async def tokenize(self, text: str) -> list[int]:
        body = {"prompt": text, "add_special_tokens": False} | self._name()
        answer = await self._http.post("/tokenize", body)
        with self._http.reading("/tokenize", answer):
            return [int(token) for token in answer["tokens"]]

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

    async def _version(self) -> int:
        """Return the version of the weights, which only an answer tells."""
        answer = await self._probe(self._body(np.zeros(1, np.int32), Sampling(), 1))
        with self._http.reading(GENERATE, answer):
            return int(_versions(answer["choices"][0]["weight_versions"])[-1])

    async def _events(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the events of a streamed answer up to [DONE]; an error event is raised."""
        try:
            async with aclosing(self._http.events(GENERATE, body)) as lines:
                async for line in lines:
                    if line == "[DONE]":
                        return
                    event = self._http.parse(line, GENERATE)
                    if not isinstance(event, dict) or "error" in event:
                        raise overflow(line) or self._http.rubbish(GENERATE, line)
                    yield event
        except HttpRefusal as refusal:
            raise overflow(refusal.body) or refusal from None

    async def _probe(self, body: dict[str, Any]) -> Any:
        """Return the answer to a request that is no call; its id says so."""
        try:
            return await self._http.post(GENERATE, body | {"request_id": f"{PROBE}-{secrets.token_hex(8)}"})
        except HttpRefusal as refusal:
            raise overflow(refusal.body) or refusal from None

    def _chunk(self, event: dict[str, Any]) -> Chunk:
        with self._http.reading(GENERATE, event):
            (choice,) = event["choices"]
            ids = [int(token) for token in choice["token_ids"] or ()]
            content = (choice["logprobs"] or {"content": None})["content"] or ()
            if [each["token_id"] for each in content] != ids:
                raise self._http.rubbish(GENERATE, event)
            reason = choice["finish_reason"]
            part = chunk(ids, [_logprob(each["logprob"]) for each in content], finish_reason=None if reason is None else FINISH[reason])
            spans = choice.get("weight_versions")
            return part if spans is None else _with_versions(part, spans)

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
        return {"token_ids": ids.tolist(), "sampling_params": params} | self._name()

    def _name(self) -> dict[str, str]:
        return {} if self._model is None else {"model": self._model}


def version_number(label: str) -> int:
    """Return the policy version that a label names: the whole number at its end (`step-7`), 0 for `default`. Raises ValueError."""
    digits = re.search(r"\d+$", label)
    if digits:
        return int(digits[0])
    if label == "default":
        return 0
    msg = f"the weight version {label!r} has no number at its end"
    raise ValueError(msg)


def overflow(text: str) -> ContextOverflow | None:
    """Return the error for a prompt that does not fit, if that is what this error body says."""
    try:
        message = str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return None
    return ContextOverflow(message.split(". ", maxsplit=1)[0]) if "maximum model length" in message else None


def _with_versions(part: Chunk, spans: list[dict[str, Any]]) -> Chunk:
    versions = _versions(spans)
    return Chunk(
        ids=part.ids,
        logprobs=part.logprobs,
        versions=versions[len(versions) - len(part.ids) :],
        finish_reason=part.finish_reason,
        answer_versions=versions,
    )


def _versions(spans: list[dict[str, Any]]) -> NDArray[np.int32]:
    """Return int32[S] from contiguous spans over the whole answer. Raises LookupError, TypeError or ValueError."""
    at = 0
    parts: list[NDArray[np.int32]] = []
    for span in spans:
        if span["start"] != at or span["end"] < at:
            msg = f"weight versions are not contiguous: {spans}"
            raise ValueError(msg)
        parts.append(np.full(span["end"] - at, version_number(span["version"]), dtype=np.int32))
        at = span["end"]
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)


def _logprob(value: float) -> float:
    return math.nan if value <= UNKNOWN_LOGPROB else float(value)
