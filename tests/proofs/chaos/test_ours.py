"""Tests of the tests: with a defence against our own faults switched off, the audit finds the session that was delivered in spite of them.

One session goes through the pure parts that judge it: its log's fold, the rows, the bridge's core.
"""

from collections.abc import Callable
from typing import Any, Final

import pytest
from tests.support.audit import audit
from tests.support.builders import T0, ended, scored
from tests.support.log import Log, Read
from tests.support.world import World, user

from evener.blobs.open import open_blobs
from evener.bus.port import Record
from evener.proto.codec import decode
from evener.proto.reasons import CallFailure, ExitCause, TerminationReason
from evener.proto.sessions import Failures
from evener.proto.spec import GraderSpec, HarnessSpec
from evener.proto.tasks import TaskOptions, TaskSubmitted
from evener.proto.trajectories import TrajectoryBuilt
from evener.tokens import session as folding
from evener.trainer_bridge import core
from evener.trainer_bridge.core import TOPIC_OF

REFUSED: Final = (Failures(reason=CallFailure.REFUSED, count=1, detail="stop: not served"),)


def refused(world: World) -> TrajectoryBuilt:
    """One call is answered, another was refused before it was placed."""
    world.ask([user("hi")], "hello")
    return world.seal(failures=REFUSED)


def refused_after_placing(world: World) -> TrajectoryBuilt:
    """The engine has no vision."""
    world.ask([user("hi")], "hello")
    _, opened = world.open([user("look")])
    world.fail(opened, CallFailure.REFUSED, "messages[0].content[0]: no vision")
    return world.seal()


def unanswered(world: World) -> TrajectoryBuilt:
    """No gateway admitted its last request."""
    world.ask([user("hi")], "hello")
    return world.seal(1, unanswered=CallFailure.OVERLOADED)


def engine_lost(world: World) -> TrajectoryBuilt:
    """The last call met no engine."""
    world.ask([user("hi")], "hello")
    _, opened = world.open([user("more")])
    world.fail(opened, CallFailure.ENGINE_UNREACHABLE, "no engine answers")
    return world.seal(1)


def silent(world: World) -> TrajectoryBuilt:
    """The harness made no call."""
    return world.seal(1)


def judged_by_exit(cause: ExitCause, code: int | None, *_: object) -> TerminationReason:
    """What is judged where nobody asks what the calls met."""
    assert cause is ExitCause.EXITED
    return TerminationReason.FINISHED if code == 0 else TerminationReason.HARNESS_FAILED


PLANTED: Final[dict[str, tuple[Callable[[World], TrajectoryBuilt], tuple[object, str, Any], str]]] = {
    "refused": (refused, (folding, "termination_of", judged_by_exit), "I7: a call of it was refused: stop: not served"),
    "refused after placing": (
        refused_after_placing,
        (folding, "termination_of", judged_by_exit),
        "I7: a call of it was refused: messages[0].content[0]",
    ),
    "unanswered": (
        unanswered,
        (folding, "termination_of", judged_by_exit),
        "I7: its last request had no answer for a reason of ours: overloaded",
    ),
    "engine lost": (
        engine_lost,
        (folding, "termination_of", judged_by_exit),
        "I7: its last call failed for a reason of ours: engine_unreachable",
    ),
    "nothing sampled": (silent, (core, "nothing_sampled", lambda _: False), "I7: its agent sampled nothing"),
}
"""What happens, the defence that is switched off, and what the audit says."""


async def ours(built: TrajectoryBuilt, world: World) -> list[str]:
    """Score and merge a session, and return what rule I7 of the audit finds."""
    first = scored(built)
    group = ended([first], now=T0)
    options = TaskOptions(harness=HarnessSpec(name="script"), grader=GraderSpec(name="answer"))
    reads = [
        Read(Record(topic="sessions", partition=0, offset=offset, key="t.0", value=data, headers=(), timestamp_ms=100_000), decode(data))
        for offset, data in enumerate(world.log, start=1)
    ]
    log = Log(
        submitted={group.task_id: TaskSubmitted(task_id=group.task_id, task=None, options=options, submitted_at=T0)},
        ended={},
        sessions={"t.0": reads},
        built={"t.0": [built]},
        scored={"t.0": [first]},
        groups={group.group_id: [(TOPIC_OF[group.purpose], group)]},
        dead=[],
    )
    return [fault for fault in await audit(log, open_blobs("memory://")) if "I7" in fault]


@pytest.mark.parametrize("name", PLANTED)
async def test_audit_notices_a_session_that_is_delivered_in_spite_of_our_fault(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    happening, (owner, defence, off), says = PLANTED[name]
    monkeypatch.setattr(owner, defence, off)
    world = World()
    assert any(says in fault for fault in await ours(happening(world), world))


@pytest.mark.parametrize("name", [name for name in PLANTED if name not in {"unanswered", "engine lost"}])
async def test_defences_leave_the_audit_nothing_to_find(name: str) -> None:
    """Those of the two others do not come so far: their attempts are run again."""
    world = World()
    assert await ours(PLANTED[name][0](world), world) == []


async def test_session_that_met_nothing_of_ours_is_delivered_without_a_word() -> None:
    world = World()
    world.ask([user("hi")], "hello")
    assert await ours(world.seal(), world) == []
