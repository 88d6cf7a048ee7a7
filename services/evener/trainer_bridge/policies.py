"""Writes the topic `policies`. Each policy has one writer, `policy-NAME`."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from evener.proto.errors import EvenerError
from evener.proto.fleet import PolicyPublished, PolicyRetired, PolicyStaged
from evener.proto.topics import Topic
from evener.service.published import Published, Version


class VersionRefused(EvenerError):
    """Versions of a policy only rise, and each names one set of weights for ever. Publish a number above the newest one."""


CommitEvent = Callable[[Version], Awaitable[None]]
"""Commits an event of a policy and reads it back. Raises Fenced if another bridge writes this policy's records now, and NotCommitted."""


class Policies(Published):
    """The published versions of policies, and the writers that publish more."""

    @asynccontextmanager
    async def writer(self, policy: str) -> AsyncIterator[CommitEvent]:
        """Become the only writer of a policy, after reading everything that earlier writers wrote."""
        producer = await self._bus.producer(f"policy-{policy}")

        async def write(event: Version) -> None:
            await producer.commit([await self._events.outgoing(Topic.POLICIES, f"{policy}@{event.version}", event)])
            await self.refresh()

        try:
            await self.refresh()
            yield write
        finally:
            await producer.aclose()

    def known(self, policy: str, version: int, digest: str) -> PolicyPublished | PolicyStaged | None:
        """Return the record of exactly these weights under this number. None: there is none.

        Raises VersionRefused for a number that other weights have, or that is not above all others.
        """
        said = {each.version: each for each in self.versions(policy)}
        match said.get(version):
            case PolicyRetired() as retired:
                msg = f"version {version} of {policy} was rolled back ({retired.reason})"
                raise VersionRefused(msg)
            case (PolicyPublished() | PolicyStaged()) as taken if taken.digest != digest:
                msg = f"version {version} of {policy} is {taken.location}, with other weights"
                raise VersionRefused(msg)
            case (PolicyPublished() | PolicyStaged()) as taken if isinstance(taken, PolicyPublished) or version == max(said):
                return taken
        if said and version < max(said):
            msg = f"version {version} of {policy} is not above {max(said)}"
            raise VersionRefused(msg)
        return None

    def pending(self, policy: str) -> PolicyStaged | None:
        """Return the version that engines may hold although it is not published: the bridge died, or reached no engine."""
        versions = self.versions(policy)
        return versions[-1] if versions and isinstance(versions[-1], PolicyStaged) else None
