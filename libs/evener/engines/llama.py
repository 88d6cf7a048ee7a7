"""llama.cpp's server as an engine: POST /completion with ids as the prompt.

An answer is sampled in blocks that are not streamed: in a stream, llama.cpp loses the ids of tokens that end inside a UTF-8 character, and
in either mode their logprobs. Continuing from the ids so far costs nothing extra (the last sampled token is evaluated then in both cases).
Missing logprobs are looked up afterwards, in the distribution at their position.
"""

import asyncio
import hashlib
import json
import math
import secrets
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evener.engines.answers import chunk
from evener.engines.connection import PLAIN_LINK, EngineHttp, EngineLink, HttpRefusal
from evener.engines.port import HEALTH_SECONDS, Chunk, ContextOverflow, EngineError, EngineFacts, EngineUnreachable, GenerateRequest
from evener.proto.sessions import FinishReason
from evener.proto.spec import Sampling

BLOCK_TOKENS: Final = 16
"""The number of tokens in one request, which is also the most that is sampled after a client has disconnected."""
LOOKED_UP: Final = 256
"""How many of the most likely tokens are requested first to look up a logprob. If that fails, all are."""
FORCED_BIAS: Final = 1000.0
LLAMA_NEUTRAL: Final[dict[str, Any]] = {
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "dynatemp_range": 0.0,
    "repeat_penalty": 1.0,
    "repeat_last_n": 0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "mirostat": 0,
    "adaptive_target": -1.0,
    "min_keep": 0,
    "ignore_eos": False,
    "logit_bias": [],
    "grammar": "",
    "stop": [],
    "post_sampling_probs": False,
    "samplers": ["temperature", "min_p", "top_k", "top_p"],
}
"""Turns off every other parameter of the sampler: with the server's defaults (top_k 40, min_p 0.05, ...) its logprobs would not describe
what it samples."""


class LlamaEngine:
    """An engine behind llama.cpp's HTTP API. Its weights never change, so every token is of version 0. It reports raw logprobs."""

    def __init__(self, url: str, *, link: EngineLink = PLAIN_LINK) -> None:
        self._http: Final = EngineHttp(url, link=link)
        self._slots: asyncio.Semaphore | None = None

    async def health(self, seconds: float = HEALTH_SECONDS) -> None:
        await self._http.health(seconds)

    async def facts(self) -> EngineFacts:
        props = await self._http.get("/props")
        with self._http.reading("/props", props):
            context = int(props["default_generation_settings"]["n_ctx"])
            return EngineFacts(context_length=context, reports_versions=True, version=0)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        async with await self._slot():  # a slot for the whole answer: blocks of more answers than slots would evict each other's cache
            ids = request.ids.tolist()
            end = len(ids) + request.max_tokens
            seed = secrets.randbits(32) if request.sampling.seed is None else request.sampling.seed
            cached: int | None = None
            finish: FinishReason | None = None
            while finish is None:
                wanted = min(BLOCK_TOKENS, end - len(ids))
                answer = await self._complete(ids, request.sampling, n_predict=wanted, n_probs=1, seed=block_seed(seed, len(ids)))
                cached = answer.cached if cached is None else cached
                sampled, finish = cut(answer, request.stop_ids, wanted)
                if finish is None and len(ids) + len(sampled) == end:
                    finish = FinishReason.LENGTH
                logprobs = await self._logprobs(ids, sampled, answer)
                ids += sampled
                yield chunk(sampled, logprobs, version=0, finish_reason=finish, cached_tokens=cached if finish else None)

    async def tokenize(self, text: str) -> list[int]:
        answer = await self._http.post("/tokenize", {"content": text, "add_special": False, "parse_special": True})
        with self._http.reading("/tokenize", answer):
            return [int(token) for token in answer["tokens"]]

    async def top_logprobs(self, ids: NDArray[np.int32], sampling: Sampling, count: int) -> tuple[int, dict[int, float]]:
        seed = secrets.randbits(32) if sampling.seed is None else sampling.seed
        async with await self._slot():
            answer = await self._complete(ids.tolist(), sampling, n_predict=1, n_probs=count, seed=seed)
            (sampled,) = answer.ids
            top = answer.top[0] if answer.top else await self._distribution(ids.tolist(), count)
        return sampled, top

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _slot(self) -> asyncio.Semaphore:
        if self._slots is None:
            props = await self._http.get("/props")
            with self._http.reading("/props", props):
                self._slots = self._slots or asyncio.Semaphore(int(props["total_slots"]))
        return self._slots

    async def _logprobs(self, ids: Sequence[int], sampled: Sequence[int], answer: "Completion") -> list[float]:
        """Return the logprob of each sampled id, as reported, or looked up if llama.cpp omitted it."""
        reported = align(answer.ids, answer.logprobs)[: len(sampled)]
        return [
            await self._lookup([*ids, *sampled[:position]], sampled[position]) if logprob is None else logprob
            for position, logprob in enumerate(reported)
        ]

    async def _lookup(self, ids: Sequence[int], token: int) -> float:
        for count in (LOOKED_UP, await self._vocabulary()):
            logprob = (await self._distribution(ids, count)).get(token)
            if logprob is not None:
                return logprob
        return math.nan

    async def _distribution(self, ids: Sequence[int], count: int) -> dict[int, float]:
        """Return the logprobs of the `count` most likely ids after `ids`. A printable token is forced, since only its event has them."""
        forced = (await self.tokenize("a"))[0]
        answer = await self._complete(ids, Sampling(), n_predict=1, n_probs=count, seed=0, logit_bias=[[forced, FORCED_BIAS]])
        return answer.top[0] if answer.top else {}

    async def _vocabulary(self) -> int:
        models = await self._http.get("/v1/models")
        with self._http.reading("/v1/models", models):
            return int(models["data"][0]["meta"]["n_vocab"])

    async def _complete(self, ids: Sequence[int], sampling: Sampling, **changes: Any) -> "Completion":
        body = LLAMA_NEUTRAL | {
            "prompt": list(ids),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "return_tokens": True,
            "cache_prompt": True,
            "stream": False,
        }
        try:
            answer = await self._http.post("/completion", body | changes, samples=True)
        except HttpRefusal as refusal:
            raise overflow(refusal) or refusal from None
        with self._http.reading("/completion", answer):
            return Completion(answer)


class Completion:
    """An answer of /completion. Raises LookupError, TypeError or ValueError if it is something else."""

    def __init__(self, answer: dict[str, Any]) -> None:
        probabilities = answer.get("completion_probabilities", [])
        self.ids: Final = [int(token) for token in answer["tokens"]]
        self.logprobs: Final = [(int(each["id"]), float(each["logprob"])) for each in probabilities]
        self.top: Final = [{int(one["id"]): float(one["logprob"]) for one in each["top_logprobs"]} for each in probabilities]
        self.at_end: Final = answer["stop_type"] == "eos"
        self.at_context: Final = bool(answer["truncated"])
        self.cached: Final = int(answer["timings"]["cache_n"])
        if not self.ids:
            msg = "no tokens"
            raise ValueError(msg)


def cut(answer: Completion, stop_ids: Sequence[int], wanted: int) -> tuple[list[int], FinishReason | None]:
    """Return the sampled ids up to and including the first stop id, and why the answer ends there (None: it continues).

    llama.cpp stops only at its own end-of-generation ids. What it sampled after another stop id is dropped.
    """
    stops = set(stop_ids)
    for position, token in enumerate(answer.ids):
        if token in stops:
            return answer.ids[: position + 1], FinishReason.STOP
    if answer.at_end:
        return answer.ids, FinishReason.STOP
    if answer.at_context:
        return answer.ids, FinishReason.LENGTH
    if len(answer.ids) != wanted:
        msg = f"asked for {wanted} tokens, the engine stopped after {len(answer.ids)} without saying why"
        raise EngineUnreachable(msg)
    return answer.ids, None


def align(ids: Sequence[int], reported: Sequence[tuple[int, float]]) -> list[float | None]:
    """Return a logprob for each of `ids`, None if it was omitted. `reported` has the logprobs of some of them, in order.

    Raises EngineError if they do not belong to these ids. If an id could stand for several positions, all of them are looked up, so that no
    logprob is assigned to a neighbour.
    """
    if [token for token, _ in reported] == list(ids):
        return [logprob for _, logprob in reported]
    first, last = _positions(ids, reported), _positions(ids[::-1], reported[::-1])
    if first is None or last is None:
        msg = f"logprobs of the ids {[token for token, _ in reported]} came with the ids {list(ids)}"
        raise EngineError(msg)
    found: list[float | None] = [None] * len(ids)
    for index, position in enumerate(first):
        if position == len(ids) - 1 - last[-1 - index]:
            found[position] = reported[index][1]
    return found


def _positions(ids: Sequence[int], reported: Sequence[tuple[int, float]]) -> list[int] | None:
    """Return the earliest positions of the reported ids as a subsequence of `ids`, or None."""
    positions: list[int] = []
    at = 0
    for token, _ in reported:
        while at < len(ids) and ids[at] != token:
            at += 1
        if at == len(ids):
            return None
        positions.append(at)
        at += 1
    return positions


def block_seed(seed: int, position: int) -> int:
    """Return the seed of the block that starts at `position`. Blocks of one answer must not repeat each other's draws."""
    digest = hashlib.blake2b(f"{seed}/{position}".encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") >> 1  # 2**32 - 1 would mean "draw one"


def overflow(refusal: HttpRefusal) -> ContextOverflow | None:
    """Return the error for a prompt that does not fit, if that is why the request was refused."""
    try:
        error = json.loads(refusal.body)["error"]
        if error["type"] != "exceed_context_size_error":
            return None
        asked, limit = int(error["n_prompt_tokens"]), int(error["n_ctx"])
        return ContextOverflow(f"a prompt of {asked} ids does not fit a context of {limit}", (asked, limit))
    except (ValueError, KeyError, TypeError):
        return None
