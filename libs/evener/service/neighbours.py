"""Checks the other processes of the deployment in `fleet`: each needs a name of its own, and all need the same store and key.

If two processes do not fit together, the one that was started later ends and names the other.
"""

import asyncio
import hashlib
import hmac
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import aclosing
from typing import Final

import structlog
from msgspec import structs

from evener.bus.port import Bus
from evener.proto.blobs import BlobRef
from evener.proto.errors import EvenerError, Hopeless, Recoverable
from evener.proto.fleet import Heartbeat, PolicyFingerprint
from evener.proto.topics import Topic
from evener.service.auth import Secrets
from evener.service.fleet_feed import FleetFeed, FleetRecord
from evener.service.store import Store

HEARTBEAT_FRESH_SECONDS: Final = 10.0
"""A heartbeat that is older, by this machine's clock, comes from a process that is gone."""
SIGNS: Final = 2
"""How often a conflict must be seen before it counts: one heartbeat may have been in flight when its sender was killed."""

log = structlog.get_logger()


class NameTaken(Hopeless):
    """Give each process of a deployment a name of its own (`instance`), or end the other process first."""


class NotShared(Hopeless):
    """All processes of a deployment need the same blob store (`blobs`) and key (`capability_key`), all gateways the same `policies`.

    Correct the wrong one. To change a policy or to take one away, stop all gateways first; to add one, start them one after the other.
    """


class Neighbours:
    """Compares the heartbeats of other processes with the name, store, key, partitions and policies of this one."""

    def __init__(
        self,
        bus: Bus,
        fleet: FleetFeed,
        secrets: Secrets,
        store: Store,
        *,
        boot_id: str,
        names: Collection[str],
        sign_seconds: float = 5.0,
        pause_seconds: float = 2.0,
    ) -> None:
        """`names` are the instance ids of this process's services.

        `sign_seconds`: how long a start waits for a second heartbeat of a process that does not fit, more than two intervals.
        `pause_seconds`: the pause after the log could not be read.
        """
        self._fleet = fleet
        self._store = store
        self._boot_id = boot_id
        self._names = frozenset(names)
        self._sign_seconds = sign_seconds
        self._pause_seconds = pause_seconds
        self._key = fingerprint(secrets)
        self._partitions = bus.partitions_of(Topic.SESSIONS)
        self._policies: dict[str, PolicyFingerprint] = {}
        """The policies that the gateway of this process renders. Empty: there is no gateway, or it has not opened its policies."""
        self._next = 0
        self._signs: dict[tuple[str, str], int] = {}
        """How often each conflict was seen, by boot id and conflict."""
        self._fits: set[tuple[str, BlobRef]] = set()
        """The probes that were found in this process's store."""

    def marked(self, beat: Heartbeat) -> Heartbeat:
        """Return a heartbeat of this process, completed with what other processes compare."""
        probe = self._store.probe if self._store.usable else None
        return structs.replace(beat, key=self._key, session_partitions=self._partitions, probe=probe)

    async def agree(self, policies: Sequence[PolicyFingerprint]) -> None:
        """Compare from now on the policies too.

        Raises NotShared if a living gateway renders differently, or has a policy that is missing here.
        """
        self._policies = {one.policy: one for one in policies}
        await self.fit()

    async def fit(self) -> None:
        """Return if no living process conflicts with this one. Raises NameTaken, NotShared.

        Only a fresh heartbeat that does not fit makes it wait, for the next ones of its sender. A log that is unavailable is checked later.
        """
        try:
            records = await self._fleet.now()
        except Recoverable as away:
            log.warning("neighbours_not_seen", error=str(away))
            return
        self._next = _end_of(records)
        found = [beat for beat in _beats(records) if time.time() - beat.at < HEARTBEAT_FRESH_SECONDS]
        if any([await self._trouble(beat) is not None for beat in found if beat.instance_id not in self._names]):
            try:
                async with asyncio.timeout(self._sign_seconds):
                    await self.watch()
            except TimeoutError:
                pass

    async def watch(self) -> None:
        """Check every heartbeat from the start on, for ever, also after outages of the log. Raises NameTaken, NotShared."""
        while True:
            try:
                await self._follow()
            except Hopeless:
                raise
            except EvenerError as away:
                log.warning("neighbours_not_seen", error=str(away))
            await asyncio.sleep(self._pause_seconds)

    async def _follow(self) -> None:
        async with aclosing(self._fleet.follow()) as batches:
            async for records in batches:
                for beat in _beats(record for record in records if record.offset >= self._next):
                    await self._look(beat)
                self._next = max(self._next, _end_of(records))

    async def _look(self, beat: Heartbeat) -> None:
        trouble = await self._trouble(beat)
        if trouble is None:
            return
        signs = self._signs[beat.boot_id, str(trouble)] = self._signs.get((beat.boot_id, str(trouble)), 0) + 1
        if signs >= SIGNS and beat.boot_id < self._boot_id:
            raise trouble
        if signs == SIGNS:
            log.error("neighbour_does_not_fit", trouble=str(trouble.args[0]))

    async def _trouble(self, beat: Heartbeat) -> EvenerError | None:
        """Return the conflict between a heartbeat's sender and this process. None: there is none, or the sender is stopping."""
        if beat.boot_id == self._boot_id or beat.stopping:
            return None
        other = f"{beat.instance_id} at {beat.address or 'an unknown address'}"
        if beat.instance_id in self._names:
            return NameTaken(f"another process has this one's name: {other}")
        if beat.key and beat.key != self._key:
            return NotShared(f"this process has another capability_key than {other}")
        if beat.session_partitions not in {0, self._partitions}:
            count = f"{self._partitions} partitions of {Topic.SESSIONS}, and not {beat.session_partitions}"
            return NotShared(f"this process counts {count} as {other}")
        if self._policies and (differs := next(filter(None, map(self._differs, beat.fingerprints)), "")):
            return NotShared(f"this process {differs} {other}")
        if beat.probe is not None and await self._lacks(beat.boot_id, beat.probe):
            return NotShared(f"this process has another blob store than {other}: blobs that it wrote are missing here")
        return None

    def _differs(self, theirs: PolicyFingerprint) -> str:
        """Return how this process differs in a policy of another one. Empty: it does not."""
        own = self._policies.get(theirs.policy)
        if own is None:
            return f"lacks the policy {theirs.policy!r} of"
        parts = [part for part in ("tokenizer", "template", "settings") if getattr(own, part) != getattr(theirs, part)]
        return f"has another {' and '.join(parts)} for policy {theirs.policy!r} than" if parts else ""

    async def _lacks(self, boot_id: str, probe: BlobRef) -> bool:
        if (boot_id, probe) in self._fits or not self._store.usable:
            return False
        try:
            lacks = await self._store.lacks(probe)
        except (EvenerError, TimeoutError) as failed:
            log.warning("probe_not_looked_for", error=str(failed))
            return False
        if not lacks:
            self._fits.add((boot_id, probe))
        return lacks


def fingerprint(secrets: Secrets) -> str:
    """Return a text that differs for different capability keys and reveals neither."""
    return hmac.new(secrets.capability_key, b"fleet", hashlib.sha256).hexdigest()[:16]


def _beats(records: Iterable[FleetRecord]) -> list[Heartbeat]:
    return [record.event for record in records if isinstance(record.event, Heartbeat)]


def _end_of(records: Sequence[FleetRecord]) -> int:
    """Return the offset after the last of some records."""
    return records[-1].offset + 1 if records else 0
