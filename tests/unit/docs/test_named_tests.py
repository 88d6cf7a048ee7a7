"""The tests that a page names as the proof of a line are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_tests_that_the_page_of_rewards_names_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs" / "rewards.md").read_text()))
    defined = {name for file in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())}

    assert len(named) > 20
    assert named - defined == set()
