"""vLLM's control of weights: `/pause`, `/collective_rpc` and similar endpoints (`VLLM_SERVER_DEV_MODE=1`), as vLLM 0.32 has them."""

import math
import secrets
from http import HTTPStatus
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evener.engines.connection import CONTROL_SECONDS, EngineHttp, HttpRefusal
from evener.engines.port import PROBE, EngineError, TokenScores
from evener.engines.vllm import GENERATE, UNKNOWN_LOGPROB, version_number

QUICK_SECONDS: Final = 10.0
"""The limit for answers that need no workers. An engine that is silent for longer hangs."""
MISSING: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})


class WeightsOutOfReach(EngineError):
    """Start the engine with VLLM_SERVER_DEV_MODE=1 in its environment, so that weights can be loaded into it."""


class VllmWeights:
    """The weights of an engine behind vLLM's control endpoints."""

    def __init__(self, url: str, model: str | None = None, *, load_seconds: float = CONTROL_SECONDS) -> None:
        """`model`: the served model's name (None: the first one listed). `load_seconds`: the limit of silence while it loads weights."""
        self._http: Final = EngineHttp(url, silence_seconds=load_seconds, refuses_by_500=True)
        self._quick: Final = EngineHttp(url, silence_seconds=QUICK_SECONDS, refuses_by_500=True)
        self._model: Final = model

    async def label(self) -> str:
        answer = await self._get("/weight_info")
        with self._http.reading("/weight_info", answer):
            return str(answer["weight_version"])

    async def paused(self) -> bool:
        answer = await self._get("/is_paused")
        with self._http.reading("/is_paused", answer):
            return bool(answer["is_paused"])

    async def pause(self) -> None:
        await self._post("/pause?mode=keep")

    async def resume(self) -> None:
        await self._post("/resume")

    async def relabel(self, label: str) -> None:
        await self._post("/update_weight_version", {"new_version": label})

    async def load(self, location: str) -> None:
        """Load a folder. Inspect the folder before: vLLM 0.32 dies if loading fails while answers are open."""
        await self._post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": location}})
        path = "/reset_prefix_cache?reset_running_requests=true"
        answer = await self._post(path)
        with self._http.reading(path, answer):
            dropped = answer["success"]
        if dropped is not True:
            raise self._http.rubbish(path, answer)

    async def score(self, ids: NDArray[np.int32]) -> TokenScores:
        params = {"temperature": 1.0, "max_tokens": 1, "logprobs": 0, "prompt_logprobs": 0, "detokenize": False}
        body = {"token_ids": ids.tolist(), "sampling_params": params, "request_id": f"{PROBE}-{secrets.token_hex(8)}"}
        answer = await self._http.post(GENERATE, body if self._model is None else body | {"model": self._model})
        with self._http.reading(GENERATE, answer):
            told = answer["prompt_logprobs"][1:]
            logprobs = [_logprob(each[str(token)]["logprob"]) for each, token in zip(told, ids[1:].tolist(), strict=True)]
            version = version_number(answer["choices"][0]["weight_versions"][-1]["version"])
        return TokenScores(logprobs=np.asarray([math.nan, *logprobs], np.float64), version=version)

    async def tokenize(self, text: str) -> list[int]:
        body: dict[str, Any] = {"prompt": text, "add_special_tokens": False}
        answer = await self._http.post("/tokenize", body if self._model is None else body | {"model": self._model})
        with self._http.reading("/tokenize", answer):
            return [int(token) for token in answer["tokens"]]

    async def origin(self) -> str:
        models = await self._quick.get("/v1/models")
        with self._http.reading("/v1/models", models):
            roots = {str(each["id"]): str(each["root"]) for each in models["data"]}
            return next(iter(roots.values())) if self._model is None else roots[self._model]

    async def aclose(self) -> None:
        await self._http.aclose()
        await self._quick.aclose()

    async def _get(self, path: str) -> Any:
        try:
            return await self._quick.get(path)
        except HttpRefusal as refusal:
            raise self._known(path, refusal) from refusal

    async def _post(self, path: str, body: Any = None) -> Any:
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
    return math.nan if value is None or value <= UNKNOWN_LOGPROB else float(value)
