"""The registry of engine kinds. A new kind is one adapter (`evener.engines.port.Engine`) and one entry here."""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from evener.engines.connection import CONTROL_SECONDS
from evener.engines.llama import LlamaEngine
from evener.engines.port import Engine, EngineError, WeightControl
from evener.engines.vllm import VllmEngine
from evener.engines.vllm_chat import VllmChatEngine
from evener.engines.vllm_weights import VllmWeights
from evener.proto.fleet import EngineJoined


class EngineKind(Struct, frozen=True):
    """The adapters of one kind of engine. They are made without connecting."""

    engine: Callable[[EngineJoined], Engine]
    weights: Callable[[EngineJoined, float], WeightControl] | None = None
    """Makes the control of the weights, which allows this many seconds of silence while it loads. None: the weights never change."""


VLLM: Final = EngineKind(
    lambda joined: VllmEngine(joined.url), lambda joined, load_seconds: VllmWeights(joined.url, load_seconds=load_seconds)
)
ENGINES: Final[dict[str, EngineKind]] = {
    "embedded": EngineKind(lambda joined: LlamaEngine(joined.url)),
    "scripted": VLLM,
    "vllm": VLLM,
    "vllm_chat": EngineKind(lambda joined: VllmChatEngine(joined.url, vision=joined.vision)),
}


def open_engine(joined: EngineJoined) -> Engine:
    """Return the adapter for an engine, without connecting. Raises EngineError for an unknown kind."""
    if joined.kind not in ENGINES:
        msg = f"engine {joined.engine_id} is of kind {joined.kind!r}; known are {', '.join(ENGINES)}"
        raise EngineError(msg)
    return ENGINES[joined.kind].engine(joined)


def open_weights(joined: EngineJoined, *, load_seconds: float = CONTROL_SECONDS) -> WeightControl | None:
    """Return the control of an engine's weights, without connecting. None: the engine keeps the weights that it was started with.

    `load_seconds`: an engine that is silent for this long while it loads is unreachable.
    """
    kind = ENGINES.get(joined.kind)
    return kind.weights(joined, load_seconds) if kind is not None and kind.weights is not None else None
