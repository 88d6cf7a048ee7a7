"""The audit as tests use it: everything has ended, and breaches are lines of text."""

from collections.abc import Collection, Iterable

from evener.audit.answers import ReceivedAnswer
from evener.audit.audit import audit
from evener.audit.engine_ledger import read_ledger
from evener.blobs.port import Blobs
from evener.bus.port import LogReader


async def breaches(
    log: LogReader, blobs: Blobs, *, answers: Iterable[ReceivedAnswer] = (), engine: Collection[str] | None = None
) -> list[str]:
    """Return the breaches as lines. `engine`: lines of the scripted engine's ledger (None: unknown)."""
    ledger = None if engine is None else read_ledger(list(engine))
    found = await audit(log, blobs, answers=answers, engine=ledger, settled=True)
    return [str(breach) for breach in found.breaches]
