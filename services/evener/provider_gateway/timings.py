"""Times of the gateway that are not configuration keys. They are arguments of its opening, so that tests need not wait."""

from typing import Final

from msgspec import Struct


class GatewayTimings(Struct, frozen=True, kw_only=True):
    """Times, all in seconds."""

    engine_retry: float = 1.0
    """The pause between tries to reach an engine that does not answer."""
    engine_probe: float = 5.0
    """The pause between probes of an engine that answers."""
    engine_health: float = 10.0
    """An engine that does not answer a probe within this time is silent."""
    in_vain: float = 1.0
    """A harness that ends for reasons of its own leaves calls that it sent a moment ago: after this time without an engine, a call may have
    waited in vain. The relay's `in_vain_seconds` is the same time."""
    silence: float = 10.0
    """The time in which an engine that sends a call no token keeps it waiting: reading a prompt and sampling a token take less."""
    engine_given_up: float = 30.0
    """After all probes of an engine have failed for this long, its open calls go elsewhere."""
    outreached: float = 20.0
    """After another gateway has reached more engines than this one for this long, it gets the partitions. Longer than two gateways need to
    notice the same of an engine."""
    empty_piece: float = 0.2
    """The pause after a piece of an answer that the engine ended before its first token."""
    streaming: float = 0.02
    """Tokens that are sampled within this time are sent together: each write costs more than its tokens, and the delay is too short to
    notice."""


GATEWAY_TIMINGS: Final = GatewayTimings()
