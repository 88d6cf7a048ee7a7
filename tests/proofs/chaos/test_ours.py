"""Tests of the tests: with a defence against our own faults switched off, the audit finds the session that was delivered in spite of them.

One session goes through the pure parts that judge it: its log's fold, the rows, the bridge's core.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from tests.support.one_task import audited, memory, one_task
from tests.support.world import World, user

from evener.audit.findings import Invariant
from evener.proto.reasons import CallFailure, ExitCause, TerminationReason
from evener.proto.sessions import Failures
from evener.tokens import attempt_end as ending
from evener.trainer_bridge import core

REFUSED: Final = (Failures(reason=CallFailure.REFUSED, count=1, detail="stop: not served"),)


def refused(world: World) -> None:
    """One call is answered, another was refused before it was placed."""
    world.ask([user("hi")], "hello")
    world.seal(failures=REFUSED)


def refused_after_placing(world: World) -> None:
    """The engine has no vision."""
    world.ask([user("hi")], "hello")
    _, opened = world.open([user("look")])
    world.fail(opened, CallFailure.REFUSED, "messages[0].content[0]: no vision")
    world.seal()


def unanswered(world: World) -> None:
    """No gateway admitted its last request."""
    world.ask([user("hi")], "hello")
    world.seal(1, unanswered=CallFailure.OVERLOADED)


def engine_lost(world: World) -> None:
    """The last call met no engine."""
    world.ask([user("hi")], "hello")
    _, opened = world.open([user("more")])
    world.fail(opened, CallFailure.ENGINE_UNREACHABLE, "no engine answers")
    world.seal(1)


def silent(world: World) -> None:
    """The harness made no call."""
    world.seal(1)


def judged_by_exit(cause: ExitCause, code: int | None, *_: object) -> TerminationReason:
    """What is judged where nobody asks what the calls met."""
    assert cause is ExitCause.EXITED
    return TerminationReason.FINISHED if code == 0 else TerminationReason.HARNESS_FAILED


PLANTED: Final[dict[str, tuple[Callable[[World], object], tuple[object, str, Any], str]]] = {
    "refused": (refused, (ending, "termination_of", judged_by_exit), "I7: t.0: one of its calls was refused: stop: not served"),
    "refused after placing": (
        refused_after_placing,
        (ending, "termination_of", judged_by_exit),
        "I7: t.0: one of its calls was refused: messages[0].content[0]",
    ),
    "unanswered": (
        unanswered,
        (ending, "termination_of", judged_by_exit),
        "I7: t.0: a request had no answer for a reason of ours, and its agent did not go on: overloaded",
    ),
    "engine lost": (
        engine_lost,
        (ending, "termination_of", judged_by_exit),
        "I7: t.0: a call that its agent waited for failed for a reason of ours: engine_unreachable",
    ),
    "nothing sampled": (silent, (core, "nothing_sampled", lambda _: False), "I7: t.0: its agent sampled nothing"),
}
"""What happens, the defence that is switched off, and what the audit says."""


async def ours(folder: Path, world: World) -> list[str]:
    """Build, score and merge a session, and return what rule I7 of the audit finds."""
    blobs = memory()
    found = await audited(folder, blobs, await one_task(world, blobs))
    return [str(breach) for breach in found.breaches if breach.invariant is Invariant.OURS]


@pytest.mark.parametrize("name", PLANTED)
async def test_audit_notices_a_session_that_is_delivered_in_spite_of_our_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    happening, (owner, defence, off), says = PLANTED[name]
    monkeypatch.setattr(owner, defence, off)
    world = World()
    happening(world)
    assert any(breach.startswith(says) for breach in await ours(tmp_path, world))


@pytest.mark.parametrize("name", [name for name in PLANTED if name not in {"unanswered", "engine lost"}])
async def test_defences_leave_the_audit_nothing_to_find(tmp_path: Path, name: str) -> None:
    """Those of the two others do not come so far: their attempts are run again."""
    world = World()
    PLANTED[name][0](world)
    assert await ours(tmp_path, world) == []


async def test_session_that_met_nothing_of_ours_is_delivered_without_a_word(tmp_path: Path) -> None:
    world = World()
    world.ask([user("hi")], "hello")
    world.seal()
    assert await ours(tmp_path, world) == []
