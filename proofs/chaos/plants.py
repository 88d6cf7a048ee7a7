"""Which planted faults the audit catches: each is a program with one defence switched off, struck where the defence is needed."""

import asyncio
import re
import signal
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from proofs.chaos.brokers import brokers
from proofs.chaos.cluster import cluster
from proofs.chaos.storm import PLANTED, Storm, storm
from proofs.chaos.strikes import FROZEN_SECONDS
from proofs.chaos.work import TASKS, Wanted, script
from tests.support.waiting import eventually

from evener.blobs.open import open_blobs
from evener.bus.open import open_bus
from evener.proto.reasons import TerminationReason
from evener.proto.sessions import SessionGivenUp, SessionStarted
from evener.proto.spec import GroupOptions
from evener.proto.topics import Topic
from evener.service.events import EventLog

SMALL_RECORD: Final = 20_000
LONG: Final = "word " * 5_000
"""A part of an instruction whose call no longer fits into such a record."""
SECONDS: Final = 600.0
POLL_SECONDS: Final = 0.1
EARLY: Final = Wanted(task_id="early", samples=4, steps=2, group=GroupOptions(deliver_early_at=2))
TWICE: Final = r"I3: \S+: its group ended [2-9] times"

Found = list[str]
"""What an audit finds, a line for each breach."""


async def struck(folder: Path, fault: str, strikes: Sequence[str], wanted: Sequence[Wanted]) -> Found:
    """Kill an `evener up` with this fault at points, one after the other."""
    async with storm(folder, wanted, program=(PLANTED, fault), partitions=1) as chaos:
        await chaos.survive(*strikes, delivered=False)
        return await chaos.audit()


async def zombie(folder: Path) -> Found:
    """Let a scheduler that was replaced give up an attempt after which another one has started."""
    wanted = [Wanted(task_id="t", samples=2, steps=4)]
    async with storm(folder, wanted, says=script(token_ms=20), program=(PLANTED, "zombies obeyed"), partitions=1) as chaos:
        submitting = asyncio.create_task(chaos.work.submit())
        await chaos.up.start("kill@gateway.committed#3")
        await chaos.up.struck("kill@gateway.committed#3")
        await chaos.up.start()
        await submitting
        started = await _second_attempt(chaos)
        await chaos.up.kill()
        state = folder / "state"
        async with open_bus(f"embedded:{state / 'bus'}", partitions=1) as bus:
            given_up = SessionGivenUp(
                session_id=started.session_id,
                attempt=1,
                termination_reason=TerminationReason.DEADLINE,
                given_up_at=started.started_at,
                spec=started.spec,
            )
            await EventLog(bus, open_blobs(str(state / "blobs"))).send(
                Topic.SESSIONS, started.session_id, given_up, session_id=started.session_id
            )
        await chaos.up.start()
        await chaos.up.ready()
        await chaos.ended(delivered=False)
        await chaos.up.stop()
        return await chaos.audit()


async def _second_attempt(chaos: Storm) -> SessionStarted:
    """Wait until a session is in its second attempt."""
    async with asyncio.timeout(SECONDS):
        while True:
            log = await chaos.log()
            starts = [start for name in log.sessions for start in log.of_kind(name, SessionStarted) if start.attempt == 2]
            if starts:
                return starts[0]
            await asyncio.sleep(POLL_SECONDS)


async def ids_of_their_own(folder: Path, servers: str) -> Found:
    """Freeze a bridge that delivers a group until another one has taken over, when neither fences the other."""
    async with cluster(folder, [Wanted(task_id=f"t{number}", samples=1) for number in range(8)], servers=servers) as planted_in:
        for bridge in planted_in.of("trainer_bridge"):
            bridge.program = (PLANTED, "ids of their own", "trainer_bridge")
        frozen = planted_in.of("trainer_bridge")[0]
        frozen.environment["EVENER_FAULTS"] = "freeze@bridge.delivering"
        await planted_in.start()
        submitting = asyncio.create_task(planted_in.work.submit())
        async with asyncio.timeout(SECONDS):
            await frozen.stopped()
        await asyncio.sleep(FROZEN_SECONDS)
        frozen.tell(signal.SIGCONT)
        await submitting
        await planted_in.ended(delivered=False, seconds=SECONDS)
        await planted_in.serves(frozen)
        return [str(breach) for breach in (await planted_in.audit()).breaches]


async def futures_ignored(folder: Path, servers: str) -> Found:
    """Let the broker refuse the records of a call whose transaction ends well."""
    async with cluster(folder, [Wanted(task_id="t", samples=1, instruction=LONG)], each=1, servers=servers) as planted_in:
        (gateway,) = planted_in.of("provider_gateway")
        gateway.program = (PLANTED, "futures ignored", "provider_gateway")
        await planted_in.start()
        admin = AIOKafkaAdminClient(bootstrap_servers=servers)
        await admin.start()
        try:
            limit = {"max.message.bytes": str(SMALL_RECORD)}
            await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, planted_in.prefix + Topic.SESSIONS, limit)])
        finally:
            await admin.close()
        await planted_in.work.submit()
        await eventually(planted_in.work.answers, seconds=SECONDS)  # a session without records may never end
        return [str(breach) for breach in (await planted_in.audit()).breaches]


PLANTS: Final[dict[str, tuple[Callable[[Path], Awaitable[Found]], str]]] = {
    "answer before commit": (
        partial(struck, fault="answer before commit", strikes=["kill@gateway.commit#2"], wanted=TASKS[1:]),
        r"I1: \S+ the harness was answered, and no committed call says so",
    ),
    "group dropped after an early delivery": (
        partial(struck, fault="sessions not recognised", strikes=["kill@scheduler.task_ended"], wanted=[EARLY]),
        TWICE,
    ),
    "seals forgotten": (
        partial(struck, fault="seals forgotten", strikes=["kill@gateway.sealed", "kill@scheduler.task_ended#2"], wanted=TASKS[1:]),
        r"I8: \S+: it has 2 seals",
    ),
    "outputs before offsets": (
        partial(struck, fault="outputs before offsets", strikes=["kill@bridge.torn"], wanted=TASKS[1:]),
        TWICE,
    ),
    "a zombie's give-up": (zombie, r"I8: \S+ it was sealed, and neither did the harness of its last attempt exit nor"),
}
"""Faults of one process: how each is struck, and what the audit says."""
PLANTS_ON_KAFKA: Final[dict[str, tuple[Callable[[Path, str], Awaitable[Found]], str]]] = {
    "transactional ids per instance": (ids_of_their_own, TWICE),
    "answer without the record's own future": (futures_ignored, r"I1: \S+ the harness was answered, and no committed call says so"),
}
"""Faults that need several processes on a broker, whose address they are given: the same."""


async def planted(folder: Path) -> dict[str, bool]:
    """Return of each planted fault whether the audit caught it."""
    found = {name: await run(folder / str(number)) for number, (name, (run, _)) in enumerate(PLANTS.items())}
    async with brokers(folder / "kafka") as kafka:
        for number, (name, (run_on_kafka, _)) in enumerate(PLANTS_ON_KAFKA.items()):
            found[name] = await run_on_kafka(folder / f"kafka-{number}", kafka.servers)
    says = {name: pattern for name, (_, pattern) in (PLANTS | PLANTS_ON_KAFKA).items()}
    return {name: any(re.search(says[name], breach) for breach in breaches) for name, breaches in found.items()}
