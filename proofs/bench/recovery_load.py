"""The load of the recovery bench: sessions with long answers, and short calls by which is seen how long a partition answers nobody."""

import asyncio
import itertools
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
from msgspec import Struct
from proofs.bench.gateway_load import Agent, Http, Refused, Taken
from proofs.bench.gateway_parts import RelaysAt
from proofs.bench.gateway_served import Started
from tests.support.builders import alone, started
from tests.support.other_services import OtherServices

from evener.proto.ids import new_request_id
from evener.proto.spec import Streaming
from evener.proto.topics import Topic
from evener.runtime.change import Change
from evener.service.auth import Secrets, seal_capability

CAPABLE_SECONDS: Final = 3600.0
AGAIN_SECONDS: Final = 1.0
"""The pause of a harness after an error."""
PROBE_SECONDS: Final = 3.0
"""The pause between two short calls in a partition."""
SHORT: Final = "Answer shortly."
"""What a short call says, by which the engine knows it."""


class Noticed(Struct, frozen=True, kw_only=True):
    """A harness got an error, or an answer that was cut."""

    at: float
    """The monotonic time."""
    what: str


class Probe(Struct, frozen=True, kw_only=True):
    """A short call that was answered."""

    partition: int
    at: float
    """When it was asked, by the monotonic clock."""
    seconds: float


class Runner:
    """Starts sessions as a runner does, each with a relay."""

    def __init__(self, others: OtherServices, held: Secrets, relays: RelaysAt) -> None:
        self.relays = relays
        self._others = others
        self._secrets = held

    async def start(self, names: Iterable[str]) -> dict[str, Started]:
        """Write the starts of sessions; return what their relays get to know."""
        return {name: await self._start(name) for name in names}

    async def in_partitions(self) -> dict[int, tuple[str, dict[str, str]]]:
        """Start a session in each partition; return where its harness asks, and with which headers."""
        bus = self._others.bus
        drawn = (f"probe-{secrets.token_hex(4)}" for _ in itertools.count())
        chosen: dict[int, str] = {}
        while len(chosen) < bus.partitions_of(Topic.SESSIONS):
            name = next(drawn)
            chosen.setdefault(bus.partition_of(Topic.SESSIONS, name), name)
        doors = await self.relays.doors(await self.start(chosen.values()))
        return {number: doors[name] for number, name in chosen.items()}

    async def _start(self, name: str) -> Started:
        event = started(name, alone(name, streaming=Streaming.BUFFERED), at=time.time())
        capability = await self._others.write_start(event, seconds=CAPABLE_SECONDS)
        return Started(capability=seal_capability(self._secrets, capability), partition=capability.partition)


class Load:
    """Sessions that are open all the time: each asks again as soon as it is answered, and is replaced when it has had its turns."""

    def __init__(self, http: Http, agent: Callable[[str], Awaitable[Agent]]) -> None:
        """`agent` starts a session of a name and returns its harness."""
        self.noticed: list[Noticed] = []
        self.answered: list[Taken] = []
        self._http = http
        self._agent = agent
        self._open: dict[object, float] = {}
        """Since when each open call waits, by the monotonic clock."""
        self._change = Change()

    async def run(self, sessions: int, *, within: float) -> None:
        """Ask until cancelled. `within`: the seconds over which the first calls are spread."""
        async with asyncio.TaskGroup() as tasks:
            for number in range(sessions):
                tasks.create_task(self._lane(number, number * within / sessions))

    async def begun(self, calls: int) -> None:
        """Wait until so many calls are open."""
        await self._change.until(lambda: len(self._open) >= calls)

    async def through(self) -> None:
        """Wait until all calls have ended that are open now."""
        now = time.monotonic()
        await self._change.until(lambda: all(at > now for at in self._open.values()))

    async def _lane(self, number: int, seconds: float) -> None:
        await asyncio.sleep(seconds)
        for again in itertools.count():
            agent = await self._agent(f"recovery-{number}-{again}")
            while not agent.over:
                await self._ask(agent)

    async def _ask(self, agent: Agent) -> None:
        call = object()
        self._open[call] = time.monotonic()
        self._change.note()
        try:
            self.answered.append(await agent.ask(self._http, new_request_id()))
        except (Refused, aiohttp.ClientError, OSError) as cause:
            self.noticed.append(Noticed(at=time.monotonic(), what=f"{agent.name}: {cause!r}"))
            await asyncio.sleep(AGAIN_SECONDS)
        finally:
            del self._open[call]
            self._change.note()


class Probes:
    """A session in each partition that makes short calls."""

    def __init__(self, http: Http, doors: Mapping[int, tuple[str, dict[str, str]]]) -> None:
        self.noticed: list[Noticed] = []
        self._http = http
        self._doors = doors
        body = {"model": "policy", "stream": True, "messages": [{"role": "user", "content": SHORT}]}
        self._body = json.dumps(body).encode()

    @asynccontextmanager
    async def asking(self) -> AsyncIterator[list[Probe]]:
        """Ask in all partitions inside this block, at once and again and again; yield what was answered. It ends with the last answer."""
        probes: list[Probe] = []
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for partition in self._doors:
                tasks.create_task(self._ask(partition, probes, over))
            try:
                yield probes
            finally:
                over.set()

    async def _ask(self, partition: int, probes: list[Probe], over: asyncio.Event) -> None:
        url, headers = self._doors[partition]
        while not over.is_set():
            at = time.monotonic()
            try:
                await self._http.ask(url, headers, self._body)
            except (Refused, aiohttp.ClientError, OSError) as cause:
                self.noticed.append(Noticed(at=time.monotonic(), what=f"probe of partition {partition}: {cause!r}"))
            else:
                probes.append(Probe(partition=partition, at=at, seconds=time.monotonic() - at))
            await asyncio.wait([asyncio.ensure_future(over.wait())], timeout=PROBE_SECONDS)


def longest(probes: Sequence[Probe], partitions: Iterable[int]) -> list[float]:
    """Return the longest wait for a short call in each of some partitions."""
    return [max((one.seconds for one in probes if one.partition == number), default=0.0) for number in partitions]
