"""What dashboards and alerts ask for is what services show."""

import re
from pathlib import Path

import yaml
from prometheus_client import CollectorRegistry, Metric
from scripts import dashboard

from evener.service.telemetry import Metrics

TREE = Path(__file__).parents[3]
OBSERVABILITY = TREE / "compose/observability"
SERIES = re.compile(r"\bevener_[a-z_]+")
GRAPHS = [panel for panel in dashboard.dashboard()["panels"] if panel["type"] == "timeseries"]


def shown() -> set[str]:
    """Return the names of all series, as Prometheus stores them."""
    families = list(_families())
    return {name for family in families for name in (family.name, *(f"{family.name}_{suffix}" for suffix in _suffixes(family.type)))}


def _families() -> list[Metric]:
    registry = CollectorRegistry()
    Metrics(registry)
    return list(registry.collect())


def _suffixes(kind: str) -> tuple[str, ...]:
    return {"counter": ("total",), "histogram": ("bucket", "count", "sum")}.get(kind, ())


def test_dashboard_is_the_one_that_its_table_makes() -> None:
    assert dashboard.FILE.read_text() == dashboard.text(), "run make docs"


def test_dashboard_asks_for_series_that_are_there() -> None:
    asked = {name for panel in GRAPHS for target in panel["targets"] for name in SERIES.findall(target["expr"])}

    assert asked - shown() == set()


def test_panels_do_not_overlap() -> None:
    """Grafana would move them."""
    cells = [
        (x, y)
        for panel in dashboard.dashboard()["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))


def test_alerts_ask_for_series_that_are_there_and_are_explained() -> None:
    """An alert of a series that was renamed never fires."""
    rules = yaml.safe_load((OBSERVABILITY / "alerts.yaml").read_text())["groups"][0]["rules"]
    page = (TREE / "docs/observability.md").read_text()

    assert {name for rule in rules for name in SERIES.findall(rule["expr"])} - shown() == set()
    assert [rule["alert"] for rule in rules if not re.search(rf"\| .*\b{rule['alert']}\b.* \|", page)] == []
