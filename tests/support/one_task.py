"""The log of one task of one session that went well, as records to write: tests of the audit change it first."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct, structs
from tests.support.builders import ended, scored
from tests.support.world import World

from evener.audit.audit import audit
from evener.audit.findings import AuditReport
from evener.blobs.open import open_blobs
from evener.blobs.port import Blobs
from evener.bus.embedded import open_embedded
from evener.bus.port import Bus
from evener.proto.codec import AnyEvent, decode, encode
from evener.proto.sessions import SessionStarted
from evener.proto.spec import GraderSpec, HarnessSpec
from evener.proto.tasks import TaskEnded, TaskOptions, TaskOutcome, TaskSubmitted
from evener.proto.topics import GROUP_TOPIC, Topic
from evener.service.events import EventLog
from evener.tokens.kept import KeptRecord, pack
from evener.tokens.session import SessionLog
from evener.tokens.trajectory import build

TASK, SESSION = "t", "t.0"


class Written(Struct, frozen=True, eq=False):
    """A record to write."""

    topic: Topic
    key: str
    event: AnyEvent


async def one_task(world: World, blobs: Blobs, run_id: str = "run") -> list[Written]:
    """Return everything that is written of a task whose session is this one, sealed, and graded with 1."""
    now = time.time()
    told = [decode(data) for data in world.log]
    told = [structs.replace(event, dispatched_at=now) if isinstance(event, SessionStarted) else event for event in told]
    session = SessionLog(SESSION)
    for offset, event in enumerate(told):
        session.apply(event, offset=offset, record_at=now)
    kept = await blobs.put(pack([KeptRecord(offset, int(1000 * now), encode(event)) for offset, event in enumerate(told)]))
    built = build(session, records=kept)
    first = scored(built)
    group = ended([first], now=now)
    options = TaskOptions(run_id=run_id, harness=HarnessSpec(name="script"), grader=GraderSpec(name="answer"))
    return [
        Written(Topic.TASKS, TASK, TaskSubmitted(task_id=TASK, task=None, options=options, submitted_at=now)),
        *(Written(Topic.SESSIONS, SESSION, event) for event in told),
        Written(Topic.BUILT, SESSION, built),
        Written(Topic.SCORED, TASK, first),
        Written(GROUP_TOPIC[group.purpose], TASK, group),
        Written(Topic.TASKS, TASK, TaskEnded(task_id=TASK, outcome=TaskOutcome.MERGED, ended_at=now)),
    ]


async def write(bus: Bus, blobs: Blobs, records: Iterable[Written]) -> None:
    """Write records, each as its service does."""
    events = EventLog(bus, blobs)
    for one in records:
        await events.send(one.topic, one.key, one.event, session_id=one.key if one.topic in {Topic.SESSIONS, Topic.BUILT} else None)


async def audited(folder: Path, blobs: Blobs, records: Iterable[Written], **options: Any) -> AuditReport:
    """Write records to a bus in a folder, and audit them; `options` are those of the audit."""
    async with open_embedded(folder) as bus:
        await write(bus, blobs, records)
        return await audit(bus, blobs, **{"settled": True, **options})


def memory() -> Blobs:
    """Return a blob store of the test's own."""
    return open_blobs("memory://")
