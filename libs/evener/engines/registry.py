"""The registry of engine kinds. A new kind is one adapter (`evener.engines.port.Engine`) and one entry here."""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from evener.engines.connection import CONTROL_SECONDS, EngineLink
from evener.engines.llama import LlamaEngine
from evener.engines.port import Engine, EngineError, WeightControl
from evener.engines.vllm import VllmEngine
from evener.engines.vllm_chat import VllmChatEngine
from evener.engines.vllm_weights import VllmWeights
from evener.proto.fleet import EngineJoined
from evener.runtime.tls import client_context


class EngineKind(Struct, frozen=True):
    """The adapters of one kind of engine. They are made without connecting."""

    engine: Callable[[EngineJoined, EngineLink], Engine]
    weights: Callable[[EngineJoined, EngineLink, float], WeightControl] | None = None
    """Makes the control of the weights, which allows this many seconds of silence while it loads. None: the weights never change."""


class EngineAccess(Struct, frozen=True, kw_only=True):
    """How a deployment reaches its engines. The record of an engine holds no secret."""

    ca_file: str | None = None
    """The PEM file of the authorities that sign the certificates of engines. None: those of the system."""
    api_keys: dict[str, str] = {}
    """Engine id to its API key. `*`: the key for all others."""

    def __post_init__(self) -> None:
        """Refuse a file that cannot be used. Raises ConfigError."""
        if self.ca_file is not None:
            client_context(self.ca_file)

    def link(self, engine_id: str) -> EngineLink:
        """Return how one engine is reached. Raises ConfigError for a file that cannot be used."""
        tls = None if self.ca_file is None else client_context(self.ca_file)
        return EngineLink(tls, self.api_keys.get(engine_id, self.api_keys.get("*")))


OPEN_ACCESS: Final = EngineAccess()
"""Engines that want no key, and whose certificates, if they have any, the system trusts."""
VLLM: Final = EngineKind(
    lambda joined, link: VllmEngine(joined.url, link=link),
    lambda joined, link, load_seconds: VllmWeights(joined.url, load_seconds=load_seconds, link=link),
)
ENGINES: Final[dict[str, EngineKind]] = {
    "embedded": EngineKind(lambda joined, link: LlamaEngine(joined.url, link=link)),
    "scripted": VLLM,
    "vllm": VLLM,
    "vllm_chat": EngineKind(lambda joined, link: VllmChatEngine(joined.url, vision=joined.vision, link=link)),
}


def open_engine(joined: EngineJoined, access: EngineAccess = OPEN_ACCESS) -> Engine:
    """Return the adapter for an engine, without connecting. Raises EngineError for an unknown kind."""
    if joined.kind not in ENGINES:
        msg = f"engine {joined.engine_id} is of kind {joined.kind!r}; known are {', '.join(ENGINES)}"
        raise EngineError(msg)
    return ENGINES[joined.kind].engine(joined, access.link(joined.engine_id))


def open_weights(
    joined: EngineJoined, access: EngineAccess = OPEN_ACCESS, *, load_seconds: float = CONTROL_SECONDS
) -> WeightControl | None:
    """Return the control of an engine's weights, without connecting. None: the engine keeps the weights that it was started with.

    `load_seconds`: an engine that is silent for this long while it loads is unreachable.
    """
    kind = ENGINES.get(joined.kind)
    return kind.weights(joined, access.link(joined.engine_id), load_seconds) if kind is not None and kind.weights is not None else None
