"""The committed schema is that of the code, and every field of every event says what it means."""

from pathlib import Path
from typing import get_args

import pytest

from evener.proto.codec import AnyEvent
from evener.proto.schema import EVENTS, schema, text
from evener.proto.topics import TOPICS

ROOT = Path(__file__).parents[3]


def test_committed_schema_is_current() -> None:
    """After a change of an event: `make schema`."""
    assert (ROOT / "proto/schema/events.json").read_text() == text()


def test_every_event_stands_on_a_topic() -> None:
    """The registry of topics and the union of events are one thing."""
    assert set(EVENTS) == set(TOPICS)
    assert {event for events in EVENTS.values() for event in events} == set(get_args(AnyEvent))


@pytest.mark.parametrize("name", sorted(schema()["$defs"]))
def test_every_field_says_what_it_means(name: str) -> None:
    """By its own docstring, by the type that documents itself, or by a word that means the same everywhere."""
    component = schema()["$defs"][name]

    assert component["description"]
    assert not [field for field, told in component.get("properties", {}).items() if field != "type" and "description" not in told]
