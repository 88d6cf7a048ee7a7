"""Every metric is used by the product and asserted by a test: one that is not tells nobody anything."""

import ast
import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from evener.service.telemetry import Metrics

TREE = Path(__file__).parents[3]
OWNER = re.compile(r"\b_?(metrics|measured)(\(.*\))?$")
"""How the product calls what has the metrics."""
REGISTRY = CollectorRegistry()
METRICS = vars(Metrics(REGISTRY))


def test_every_metric_is_used_by_the_product() -> None:
    files = [file for folder in ("libs", "services") for file in (TREE / folder).rglob("*.py")]
    attributes = [node for file in files for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute)]
    used = {node.attr for node in attributes if node.attr in METRICS and OWNER.search(ast.unparse(node.value))}
    missing = sorted(METRICS.keys() - used)

    assert missing == []


def test_every_metric_is_asserted_by_a_test() -> None:
    """By the name that its users know."""
    tests = "".join(file.read_text() for file in (TREE / "tests").rglob("test_*.py"))
    missing = [family.name for family in REGISTRY.collect() if family.name not in tests]

    assert missing == []
