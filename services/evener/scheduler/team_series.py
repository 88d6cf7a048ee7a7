"""Exports the teams' waiting and running sessions as metrics of the active scheduler."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from evener.service.telemetry import Metrics

NO_TEAMS: Final[Mapping[str, int]] = MappingProxyType({})


def show_teams(metrics: Metrics, *, waiting: Mapping[str, int] = NO_TEAMS, running: Mapping[str, int] = NO_TEAMS) -> None:
    """Set the series of the teams: their sessions that wait, and that hold a slot."""
    metrics.team_sessions.clear()
    for stage, sessions in (("waiting", waiting), ("running", running)):
        for team, count in sessions.items():
            metrics.team_sessions.labels(team, stage).set(count)
