"""The dashboard for Grafana, from a table of its panels.

`python scripts/dashboard.py` writes it (`make docs`); a test says when it is out of date, and when it names a series that is not there.
"""

import json
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

FILE: Final = Path(__file__).parents[1] / "compose/observability/grafana/dashboards/evener.json"
WIDTH: Final = 24
HEIGHT: Final = 8
SOURCE: Final = {"type": "prometheus", "uid": "prometheus"}


class Panel(Struct, frozen=True):
    """A graph over time."""

    title: str
    unit: str
    """Grafana's name of the unit."""
    series: dict[str, str]
    """The legend of each expression, by the expression."""


def rate(series: str, by: str = "") -> str:
    """Return how much a counter grows in a second, summed over all but these labels."""
    return f"sum{f' by ({by})' if by else ''} (rate({series}[$__rate_interval]))"


def quantile(share: float, histogram: str, by: str = "") -> str:
    """Return a quantile of a histogram's observations."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({histogram}_bucket[$__rate_interval])))"


def quantiles(histogram: str) -> dict[str, str]:
    """Return the median and the 99th percentile."""
    return {quantile(0.5, histogram): "p50", quantile(0.99, histogram): "p99"}


ROWS: Final[dict[str, tuple[Panel, ...]]] = {
    "Work": (
        Panel("Sessions", "short", {"max(evener_sessions_running)": "running", "max(evener_sessions_waiting)": "waiting",
                                    "max(evener_fleet_slots)": "slots"}),
        Panel("Tasks that end", "ops", {rate("evener_tasks_ended_total", "outcome"): "{{outcome}}"}),
        Panel("Groups that end", "ops", {rate("evener_groups_total", "result, purpose"): "{{purpose}} {{result}}"}),
        Panel("Attempts lost", "ops", {rate("evener_attempts_lost_total", "reason"): "{{reason}}"}),
    ),
    "Tokens": (
        Panel("Sampled", "short", {rate("evener_tokens_sampled_total", "policy"): "{{policy}}"}),
        Panel("Delivered and excluded", "short", {rate("evener_tokens_delivered_total"): "delivered",
                                                  rate("evener_tokens_excluded_total", "reason"): "{{reason}}"}),
        Panel("Rows", "ops", {rate("evener_rows_total", "fidelity"): "{{fidelity}}"}),
    ),
    "Calls": (
        Panel("Calls that end", "ops", {rate("evener_calls_ended_total", "result"): "{{result}}"}),
        Panel("In flight", "short", {"sum(evener_calls_open)": "open", "sum(evener_calls_waiting)": "wait for an engine"}),
        Panel("Time of a call", "s", quantiles("evener_call_seconds")),
        Panel("Time of a commit", "s", quantiles("evener_commit_seconds")),
        Panel("Sent again by relays", "ops", {rate("evener_relay_sent_again_total"): "sent again"}),
        Panel("Placements", "ops", {rate("evener_placements_total", "placement"): "{{placement}}"}),
    ),
    "Engines": (
        Panel("Answer", "bool_yes_no", {"min by (engine) (evener_engine_answers)": "{{engine}}"}),
        Panel("Answers being sampled", "short", {"sum by (engine) (evener_engine_calls)": "{{engine}}",
                                                 "sum by (engine) (evener_engine_limit)": "{{engine}}: limit"}),
        Panel("Sampling time of a call", "s", quantiles("evener_engine_seconds")),
        Panel("Policy version", "short", {"min by (engine) (evener_engine_version)": "{{engine}}"}),
    ),
    "Fleet": (
        Panel("Instances", "short", {"max by (service, state) (evener_fleet_instances)": "{{service}} {{state}}"}),
        Panel("Partitions that no gateway serves", "short", {"max(evener_fleet_partitions_unserved)": "partitions"}),
        Panel("Partitions by gateway", "short", {"evener_partitions_owned": "{{instance}}"}),
        Panel("Lag", "short", {"sum by (reader, topic) (evener_lag_records)": "{{reader}}: {{topic}}"}),
    ),
    "Trouble": (
        Panel("Crashes", "short", {"sum by (service) (increase(evener_crashes_total[$__rate_interval]))": "{{service}}"}),
        Panel("Dead letters", "short", {"sum by (service, topic) (increase(evener_dead_letters_total[$__rate_interval]))":
                                        "{{service}}: {{topic}}"}),
        Panel("Longest stop of an event loop", "s", {"max by (instance, service) (evener_loop_longest_stop_seconds)":
                                                     "{{service}} {{instance}}"}),
        Panel("Blob store", "s", {quantile(0.99, "evener_blob_seconds", "request"): "{{request}}: p99"}),
        Panel("Requests to the blob store that fail", "ops", {rate("evener_blob_failures_total", "request"): "{{request}}"}),
        Panel("Memory", "bytes", {"process_resident_memory_bytes{job='evener'}": "{{service}} {{instance}}"}),
    ),
}  # fmt: skip


def dashboard() -> dict[str, Any]:
    """Return the dashboard in Grafana's JSON."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, row in ROWS.items():
        panels.append({"id": len(panels) + 1, "type": "row", "title": title, "gridPos": {"h": 1, "w": WIDTH, "x": 0, "y": top}})
        top += 1
        columns = 3 if len(row) % 3 == 0 else 4
        for number, panel in enumerate(row):
            line, column = divmod(number, columns)
            width = WIDTH // columns
            place = {"h": HEIGHT, "w": width, "x": column * width, "y": top + line * HEIGHT}
            panels.append(_graph(panel, len(panels) + 1, place))
        top += HEIGHT * -(-len(row) // columns)
    return {
        "uid": "evener",
        "title": "Evener",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "panels": panels,
    }


def _graph(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
        for index, (expression, legend) in enumerate(panel.series.items())
    ]
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "gridPos": place,
        "targets": targets,
    }


def text() -> str:
    """Return the content of the dashboard's file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
