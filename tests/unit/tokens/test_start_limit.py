"""A start that comes too late is void, by the log's own times: those of its writers are of other clocks."""

import pytest
from msgspec import structs
from tests.support.world import World

from evener.proto.sessions import SessionStarted
from evener.tokens.mark import CLOCKS_DIFFER_SECONDS, LowWater
from evener.tokens.session import START_LIMIT_SECONDS, SessionLog, too_late

HOUR = 3600.0
MINUTE = 60.0
RECORDED = 1_000_000.0
"""When the log took the dispatch."""


def start(**changes: float | None) -> SessionStarted:
    return structs.replace(World().session.starts[1], **changes)


@pytest.mark.parametrize("scheduler_ahead", [-61 * MINUTE, 0.0, 61 * MINUTE])
@pytest.mark.parametrize("runner_ahead", [-61 * MINUTE, 0.0, 61 * MINUTE])
@pytest.mark.parametrize(("took", "void"), [(1.0, False), (HOUR - 1, False), (HOUR + 1, True)])
def test_no_writers_clock_makes_a_start_void_or_good(scheduler_ahead: float, runner_ahead: float, took: float, *, void: bool) -> None:
    """Only the time from record to record counts."""
    event = start(dispatched_at=RECORDED + scheduler_ahead, started_at=RECORDED + took + runner_ahead, dispatch_recorded_at=RECORDED)
    session = SessionLog(event.session_id)

    assert too_late(event, RECORDED + took) is void
    assert session.apply(event, offset=0, record_at=RECORDED + took) is not void


def test_start_of_an_older_runner_is_compared_with_its_dispatch() -> None:
    """It does not say when the log took the dispatch."""
    event = start(dispatched_at=RECORDED, dispatch_recorded_at=None)

    assert not too_late(event, RECORDED + START_LIMIT_SECONDS - 1)
    assert too_late(event, RECORDED + START_LIMIT_SECONDS + 1)


def test_a_seal_is_remembered_for_the_start_limit_by_any_clock() -> None:
    """It carries the time of the gateway that wrote it, which may be another machine's than the reader's."""
    water = LowWater()
    water.sealed("s", 5, RECORDED - CLOCKS_DIFFER_SECONDS)  # by a clock that is behind

    assert water.mark(9, RECORDED + START_LIMIT_SECONDS - 1) == 5
    assert water.is_sealed("s")
    assert water.mark(9, RECORDED + START_LIMIT_SECONDS + 1) == 9
    assert not water.is_sealed("s")
