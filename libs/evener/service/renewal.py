"""Keeps offsets from being forgotten: Kafka drops one that nobody commits for days, also of a service that has nothing to do."""

import asyncio
from typing import Final

import structlog

from evener.bus.port import Bus
from evener.proto.errors import EvenerError

RENEW_SECONDS: Final = 6 * 3600.0
"""The pause between renewals: much less than the day that brokers remember offsets at least."""

log = structlog.get_logger()


async def renew_offsets(bus: Bus, *, every_seconds: float = RENEW_SECONDS) -> None:
    """Renew the offsets of this process's readers for ever, also through outages of the bus."""
    while True:
        await asyncio.sleep(every_seconds)
        try:
            await bus.renew_offsets()
        except EvenerError as away:
            log.warning("offsets_not_renewed", error=str(away))
