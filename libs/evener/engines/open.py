"""From a registered engine to its adapter."""

from evener.engines.llama import LlamaEngine
from evener.engines.port import Engine, EngineError
from evener.engines.vllm import VllmEngine
from evener.proto.fleet import EngineJoined


def open_engine(joined: EngineJoined) -> Engine:
    """Return the adapter for an engine, without connecting. Raises EngineError for a kind that is not known."""
    match joined.kind:
        case "embedded":
            return LlamaEngine(joined.url)
        case "vllm" | "scripted":
            return VllmEngine(joined.url, kind=joined.kind)
        case _:
            msg = f"engine {joined.engine_id} is of kind {joined.kind!r}; known are embedded, vllm and scripted"
            raise EngineError(msg)
