"""vLLM's control of weights: `/pause`, `/collective_rpc` and similar endpoints (`VLLM_SERVER_DEV_MODE=1`), as vLLM 0.32 has them."""

import math
import secrets
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evener.engines.connection import CONTROL_SECONDS, PLAIN_LINK, EngineLink, HttpRefusal
from evener.engines.port import PROBE_PREFIX, EngineError, TokenScores
from evener.engines.vllm import GENERATE
from evener.engines.vllm_http import MISSING, VllmHttp, known_logprob, version_number

QUICK_SECONDS: Final = 10.0
"""The limit for answers that need no workers. An engine that is silent for longer hangs."""


class WeightsOutOfReach(EngineError):
    """Start the engine with VLLM_SERVER_DEV_MODE=1 in its environment, so that weights can be loaded into it."""


class VllmWeights(VllmHttp):
    """The weights of an engine behind vLLM's control endpoints."""

    def __init__(self, url: str, *, load_seconds: float = CONTROL_SECONDS, link: EngineLink = PLAIN_LINK) -> None:
        """`load_seconds`: the limit of silence while it loads weights."""
        super().__init__(url, silence_seconds=load_seconds, refuses_by_500=True, link=link)

    async def label(self) -> str:
        answer = await self._get("/weight_info")
        with self._http.reading("/weight_info", answer):
            return str(answer["weight_version"])

    async def paused(self) -> bool:
        answer = await self._get("/is_paused")
        with self._http.reading("/is_paused", answer):
            return bool(answer["is_paused"])

    async def pause(self) -> None:
        await self._control("/pause?mode=keep")

    async def resume(self) -> None:
        await self._control("/resume")

    async def relabel(self, label: str) -> None:
        await self._control("/update_weight_version", {"new_version": label})

    async def load(self, location: str) -> None:
        """Load a folder. Inspect the folder before: vLLM 0.32 dies if loading fails while answers are open."""
        await self._control("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": location}})
        path = "/reset_prefix_cache?reset_running_requests=true"
        answer = await self._control(path)
        with self._http.reading(path, answer):
            dropped = answer["success"]
        if dropped is not True:
            raise self._http.rubbish(path, answer)

    async def score(self, ids: NDArray[np.int32]) -> TokenScores:
        params = {"temperature": 1.0, "max_tokens": 1, "logprobs": 0, "prompt_logprobs": 0, "detokenize": False}
        body = {"token_ids": ids.tolist(), "sampling_params": params, "request_id": f"{PROBE_PREFIX}-{secrets.token_hex(8)}"}
        answer = await self._http.post(GENERATE, body)
        with self._http.reading(GENERATE, answer):
            told = answer["prompt_logprobs"][1:]
            logprobs = [_logprob(each[str(token)]["logprob"]) for each, token in zip(told, ids[1:].tolist(), strict=True)]
            version = version_number(answer["choices"][0]["weight_versions"][-1]["version"])
        return TokenScores(logprobs=np.asarray([math.nan, *logprobs], np.float64), version=version)

    async def origin(self) -> str:
        models = await self._http.get("/v1/models", silence_seconds=QUICK_SECONDS)
        with self._http.reading("/v1/models", models):
            return str(models["data"][0]["root"])

    async def _get(self, path: str) -> Any:
        try:
            return await self._http.get(path, silence_seconds=QUICK_SECONDS)
        except HttpRefusal as refusal:
            raise self._known(path, refusal) from refusal

    async def _control(self, path: str, body: Any = None) -> Any:
        try:
            return await self._http.post(path, body)
        except HttpRefusal as refusal:
            raise self._known(path, refusal) from refusal

    def _known(self, path: str, refusal: HttpRefusal) -> EngineError:
        if refusal.status not in MISSING:
            return refusal
        msg = f"{self._http.url} has no {path.partition('?')[0]}"
        return WeightsOutOfReach(msg)


def _logprob(value: float | None) -> float:
    return math.nan if value is None else known_logprob(value)
