"""The JSON Schema of all events, committed as `proto/schema/events.json`. `python -m evener.proto.schema FILE` writes it.

The wire format is msgpack, in which bytes are raw. In the schema, as in JSON exports, bytes are base64 strings.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct, structs

from evener.proto.codec import AnyEvent, tag_of
from evener.proto.docs import meanings
from evener.proto.fleet import FleetEvent, LetterEvent, PolicyEvent, RunnerLeases
from evener.proto.sessions import DispatchEvent, Event, SessionEvent
from evener.proto.state import DeletedTask, GroupState, TaskState
from evener.proto.tasks import TaskEvent
from evener.proto.topics import TOPICS, Topic
from evener.proto.trajectories import GroupFailed, GroupMerged, TrajectoryBuilt, TrajectoryScored

EVENTS: Final[dict[Topic, tuple[type[Event], ...]]] = {
    Topic.TASKS: get_args(TaskEvent),
    Topic.DISPATCH: get_args(DispatchEvent),
    Topic.SESSIONS: get_args(SessionEvent),
    Topic.BUILT: (TrajectoryBuilt,),
    Topic.SCORED: (TrajectoryScored,),
    Topic.MERGED: (GroupMerged, GroupFailed),
    Topic.KEPT: (GroupMerged, GroupFailed),
    Topic.POLICIES: get_args(PolicyEvent),
    Topic.FLEET: get_args(FleetEvent),
    Topic.LEASES: (RunnerLeases,),
    Topic.SCHEDULER_STATE: (TaskState, DeletedTask),
    Topic.BRIDGE_STATE: (GroupState,),
    Topic.DEAD_LETTERS: get_args(LetterEvent),
}
"""The events of each topic."""


def schema() -> dict[str, Any]:
    """Return the schema of all events, and the topics with their keys and events."""
    (any_event,), components = msgspec.json.schema_components((AnyEvent,), ref_template="#/$defs/{name}")
    for struct in _structs(Struct):
        if struct.__name__ in components:
            _describe(components[struct.__name__], struct)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Events of Evener",
        "topics": {
            str(name): {**structs.asdict(spec), "compacted": spec.compacted, "events": [tag_of(event) for event in EVENTS[name]]}
            for name, spec in TOPICS.items()
        },
        **any_event,
        "$defs": dict(sorted(components.items())),
    }


def text() -> str:
    """Return the schema as text, as it is committed."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def _describe(component: dict[str, Any], struct: type[Struct]) -> None:
    """Add the meaning of each field."""
    encoded = {field.name: field.encode_name for field in structs.fields(struct)}
    for name, meaning in meanings(struct).items():
        if meaning:
            component["properties"][encoded[name]].setdefault("description", meaning)


def _structs(base: type[Struct]) -> Iterator[type[Struct]]:
    for struct in base.__subclasses__():
        if struct.__module__.startswith("evener.proto."):
            yield struct
        yield from _structs(struct)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text())
