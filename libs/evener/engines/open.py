"""From a registered engine to its adapter."""

from evener.engines.connection import CONTROL_SECONDS
from evener.engines.llama import LlamaEngine
from evener.engines.port import Engine, EngineError, WeightControl
from evener.engines.vllm import VllmEngine
from evener.engines.vllm_chat import VllmChatEngine
from evener.engines.vllm_weights import VllmWeights
from evener.proto.fleet import EngineJoined


def open_engine(joined: EngineJoined) -> Engine:
    """Return the adapter for an engine, without connecting. Raises EngineError for a kind that is not known."""
    match joined.kind:
        case "embedded":
            return LlamaEngine(joined.url)
        case "vllm" | "scripted":
            return VllmEngine(joined.url, kind=joined.kind)
        case "vllm_chat":
            return VllmChatEngine(joined.url, vision=joined.vision)
        case _:
            msg = f"engine {joined.engine_id} is of kind {joined.kind!r}; known are embedded, vllm, vllm_chat and scripted"
            raise EngineError(msg)


def open_weights(joined: EngineJoined, *, load_seconds: float = CONTROL_SECONDS) -> WeightControl | None:
    """Return the control of an engine's weights, without connecting. None: it keeps those that it was started with.

    `load_seconds`: silence for so long while it loads, and it is unreachable.
    """
    return VllmWeights(joined.url, load_seconds=load_seconds) if joined.kind in {"vllm", "scripted"} else None
