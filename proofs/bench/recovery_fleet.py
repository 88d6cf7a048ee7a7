"""The gateways of the recovery bench: processes that join, leave, stop, freeze and die, and what `fleet` says of their partitions."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from proofs.bench.gateway_parts import Policy
from tests.support.processes import Program

from evener.bus.port import Bus
from evener.proto.topics import Topic
from evener.service.fleet_feed import FleetFeed
from evener.service.owners import GATEWAY, Hold, Owners

LISTEN_SECONDS: Final = 120.0
NOBODY: Final = -1
"""Lower than the epoch of any owner."""


class Fleet:
    """Gateways that can be started and disturbed, as seen through `fleet`."""

    def __init__(self, folder: Path, config: Path, bus: Bus) -> None:
        self.taken_over = 0
        """How often a partition has got an owner: another one, or the same anew."""
        self._folder = folder
        self._config = config
        self._partitions = range(bus.partitions_of(Topic.SESSIONS))
        self._highest = dict.fromkeys(self._partitions, NOBODY)
        """The epoch of the latest owner of each partition."""
        self._owners = Owners()
        self._bus = bus
        self._programs: dict[str, Program] = {}

    async def follow(self) -> None:
        """Count the take-overs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._owners.follow(FleetFeed(self._bus)))
            while True:
                await self._owners.change.until(lambda: bool(self._newer()))
                newer = self._newer()
                self.taken_over += len(newer)
                self._highest |= newer

    async def start(self, *names: str) -> None:
        """Start gateways, and wait until they listen."""
        for name in names:
            words = ("-m", "evener.provider_gateway", "--config", str(self._config), "--instance", name)
            await self._programs.setdefault(name, Program(name, self._folder, words)).start()
        async with asyncio.timeout(LISTEN_SECONDS):
            await asyncio.gather(*(self._programs[name].listening() for name in names))

    async def stop(self, name: str) -> int:
        """Send a gateway SIGTERM, and return its exit code."""
        return await self._programs[name].stop()

    def tell(self, name: str, number: signal.Signals) -> None:
        """Send a gateway a signal."""
        self._programs[name].tell(number)

    def of(self, name: str) -> frozenset[int]:
        """Return the partitions that a gateway serves, and does not hand over."""
        holds = {number: self._owners.hold(number) for number in self._partitions}
        return frozenset(number for number, hold in holds.items() if hold is not None and _serves(hold, name))

    async def serve(self, names: Sequence[str]) -> None:
        """Wait until these gateways serve all partitions, in even shares."""

        def even() -> bool:
            shares = [len(self.of(name)) for name in names]
            return sum(shares) == len(self._partitions) and max(shares) - min(shares) <= 1

        await self._owners.change.until(even)

    async def end(self) -> None:
        """Kill what still runs."""
        for program in self._programs.values():
            program.tell(signal.SIGCONT)
            program.tell(signal.SIGKILL)
        await asyncio.gather(*(program.ended() for program in self._programs.values()))

    def _newer(self) -> dict[int, int]:
        """Return the epochs of the owners that are new; a partition that is handed over has none for a while."""
        epochs = {number: self._owners.highest(number) for number in self._partitions}
        return {number: epoch for number, epoch in epochs.items() if epoch > self._highest[number]}


@asynccontextmanager
async def fleet(folder: Path, policy: Policy, url: str, bus: Bus, state: Path) -> AsyncIterator[Fleet]:
    """Yield what can be started on a bus; nothing of it runs on after the block."""
    shared = {"bus": url, "state": str(state), "partitions": bus.partitions_of(Topic.SESSIONS)}
    top = "".join(f"{key} = {json.dumps(value)}\n" for key, value in shared.items())
    policies = f'[{{name = "policy", source = "{policy.source}", renderer = "{policy.renderer}"}}]'
    config = folder / "gateways.toml"
    config.write_text(f"{top}[provider_gateway]\npolicies = {policies}\nqueue = 100000\n")
    opened = Fleet(folder, config, bus)
    following = asyncio.create_task(opened.follow())
    try:
        yield opened
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await opened.end()


def _serves(hold: Hold, name: str) -> bool:
    return hold.instance_id == f"{name}-{GATEWAY}" and not hold.releasing
