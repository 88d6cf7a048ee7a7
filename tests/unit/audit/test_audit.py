"""The audit finds nothing in a log that is whole, and each promise that is broken in it, with the records that show it."""

import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pytest
from msgspec import structs
from tests.support.one_task import TASK, Written, audited, memory, one_task, write
from tests.support.world import World, user

from evener.audit.answers import ReceivedAnswer
from evener.audit.audit import audit
from evener.audit.engine_ledger import read_ledger
from evener.audit.findings import Invariant
from evener.audit.tasks import Scope
from evener.bus.embedded import open_embedded
from evener.bus.port import Bus, LogReader, Outgoing, Record
from evener.proto.arrays import float32s, pack_float32
from evener.proto.codec import AnyEvent
from evener.proto.fleet import DeadLetter, LetterReplayed, PolicyRetired
from evener.proto.reasons import ExclusionReason
from evener.proto.sessions import CallClosed, CallOpened, HarnessExited, SessionSealed
from evener.proto.spec import GroupOptions, Purpose
from evener.proto.tasks import TaskDeleted, TaskEnded, TaskSubmitted
from evener.proto.topics import Topic
from evener.proto.trajectories import Accounting, GroupMerged, TrajectoryBuilt, TrajectoryScored

Story = list[Written]
ANSWER: Final = ReceivedAnswer(answer_id="chatcmpl-ac1", message={"role": "assistant", "content": "hello"})
PARTITION: Final = 3
"""Where the session's records are, of four partitions."""


def worked() -> World:
    """Return a session of two calls, sealed."""
    world = World()
    answer = world.ask([user("hi")], "hello")
    world.ask([user("hi"), answer, user("more")], "gladly")
    world.seal()
    return world


def changed(kind: type[AnyEvent], **fields: Any) -> Callable[[Story], Story]:
    """Return a change of all events of a kind."""

    def change(story: Story) -> Story:
        return [structs.replace(one, event=structs.replace(one.event, **fields)) if isinstance(one.event, kind) else one for one in story]

    return change


def without(kind: type[AnyEvent]) -> Callable[[Story], Story]:
    """Return a change that leaves all events of a kind out."""
    return lambda story: [one for one in story if not isinstance(one.event, kind)]


def twice(kind: type[AnyEvent]) -> Callable[[Story], Story]:
    """Return a change that writes the first event of a kind again, at the end."""
    return lambda story: [*story, next(one for one in story if isinstance(one.event, kind))]


def member(**fields: Any) -> Callable[[Story], Story]:
    """Return a change of the group's one member."""

    def change(story: Story) -> Story:
        (group,) = (one.event for one in story if isinstance(one.event, GroupMerged))
        return changed(GroupMerged, members=(structs.replace(group.members[0], **fields),))(story)

    return change


def without_a_logprob(story: Story) -> Story:
    """One token of the delivered row lost it."""
    (group,) = (one.event for one in story if isinstance(one.event, GroupMerged))
    (session,) = group.members
    assert session.scored is not None
    row = session.scored.trajectory.rows[0]
    logprobs = float32s(row.logprobs).copy()
    logprobs[-1] = np.nan
    rows = (structs.replace(row, logprobs=pack_float32(logprobs.tolist())),)
    trajectory = structs.replace(session.scored.trajectory, rows=rows)
    return member(scored=structs.replace(session.scored, trajectory=trajectory))(story)


def answered_again(story: Story) -> Story:
    """The second call has the first one's request id."""
    return [*changed(CallClosed, request_id="r1")(changed(CallOpened, request_id="r1")(story))]


def lost(story: Story) -> Story:
    """A record was given up."""
    letter = DeadLetter(
        service="evaluator", topic="trajectories.built", partition=3, offset=7, key="x", reason="torn", value=b"", replay="-", at=1.0
    )
    return [*story, Written(Topic.DEAD_LETTERS, "x", letter)]


def foreign(story: Story) -> Story:
    """Another session's start, of a task that nobody submitted."""
    start = next(one for one in story if one.topic is Topic.SESSIONS)
    return [*story, structs.replace(start, key="other.0", event=structs.replace(start.event, session_id="other.0"))]


PLANTED: Final[dict[str, tuple[Callable[[Story], Story], str]]] = {
    "answered twice": (answered_again, "I1: t.0: request r1 was answered 2 times"),
    "no logprob": (without_a_logprob, "I2: t.0: row 0: a trainable token has no logprob"),
    "other rows": (without_a_logprob, "I3: t.0: other rows than those that were built were delivered"),
    "merged twice": (twice(GroupMerged), "I3: t: its group ended 2 times"),
    "never merged": (without(GroupMerged), "I3: t: its group ended 0 times"),
    "never scored": (without(TrajectoryScored), "I3: t.0: it was never built and scored"),
    "left out": (member(excluded=ExclusionReason.UNGRADED), "I3: t.0: it is excluded as ungraded, although it ended by finished"),
    "late without early delivery": (member(excluded=ExclusionReason.LATE), "I3: t.0: it is excluded as late, although"),
    "stale at any age": (member(excluded=ExclusionReason.STALE), "I3: t.0: it is excluded as stale, although"),
    "dropped unasked": (member(excluded=ExclusionReason.GROUP_DROPPED), "I3: t.0: it is excluded as group_dropped, although"),
    "unproven, of no update": (member(excluded=ExclusionReason.VERSION_UNKNOWN), "I3: t.0: it is excluded as version_unknown, although"),
    "evaluated and trained": (changed(GroupMerged, purpose=Purpose.EVAL), "I3: t: a group of purpose eval, of a task of purpose train"),
    "no end": (without(TaskEnded), "I4: t: it has 0 ends"),
    "two ends": (twice(TaskEnded), "I4: t: it has 2 ends"),
    "nobody's session": (foreign, "I4: other.0: a session that belongs to no task"),
    "nobody's group": (changed(GroupMerged, group_id="other"), "I4: other: a group that belongs to no task"),
    "never submitted": (without(TaskSubmitted), "I4: t: it ended, but was never submitted"),
    "built otherwise": (changed(TrajectoryBuilt, detail="x"), "I5: t.0: built again from the log, it differs from the recorded one"),
    "stored otherwise": (
        changed(TrajectoryBuilt, detail="x"),
        "I5: t.0: built again from its stored records, it differs from the recorded one",
    ),
    "never built": (without(TrajectoryBuilt), "I5: t.0: it was never built"),
    "not stored": (changed(TrajectoryBuilt, records=None), "I5: t.0: its records were not kept"),
    "inconsistent": (changed(TrajectoryBuilt, inconsistencies=("odd",)), "I5: t.0: inconsistency: odd"),
    "nobody named": (changed(GroupMerged, members=()), "I6: t: it names none"),
    "never sealed": (without(SessionSealed), "I8: t.0: it has 0 seals"),
    "sealed twice": (twice(SessionSealed), "I8: t.0: it has 2 seals"),
    "called after the seal": (twice(CallOpened), "I8: t.0: CallOpened after its seal"),
    "sealed without a cause": (
        without(HarnessExited),
        "I8: t.0: it was sealed, and neither did the harness of its last attempt exit nor was that attempt given up",
    ),
    "opened and left": (without(CallClosed), "I8: t.0: call c1 was opened 1 times and ended 0 times"),
    "wrong sums": (changed(GroupMerged, accounting=Accounting()), "I9: t: it counts 0 sampled and 0 delivered tokens, its members"),
    "dead letter": (lost, "I10: x: evaluator gave it up: torn"),
}
"""A change of the log, and what the audit says of it."""


async def test_whole_log_is_as_promised_and_everything_was_checked(tmp_path: Path) -> None:
    world, blobs = worked(), memory()
    ledger = read_ledger([msgspec.json.encode(entry).decode() for entry in world.ledger])
    found = await audited(tmp_path, blobs, await one_task(world, blobs), answers=[ANSWER], engine=ledger)
    assert [str(breach) for breach in found.breaches] == []
    assert (found.tasks, found.sessions, found.groups, found.calls, found.open_tasks, found.open_sessions) == (1, 1, 1, 2, 0, 0)
    assert found.checked == {
        Invariant.ANSWERS: 1,
        Invariant.TOKENS: 1,
        Invariant.DELIVERED: 1,
        Invariant.TASKS: 1,
        Invariant.REBUILT: 2,
        Invariant.GROUPS: 1,
        Invariant.OURS: 1,
        Invariant.SEALED: 1,
        Invariant.ACCOUNTS: 1,
        Invariant.READABLE: 12,
        Invariant.ENGINE: 1,
    }


@pytest.mark.parametrize("name", PLANTED)
async def test_broken_promise_is_found(tmp_path: Path, name: str) -> None:
    change, says = PLANTED[name]
    blobs = memory()
    found = await audited(tmp_path, blobs, change(await one_task(worked(), blobs)))
    assert [str(breach) for breach in found.breaches if str(breach).startswith(says)], found.breaches


@pytest.mark.parametrize(
    ("group", "reason"), [(GroupOptions(deliver_early_at=1), ExclusionReason.LATE), (GroupOptions(max_staleness=0), ExclusionReason.STALE)]
)
async def test_exclusion_is_explained_by_the_option_of_its_rule_and_by_no_other(
    tmp_path: Path, group: GroupOptions, reason: ExclusionReason
) -> None:
    blobs = memory()
    story = await one_task(worked(), blobs)
    (task,) = (one.event for one in story if isinstance(one.event, TaskSubmitted))
    optional = changed(TaskSubmitted, options=structs.replace(task.options, group=group))(story)
    said = {}
    for excluded in (ExclusionReason.LATE, ExclusionReason.STALE, ExclusionReason.GROUP_DROPPED):
        found = await audited(tmp_path / excluded, blobs, member(excluded=excluded)(optional))
        said[excluded] = not any(f"excluded as {excluded}" in str(breach) for breach in found.breaches)
    assert [excluded for excluded, explained in said.items() if explained] == [reason]


async def test_session_of_a_version_that_was_rolled_back_may_be_excluded(tmp_path: Path) -> None:
    """Whatever the options of its run: nobody has proven its weights."""
    blobs = memory()
    story = member(excluded=ExclusionReason.VERSION_UNKNOWN)(await one_task(worked(), blobs))
    (built,) = (one.event for one in story if isinstance(one.event, TrajectoryBuilt))
    said = {}
    for version in (built.versions[0], built.versions[0] + 1):
        retired = PolicyRetired(policy=built.spec.policy, version=version, retired_at=1.0)
        log = [*story, Written(Topic.POLICIES, f"policy@{version}", retired)]
        found = await audited(tmp_path / str(version), blobs, log)
        said[version] = any("excluded as version_unknown" in str(breach) for breach in found.breaches)
    assert list(said.values()) == [False, True]


async def test_breach_names_the_records_that_show_it(tmp_path: Path) -> None:
    blobs = memory()
    found = await audited(tmp_path, blobs, twice(SessionSealed)(await one_task(worked(), blobs)))
    assert [breach.records for breach in found.breaches] == [(f"sessions/{PARTITION}@6", f"sessions/{PARTITION}@7")]


async def test_answer_that_no_record_has_is_found_and_one_that_was_received_twice(tmp_path: Path) -> None:
    blobs = memory()
    other = structs.replace(ANSWER, message={"role": "assistant", "content": "goodbye"})
    unknown = structs.replace(ANSWER, answer_id="chatcmpl-zz")
    found = await audited(tmp_path, blobs, await one_task(worked(), blobs), answers=[other, unknown, unknown])
    assert [str(breach) for breach in found.breaches] == [
        f"I1: ac1: the harness was answered, and another answer was committed (sessions/{PARTITION}@2)",
        "I1: zz: the harness was answered, and no committed call says so",
        "I1: zz: the answer was received 2 times",
    ]


async def test_row_that_the_engine_never_sampled_is_found(tmp_path: Path) -> None:
    world, blobs = worked(), memory()
    entries = [{**entry, "sampled_ids": [1] * len(entry["sampled_ids"])} for entry in world.ledger]
    ledger = read_ledger([msgspec.json.encode(entry).decode() for entry in entries])
    found = await audited(tmp_path, blobs, await one_task(world, blobs), engine=ledger)
    assert {breach.invariant for breach in found.breaches} == {Invariant.ENGINE}


async def test_record_that_is_no_event_is_found(tmp_path: Path) -> None:
    blobs = memory()
    async with open_embedded(tmp_path) as bus:
        await write(bus, blobs, await one_task(worked(), blobs))
        await bus.send([Outgoing(topic=Topic.SCORED, key=TASK, value=b"\xc1")])
        found = await audit(bus, blobs, settled=True)
    assert [(breach.invariant, breach.about) for breach in found.breaches] == [(Invariant.READABLE, TASK)]


async def test_dead_letter_that_was_replayed_is_no_breach(tmp_path: Path) -> None:
    blobs = memory()
    mark = LetterReplayed(topic="trajectories.built", partition=3, offset=7, by="ann", at=2.0)
    story = [*lost(await one_task(worked(), blobs)), Written(Topic.DEAD_LETTERS, "x", mark)]
    found = await audited(tmp_path, blobs, story)
    assert found.breaches == ()


async def test_what_still_runs_is_open_and_no_breach(tmp_path: Path) -> None:
    """Unless everything is said to have ended."""
    blobs = memory()
    story = [one for one in await one_task(worked(), blobs) if one.topic in {Topic.TASKS, Topic.SESSIONS}]
    running = without(TaskEnded)(without(SessionSealed)(story))
    found = await audited(tmp_path, blobs, running, settled=False)
    assert (found.open_tasks, found.open_sessions, found.breaches) == (1, 1, ())


@pytest.mark.parametrize(
    ("scope", "tasks"),
    [
        (Scope(run_id="run"), 1),
        (Scope(run_id="another"), 0),
        (Scope(since=time.time() - 60), 1),
        (Scope(since=time.time() + 3600), 0),
        (Scope(until=time.time() - 3600), 0),
    ],
)
async def test_scope_chooses_tasks_and_what_became_of_them(tmp_path: Path, scope: Scope, tasks: int) -> None:
    blobs = memory()
    found = await audited(tmp_path, blobs, await one_task(worked(), blobs), scope=scope)
    assert (found.tasks, found.sessions, found.groups, found.breaches) == (tasks, tasks, tasks, ())


@pytest.mark.parametrize("records_gone", [False, True])
async def test_deleted_run_is_no_breach(tmp_path: Path, records_gone: bool) -> None:  # noqa: FBT001 - the two cases
    """Its blobs are gone, so its remaining records are not checked."""
    blobs = memory()
    story = await one_task(worked(), blobs)
    if records_gone:
        story = without(TrajectoryBuilt)(without(SessionSealed)(story))
    deleted = Written(Topic.TASKS, "t", TaskDeleted(task_id="t", run_id="run", deleted_at=1.0))
    found = await audited(tmp_path, memory(), [*story, deleted])
    assert (found.tasks, found.sessions, found.groups, found.deleted_tasks, found.breaches) == (0, 0, 0, 1, ())


class Trimmed:
    """A log whose retention has passed for the first records of `sessions`."""

    def __init__(self, bus: Bus, kept_from: int) -> None:
        self._bus = bus
        self._kept_from = kept_from

    def partitions_of(self, topic: str) -> int:
        return self._bus.partitions_of(topic)

    async def end(self, topic: str, partition: int) -> int:
        return await self._bus.end(topic, partition)

    async def beginning(self, topic: str, partition: int) -> int:
        end = await self.end(topic, partition)
        return min(self._kept_from, end) if topic == Topic.SESSIONS else 0

    def read(self, topic: str, partition: int, start: int = 0) -> AsyncIterator[Record]:
        return self._bus.read(topic, partition, start)


@pytest.mark.parametrize("kept_from", [1, 6, 7], ids=["start lost", "only the seal kept", "nothing kept"])
async def test_session_that_was_trimmed_is_checked_against_its_stored_records(tmp_path: Path, kept_from: int) -> None:
    blobs = memory()
    async with open_embedded(tmp_path) as bus:
        await write(bus, blobs, await one_task(worked(), blobs))
        found = await audit(Trimmed(bus, kept_from), blobs, settled=True)
    assert (found.breaches, found.trimmed_sessions, found.checked[Invariant.REBUILT]) == ((), 1, 1)


class Growing(Trimmed):
    """A log to which somebody writes as soon as it is read."""

    def __init__(self, bus: Bus, grow: Callable[[], Any]) -> None:
        super().__init__(bus, 0)
        self._grow: Callable[[], Any] | None = grow

    async def read(self, topic: str, partition: int, start: int = 0) -> AsyncIterator[Record]:
        if self._grow is not None:
            grow, self._grow = self._grow, None
            await grow()
        async for record in super().read(topic, partition, start):
            yield record


async def test_what_is_written_while_the_log_is_read_does_not_count(tmp_path: Path) -> None:
    """Half of it would look like a group whose sessions nobody built."""
    blobs = memory()
    story = await one_task(worked(), blobs)
    begun = [one for one in story if one.topic is Topic.TASKS][:1]
    async with open_embedded(tmp_path) as bus:
        await write(bus, blobs, begun)
        growing: LogReader = Growing(bus, lambda: write(bus, blobs, story[1:]))
        found = await audit(growing, blobs)
        assert (found.tasks, found.sessions, found.groups, found.open_tasks, found.breaches) == (1, 0, 0, 1, ())
        assert (await audit(bus, blobs, settled=True)).breaches == ()
