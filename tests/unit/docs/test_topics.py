"""The table of topics in the architecture page is that of the code."""

import re
from pathlib import Path

from evener.proto.schema import EVENTS

PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"
ALL = {event.__name__ for events in EVENTS.values() for event in events}


def test_page_names_each_topic_with_its_events() -> None:
    """A line without a topic goes on with the topic above it, and `the same` are the events of the line above it."""
    table = PAGE.read_text().partition("## Topics\n")[2].partition("\n## ")[0]
    named: dict[str, set[str]] = {}
    topics: list[str] = []
    before: set[str] = set()
    for line in table.splitlines():
        if not line.startswith("| ") or line.startswith("| topic "):
            continue
        topic, events, *_ = line.removeprefix("| ").split("|")
        topics = re.findall(r"`([^`]+)`", topic) or topics
        before = before if events.strip().startswith("the same") else set(re.findall(r"\w+", events)) & ALL
        for together in topics:
            named.setdefault(together, set()).update(before)
    expected = {topic.value: {event.__name__ for event in events} for topic, events in EVENTS.items()}
    both = expected["state.scheduler"] | expected["state.bridge"]
    assert named == expected | {"state.scheduler": both, "state.bridge": both}
