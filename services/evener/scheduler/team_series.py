"""What the teams have in work, as series of the active scheduler."""

from collections import Counter
from collections.abc import Iterable

from evener.proto.state import TaskState
from evener.service.telemetry import Metrics

Sessions = Iterable[tuple[TaskState, int]]
"""Sessions, each as its task and its index."""


def show_teams(metrics: Metrics, *, waiting: Sessions = (), running: Sessions = ()) -> None:
    """Set the series of the teams."""
    metrics.team_sessions.clear()
    for stage, sessions in (("waiting", waiting), ("running", running)):
        for team, count in Counter(task.submitted.team for task, _ in sessions).items():
            metrics.team_sessions.labels(team, stage).set(count)
