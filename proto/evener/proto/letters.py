"""Dead letters as operators see them: requests for them, and the results of a replay. The records are in the topic `dead-letters`."""

import re
from enum import StrEnum
from typing import Annotated, Final

from msgspec import Meta, Struct

MAX_DEAD_LETTERS: Final = 1000
"""The number of letters in one answer, and of replays in one request."""
POSITION_FORM: Final = r"^[a-z][a-z.-]{0,99}/[0-9]{1,9}@[0-9]{1,18}$"
"""The form of a position: TOPIC/PARTITION@OFFSET of the record that could not be read."""
_POSITION: Final = re.compile(r"(?P<topic>[^/]+)/(?P<partition>\d+)@(?P<offset>\d+)")

PositionText = Annotated[str, Meta(pattern=POSITION_FORM)]


def position_text(topic: str, partition: int, offset: int) -> str:
    """Return the position of a record as people write it."""
    return f"{topic}/{partition}@{offset}"


def parse_position(position: str) -> tuple[str, int, int]:
    """Return topic, partition and offset of a position. Raises ValueError for another text."""
    if (found := _POSITION.fullmatch(position)) is None:
        msg = f"{position!r} is not TOPIC/PARTITION@OFFSET, such as sessions/3@17"
        raise ValueError(msg)
    return found["topic"], int(found["partition"]), int(found["offset"])


class LetterQuery(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Which dead letters are wanted. None in a field: any."""

    service: str | None = None
    """The service that gave the record up."""
    topic: str | None = None
    session: str | None = None
    run: str | None = None
    since: float | None = None
    """Unix seconds: letters that were written at this time or later."""
    until: float | None = None
    """Unix seconds: letters that were written before this time."""
    replayed: bool = False
    """Whether letters whose record was replayed are wanted too."""


class LetterView(Struct, frozen=True, kw_only=True):
    """A dead letter: a service could not read a record."""

    position: str
    """TOPIC/PARTITION@OFFSET of the record, by which it is replayed."""
    service: str
    reason: str
    session: str
    """The session that the record belongs to. Empty: it does not say."""
    group: str
    at: float
    """When the letter was written (Unix seconds)."""
    replayed_at: float | None = None
    """When the record was replayed (Unix seconds). None: it was not."""


class Letters(Struct, frozen=True, kw_only=True):
    """The answer of GET /dead-letters."""

    letters: tuple[LetterView, ...]
    """The oldest letters that were wanted, at most 1000."""
    more: int = 0
    """The number of further ones."""


class ReplayRequest(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The body of POST /dead-letters/replay: positions, or all letters of a query."""

    positions: Annotated[tuple[PositionText, ...], Meta(max_length=MAX_DEAD_LETTERS)] = ()
    query: LetterQuery | None = None


class ReplayResult(StrEnum):
    """The result of a replay."""

    REPLAYED = "replayed"
    """The record was appended to its partition again."""
    ALREADY = "already replayed"
    """It was appended earlier. Nothing was done."""
    GONE = "no longer in the log"
    """Neither the record nor its dead letter is in the log, or its content is not in the blob store."""


class ReplayedRecord(Struct, frozen=True, kw_only=True):
    """The result of replaying one record."""

    position: str
    result: ReplayResult
    to: str | None = None
    """The position to which this request appended it. None: it appended nothing."""


class Replays(Struct, frozen=True, kw_only=True):
    """The answer of POST /dead-letters/replay."""

    replays: tuple[ReplayedRecord, ...]
    more: int = 0
    """The number of wanted letters that are still to be replayed: ask again."""
