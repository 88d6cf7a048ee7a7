"""Events to bytes and back. Encoders are built once. Decoding raises `BadRecord` for everything that is not an event."""

from typing import Any, Final

import msgspec

from evener.proto.errors import EvenerError
from evener.proto.fleet import FleetEvent, LetterEvent, PolicyEvent, RunnerLeases
from evener.proto.framing import framed
from evener.proto.relay import AnyFrame
from evener.proto.sessions import DispatchEvent, Event, SessionEvent
from evener.proto.state import DeletedTask, GroupState, TaskState
from evener.proto.tasks import TaskEvent
from evener.proto.trajectories import GroupFailed, GroupMerged, TrajectoryBuilt, TrajectoryScored

TrajectoryEvent = TrajectoryBuilt | TrajectoryScored | GroupMerged | GroupFailed
StateEvent = TaskState | DeletedTask | GroupState
AnyEvent = TaskEvent | DispatchEvent | SessionEvent | TrajectoryEvent | PolicyEvent | FleetEvent | RunnerLeases | StateEvent | LetterEvent


class BadRecord(EvenerError):
    """The bytes are not an event of this version. The record goes to `dead-letters`; replay it with a version that knows its type."""


NOT_AN_EVENT: Final = (msgspec.DecodeError, UnicodeDecodeError)
"""The errors that decoding damaged bytes raises. Text that is not UTF-8 raises an error of its own."""

_encoder: Final = msgspec.msgpack.Encoder(order="deterministic")
_decoder: Final[msgspec.msgpack.Decoder[AnyEvent]] = msgspec.msgpack.Decoder(AnyEvent)
_frames: Final[msgspec.msgpack.Decoder[AnyFrame]] = msgspec.msgpack.Decoder(AnyFrame)


def encode(event: Event) -> bytes:
    """Return the event as a msgpack map. Equal events give equal bytes."""
    return _encoder.encode(event)


def decode(data: bytes) -> AnyEvent:
    """Return the event in `data`. Raises `BadRecord` if there is none."""
    try:
        return _decoder.decode(data)
    except NOT_AN_EVENT as cause:
        msg = f"record of {len(data)} bytes: {cause}"
        raise BadRecord(msg) from cause


def tag_of(event: Event | type[Event]) -> str:
    """Return the event's type as the record and its header name it."""
    tag: Any = event.__struct_config__.tag
    return str(tag)


def encode_frame(frame: AnyFrame) -> bytes:
    """Return the frame, preceded by its length as 4 big-endian bytes."""
    return framed(_encoder.encode(frame))


def decode_frame(body: bytes) -> AnyFrame:
    """Return the frame in `body`, which does not include the length. Raises `BadRecord`."""
    try:
        return _frames.decode(body)
    except NOT_AN_EVENT as cause:
        msg = f"frame of {len(body)} bytes: {cause}"
        raise BadRecord(msg) from cause
