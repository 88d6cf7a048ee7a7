"""What `evener rebuild` is asked and says."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from evener.cli.errors import Usage
from evener.cli.moments import moment
from evener.cli.rebuild_report import RebuildReport, request_of
from evener.client.session_views import Rebuilt
from evener.proto.spec import Strategy

NOW = 1_790_000_000.0


@pytest.mark.parametrize(
    ("told", "seconds"),
    [
        ("90s", NOW - 90),
        ("1.5h", NOW - 5400),
        ("7d", NOW - 7 * 86400),
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()),
        ("2026-01-31T12:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC).timestamp()),
    ],
)
def test_since_is_a_duration_or_an_iso_time(told: str, seconds: float) -> None:
    """Both as people write them."""
    assert moment("--since", told, NOW) == seconds


@pytest.mark.parametrize("told", ["", "2", "2 h", "-2h", "noon", "2026-13-01", "0001-01-01"])
def test_other_times_are_refused(told: str) -> None:
    """With the value and what would do."""
    with pytest.raises(Usage, match="neither an ISO time"):
        moment("--since", told, NOW)


def test_named_sessions_are_asked_once() -> None:
    """However often they are named."""
    request = request_of(["a.0", "b.0", "a.0"], None, None, "per_call", whole=True)

    assert (request.sessions, request.strategy, request.whole) == (("a.0", "b.0"), Strategy.PER_CALL, True)


async def test_report_counts_and_fails_for_what_differs(capsys: pytest.CaptureFixture[str]) -> None:
    """One line a session, the reason beside it, and a sum."""
    report = RebuildReport(as_json=False, out=None)
    await report.add(Rebuilt(session_id="a.0", number=1, total=4, equal=True, digest="d" * 64, recorded="d" * 64, rows=2))
    await report.add(Rebuilt(session_id="b.0", number=2, total=4, equal=False, digest="d" * 64, recorded="e" * 64, differs=("answer",)))
    await report.add(Rebuilt(session_id="c.0", number=3, total=4, digest="d" * 64, strategy=Strategy.PER_CALL, recorded="e" * 64))
    code = report.end()
    out = capsys.readouterr().out.splitlines()

    assert out[0] == "a.0  2 rows, 0 tokens, 0 trained  dddddddddddddddd  equal  from the log"
    assert "different in answer; recorded eeeeeeeeeeeeeeee" in out[1]
    assert "not compared (recorded by another strategy)" in out[2]
    assert out[3] == "3 sessions: 1 equal, 1 different, 1 not compared"
    assert code == 1


async def test_nothing_to_rebuild_is_no_failure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """And said."""
    assert RebuildReport(as_json=True, out=tmp_path).end() == 0
    assert "no such session has ended" in capsys.readouterr().err
