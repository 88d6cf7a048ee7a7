"""A whole log, read once: what tests look at. Blobs are fetched."""

from collections import defaultdict
from typing import TypeVar

from msgspec import Struct

from evener.blobs.port import Blobs
from evener.bus.port import LogReader, Record
from evener.proto.codec import AnyEvent
from evener.proto.fleet import DeadLetter
from evener.proto.tasks import TaskEnded, TaskSubmitted
from evener.proto.topics import Topic
from evener.proto.trajectories import GroupFailed, GroupMerged, TrajectoryBuilt, TrajectoryScored
from evener.service.events import whole_event

EventT = TypeVar("EventT")


class Read(Struct, frozen=True, eq=False):
    """A record and its event."""

    record: Record
    event: AnyEvent


class Log(Struct, frozen=True, kw_only=True, eq=False):
    """Records by what they are about, in the order of the log."""

    submitted: dict[str, TaskSubmitted]
    """By task id."""
    ended: dict[str, list[TaskEnded]]
    """By task id."""
    sessions: dict[str, list[Read]]
    """The topic `sessions`, by session id."""
    built: dict[str, list[TrajectoryBuilt]]
    """By session id."""
    scored: dict[str, list[TrajectoryScored]]
    """By session id."""
    groups: dict[str, list[tuple[Topic, GroupMerged | GroupFailed]]]
    """By group id, with the topic in which each stands."""
    dead: list[DeadLetter]

    def of_kind(self, session_id: str, kind: type[EventT]) -> list[EventT]:
        """Return a session's events of a kind."""
        return [read.event for read in self.sessions.get(session_id, ()) if isinstance(read.event, kind)]


async def read_log(bus: LogReader, blobs: Blobs) -> Log:
    """Read the topics of tasks and of what became of them. Raises BadRecord, BlobError."""
    sessions: dict[str, list[Read]] = defaultdict(list)
    for read in await _read(bus, blobs, Topic.SESSIONS):
        sessions[read.record.key].append(read)
    tasks = [read.event for read in await _read(bus, blobs, Topic.TASKS)]
    ended = [event for event in tasks if isinstance(event, TaskEnded)]
    built = [read.event for read in await _read(bus, blobs, Topic.BUILT) if isinstance(read.event, TrajectoryBuilt)]
    scored = [read.event for read in await _read(bus, blobs, Topic.SCORED) if isinstance(read.event, TrajectoryScored)]
    groups: dict[str, list[tuple[Topic, GroupMerged | GroupFailed]]] = defaultdict(list)
    for topic in (Topic.MERGED, Topic.KEPT):
        for read in await _read(bus, blobs, topic):
            if isinstance(read.event, GroupMerged | GroupFailed):
                groups[read.event.group_id].append((topic, read.event))
    return Log(
        submitted={event.task_id: event for event in tasks if isinstance(event, TaskSubmitted)},
        ended={task_id: [event for event in ended if event.task_id == task_id] for task_id in {event.task_id for event in ended}},
        sessions=dict(sessions),
        built={name: [one for one in built if one.session_id == name] for name in {one.session_id for one in built}},
        scored={
            name: [one for one in scored if one.trajectory.session_id == name] for name in {one.trajectory.session_id for one in scored}
        },
        groups=dict(groups),
        dead=[read.event for read in await _read(bus, blobs, Topic.DEAD_LETTERS) if isinstance(read.event, DeadLetter)],
    )


async def _read(bus: LogReader, blobs: Blobs, topic: Topic) -> list[Read]:
    return [
        Read(record, await whole_event(record, blobs))
        for partition in range(bus.partitions_of(topic))
        async for record in bus.read(topic, partition, await bus.beginning(topic, partition))
        if record.value is not None
    ]
