"""The figures of a run."""

import json

import msgspec
import pytest
from msgspec import structs
from tests.support.builders import T0, built, ended, group, scored

from evener.formats.report.view import result_counts
from evener.formats.summary import summarize
from evener.proto.reasons import TerminationReason
from evener.proto.sessions import RootReason


def test_summary_counts_groups_sessions_tokens_and_time() -> None:
    lost = tuple(
        scored(built("lost", index, size=2, end=TerminationReason.CANCELLED), reward=None, tries=0, grading_seconds=0.0) for index in (0, 1)
    )
    summary = json.loads(
        msgspec.json.encode(summarize([ended(group((1.0, 0.0, None, 0.5)), now=T0 + 5.5), ended(lost, now=T0 + 5.5)], submitted=3))
    )

    assert summary["groups"] == {"submitted": 3, "merged": 1, "dropped": 0}
    assert summary["sessions"] == {"total": 6, "by_end": {"finished": 4, "cancelled": 2}}
    assert summary["rewards"] == {"mean": 0.5, "per_group": {"fix-the-bug": [1.0, 0.0, None, 0.5], "lost": [None, None]}}
    assert summary["tokens"] == {"sampled": 60, "delivered": 30, "excluded": {"untrainable_end": 20, "ungraded": 10}}
    assert (summary["rows"], summary["rows_per_session"], summary["fidelity"]) == (3, 1.0, {"fed": 3, "matched": 0})
    assert summary["seconds"]["agent"] == pytest.approx(3.5)
    assert summary["seconds"]["engine"] == pytest.approx(1.5)
    assert summary["seconds"]["merge"] == pytest.approx(0.5)
    assert set(summary["seconds"]) == {"queue", "prepare", "agent", "engine", "reconstruct", "grade", "merge"}


def test_calls_that_stripped_reasoning_cost_a_row_are_counted_and_shown() -> None:
    """So that a person sees what `thinking` does to a run."""
    one = scored(built("g", 0, size=1))
    calls = (structs.replace(one.trajectory.calls[0], root=RootReason.THINKING_STRIPPED), *one.trajectory.calls[1:])
    stripped = structs.replace(one, trajectory=structs.replace(one.trajectory, calls=calls))
    summary = summarize([ended((stripped,))])

    assert summary.thinking_stripped == 1
    assert result_counts(summary)[-1][-1].endswith(", 1 begun by stripped reasoning")
    assert result_counts(summarize([ended((one,))]))[-1][-1] == "1 fed, 0 matched"


def test_nothing_at_all_has_a_summary_too() -> None:
    summary = summarize([], submitted=2)

    assert (summary.groups.submitted, summary.groups.merged) == (2, 0)
    assert summary.rewards.mean is None
    assert summary.rows_per_session == 0.0
