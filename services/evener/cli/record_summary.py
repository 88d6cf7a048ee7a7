"""The result of a recording in one line, with a sentence for everything that is not in its rows."""

from collections.abc import Iterator
from typing import Any

from evener.cli.session_remarks import remarks
from evener.client.session_views import SessionView
from evener.client.views import TaskView
from evener.proto.reasons import TerminationReason


def line(view: SessionView, task: TaskView | None, exit_code: int) -> dict[str, Any]:
    """Return the last line of `evener record`. `task` None: the task's end was not seen."""
    told = view.told
    accounting = told.accounting
    return {
        "session": view.session_id,
        "exit_code": exit_code,
        "termination_reason": view.trajectory.termination_reason if view.trajectory is not None else "open",
        "rewards": task.rewards if task is not None else (),
        "calls": len(view.calls),
        "rows": len(told.rows),
        "tokens": accounting.sampled,
        "excluded": accounting.excluded,
        "show": f"evener show {view.session_id}",
    }


def words(view: SessionView) -> Iterator[str]:
    """Yield a sentence for each thing that the line alone would hide."""
    told, name = view.told, f"session {view.session_id}"
    if view.trajectory is None:
        yield f"{name} has not ended yet: these figures are what they would be if it ended now"
    elif view.trajectory.detail and (view.calls or view.trajectory.termination_reason is not TerminationReason.FINISHED):
        yield f"{name} ended as {view.trajectory.termination_reason}: {view.trajectory.detail}"
    failed = [f"{call.failure}{f' ({call.detail})' if call.detail else ''}" for call in view.calls if call.failure is not None]
    if failed:
        yield f"{len(failed)} of its {len(view.calls)} calls had no answer: {', '.join(dict.fromkeys(failed))}"
    if left := sum(told.accounting.excluded.values()):
        reasons = ", ".join(f"{tokens} {reason}" for reason, tokens in told.accounting.excluded.items())
        yield f"{left} of its {told.accounting.sampled} sampled tokens are in no row: {reasons}"
    if not view.calls:
        yield from _without_a_call(view)
    yield from told.inconsistencies
    yield from remarks(view)
    if view.proposed is not None:
        yield f"`evener show {view.session_id}` shows these quirks as a file for --quirks"


def _without_a_call(view: SessionView) -> Iterator[str]:
    left = view.trajectory.exit if view.trajectory is not None else None
    refused = () if left is None else left.failures
    for failed in refused:
        times = "a request" if failed.count == 1 else f"{failed.count} requests"
        yield f"session {view.session_id} has no call: {times} got no answer, as {failed.reason} ({failed.detail})"
    if not refused:
        yield f"session {view.session_id} has no call: the program asked no model, or did not use the base URL that it was given"
