"""How soon a group is delivered: from the seal of its last session to its record in `trajectories.merged`, on Kafka.

Reconstructor, evaluator and bridge are processes of their own; this one plays runners and gateways. It writes whole sessions, and seals
them at a steady rate, one after another, by the transactional producer of their partition.
"""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from msgspec import Struct, structs
from proofs.figures import cpu_seconds, percentile
from tests.support.builders import call_closed, choice, spec
from tests.support.processes import deployment
from tests.support.toy import ToyRenderer
from tests.support.world import OwnedSession

from evener.blobs.open import MEMORY, open_blobs
from evener.bus.open import open_bus
from evener.bus.port import Bus, Outgoing, Producer
from evener.proto.codec import AnyEvent
from evener.proto.ids import group_of, session_of
from evener.proto.sessions import SessionSealed, SessionStarted
from evener.proto.topics import HEADER_GROUP, Topic
from evener.service.events import EventLog, header
from evener.tokens.digests import Message

STAGES: Final = ("reconstructor", "evaluator", "trainer_bridge")
PARTITIONS: Final = 16
GROUP_SIZE: Final = 4
CALLS: Final = 10
PER_SECOND: Final = 20
GROUPS: Final = 100
WARM_GROUPS: Final = 5
"""Groups that come first and are not counted: processes and broker warm up."""
ENDED_SECONDS: Final = 180.0
POLL_SECONDS: Final = 0.05


class StageFigures(Struct, frozen=True, kw_only=True):
    """What the three stages after the gateway do with sessions of CALLS calls."""

    sessions_per_s: float
    seal_to_merged_ms_p50: float
    seal_to_merged_ms_p99: float
    cpu_ms_per_session: dict[str, float]
    """The CPU time of each stage's process."""


def session(task: str, index: int) -> list[AnyEvent]:
    """Return the whole log of one session, sealed."""
    wanted = spec(group_of(task), index, GROUP_SIZE)
    renderer = ToyRenderer()
    owned = OwnedSession(renderer, session_of(group_of(task), index), wanted)
    messages: list[Message] = [{"role": "user", "content": f"This is {task}. " + "Read the file, then mend the test. " * 20}]
    for turn in range(CALLS):
        placed = owned.place(messages, ())
        opened = owned.opening(placed, messages, ())
        ids = [
            *renderer.encode(f"I read file {turn}, and the answer is {'42' if index % 2 else '41'}. " * 2),
            renderer.stop_ids[0],
        ]
        answer = renderer.parse(np.array(ids, np.int32), call_id=opened.call_id, choice=0)
        owned.write(opened)
        owned.write(call_closed(opened, [choice(ids, answer, logprobs=[-0.5] * len(ids))]))
        messages += [answer, {"role": "user", "content": f"The file has {turn} lines. " * 5}]
    owned.seal()
    return owned.events


async def measure_stages(servers: str, prefix: str, folder: Path) -> StageFigures:
    """Run the three services on a broker and send sessions through them."""
    url = f"kafka://{servers}?prefix={prefix}"
    async with deployment(folder, url, partitions=PARTITIONS, policies="[]") as six, open_bus(url, partitions=PARTITIONS) as bus:
        programs = [six.programs[name] for name in STAGES]
        for program in programs:
            await program.start()
            await program.listening()
        await six.ready(*STAGES)
        writer = _Writer(bus)
        warm, measured = range(WARM_GROUPS), range(WARM_GROUPS, WARM_GROUPS + GROUPS)
        await writer.send(warm)
        before = {program.name: cpu_seconds(program.pid) for program in programs}
        began = time.perf_counter()
        await writer.send(measured)
        seconds = time.perf_counter() - began
        used = {program.name: cpu_seconds(program.pid) - before[program.name] for program in programs}
    taken = [writer.merged_at[_task(number)] - writer.sealed_at[_task(number)] for number in measured]
    sessions = GROUPS * GROUP_SIZE
    return StageFigures(
        sessions_per_s=sessions / seconds,
        seal_to_merged_ms_p50=percentile(taken, 0.5) * 1000,
        seal_to_merged_ms_p99=percentile(taken, 0.99) * 1000,
        cpu_ms_per_session={name: cpu / sessions * 1000 for name, cpu in used.items()},
    )


class _Writer:
    """Plays runners and gateways, and a trainer that waits for the groups."""

    def __init__(self, bus: Bus) -> None:
        self.sealed_at: dict[str, float] = {}
        """When the last session of a task was sealed, by a monotonic clock."""
        self.merged_at: dict[str, float] = {}
        self._bus = bus
        self._events = EventLog(bus, open_blobs(MEMORY))
        self._producers: list[Producer] = []

    async def send(self, groups: Sequence[int]) -> None:
        """Write the sessions of these groups but for their seals, seal them at a steady rate, and wait until all groups are merged."""
        self._producers = self._producers or [await self._bus.producer(f"gateway-{number}") for number in range(PARTITIONS)]
        tasks = [_task(number) for number in groups]
        starts = [await self._bus.end(Topic.MERGED, number) for number in range(PARTITIONS)]
        seals = [await self._open(task, index) for task in tasks for index in range(GROUP_SIZE)]
        async with asyncio.timeout(ENDED_SECONDS), asyncio.TaskGroup() as running:
            followers = [running.create_task(self._follow(number, start)) for number, start in enumerate(starts)]
            began = time.perf_counter()
            for number, seal in enumerate(seals):
                await asyncio.sleep(max(0.0, began + number / PER_SECOND - time.perf_counter()))
                running.create_task(self._seal(tasks[number // GROUP_SIZE], seal))
            while not self.merged_at.keys() >= set(tasks):  # noqa: ASYNC110 - many followers see to it
                await asyncio.sleep(POLL_SECONDS)
            for follower in followers:
                follower.cancel()

    async def _open(self, task: str, index: int) -> SessionSealed:
        """Write a session as far as its seal, and return that."""
        now = time.time()
        *before, seal = session(task, index)
        before = [structs.replace(event, dispatched_at=now) if isinstance(event, SessionStarted) else event for event in before]
        assert isinstance(seal, SessionSealed)
        await self._bus.send([await self._record(seal.session_id, event) for event in before])
        return seal

    async def _seal(self, task: str, seal: SessionSealed) -> None:
        producer = self._producers[self._bus.partition_of(Topic.SESSIONS, seal.session_id)]
        await producer.commit([await self._record(seal.session_id, seal)])
        self.sealed_at[task] = time.perf_counter()

    async def _record(self, session_id: str, event: AnyEvent) -> Outgoing:
        return await self._events.outgoing(Topic.SESSIONS, session_id, event, session_id=session_id)

    async def _follow(self, partition: int, start: int) -> None:
        async for records in self._bus.follow(Topic.MERGED, partition, start):
            now = time.perf_counter()
            self.merged_at.update({(header(record, HEADER_GROUP) or b"").decode(): now for record in records})


def _task(number: int) -> str:
    return f"task-{number}"
