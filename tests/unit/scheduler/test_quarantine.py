"""Runners that lose sandboxes in a row get no sessions, then one at a time."""

from typing import Final

from evener.proto.fleet import Heartbeat
from evener.proto.reasons import TerminationReason
from evener.scheduler.core import LEASE_EXPIRED, EndedAttempt
from evener.scheduler.quarantine import LONGEST_QUARANTINE_SECONDS, Quarantine

LOST, RAN = TerminationReason.SANDBOX_LOST, TerminationReason.FINISHED
FIRST_SECONDS: Final = 30.0


def runner(runner_id: str = "r", boot_id: str = "b") -> Heartbeat:
    return Heartbeat(instance_id=runner_id, service="sandbox_runner", boot_id=boot_id, capacity=4, at=0)


def ended(reason: str, number: int, runner_id: str = "r") -> EndedAttempt:
    return EndedAttempt(session_id=f"t.{number}", runner_id=runner_id, reason=reason, detail="no blob", lost=reason is not RAN)


def places(quarantine: Quarantine, now: float, beat: Heartbeat | None = None) -> int:
    (limited,) = quarantine.limited([beat or runner()], now=now)
    return limited.capacity


def after(*reasons: str, now: float = 0.0) -> Quarantine:
    """Return a quarantine after these ends of different sessions at one runner."""
    quarantine = Quarantine(losses=3, seconds=FIRST_SECONDS)
    quarantine.read([ended(reason, number) for number, reason in enumerate(reasons)], [runner()], now=now)
    return quarantine


def test_runner_that_loses_three_in_a_row_gets_none_for_a_while_then_one_at_a_time() -> None:
    """The sessions of others go on."""
    quarantine = after(LOST, LOST, LOST)
    assert places(quarantine, 29.9) == 0
    assert places(quarantine, 29.9, runner("other")) == 4
    assert quarantine.seconds_left("r", now=20.0) == 10.0
    assert places(quarantine, 30.0) == 1
    assert quarantine.seconds_left("r", now=30.0) == 0.0
    assert quarantine.count() == 1


def test_session_that_runs_ends_the_row() -> None:
    """What is lost now and then is no reason; what says nothing about the runner changes nothing."""
    assert places(after(LOST, LOST, RAN, LOST, LOST), 0.0) == 4
    others = (TerminationReason.INFRASTRUCTURE, TerminationReason.STOPPED, LEASE_EXPIRED, TerminationReason.CANCELLED)
    assert places(after(LOST, LOST, *others), 0.0) == 4
    assert places(after(LOST, *others, LOST, LOST), 0.0) == 0


def test_one_session_that_is_lost_again_and_again_is_no_reason() -> None:
    """It may be the session."""
    quarantine = Quarantine(losses=3, seconds=FIRST_SECONDS)
    quarantine.read([ended(LOST, 1)] * 5, [runner()], now=0.0)
    assert places(quarantine, 0.0) == 4


def test_pauses_double_until_a_session_has_run() -> None:
    """The one session after a pause decides. The next row is counted from its beginning."""
    quarantine = after(LOST, LOST, LOST)
    quarantine.read([ended(LOST, 9)], [runner()], now=31.0)
    assert (places(quarantine, 90.9), places(quarantine, 91.0)) == (0, 1)
    for number in range(10):
        quarantine.read([ended(LOST, 10 + number)], [runner()], now=10_000.0 * (number + 1))
    assert quarantine.seconds_left("r", now=100_000.0) == LONGEST_QUARANTINE_SECONDS
    quarantine.read([ended(RAN, 30)], [runner()], now=200_000.0)
    assert (places(quarantine, 200_000.0), quarantine.count()) == (4, 0)
    quarantine.read([ended(LOST, 31), ended(LOST, 32)], [runner()], now=200_000.0)
    assert places(quarantine, 200_000.0) == 4


def test_what_began_before_a_pause_changes_nothing_in_it() -> None:
    """Its places were full: some of these are lost, some still end well."""
    quarantine = after(LOST, LOST, LOST, LOST, LOST)
    assert quarantine.seconds_left("r", now=0.0) == FIRST_SECONDS
    quarantine.read([ended(RAN, 9)], [runner()], now=1.0)
    assert places(quarantine, 1.0) == 0


def test_runner_that_was_started_again_gets_sessions_at_once() -> None:
    """Somebody mended it."""
    quarantine = after(LOST, LOST, LOST)
    quarantine.read([], [runner(boot_id="next")], now=1.0)
    assert places(quarantine, 1.0, runner(boot_id="next")) == 4
