"""Bytes that were written once can be read for ever."""

from typing import get_args

import msgspec
import pytest
from tests.unit.proto.golden_events import EVENTS, FOLDER, file_of

from evener.proto.codec import AnyEvent, BadRecord, decode, encode, tag_of
from evener.proto.fleet import EngineLeft
from evener.proto.sessions import Event


@pytest.mark.parametrize("event", EVENTS, ids=tag_of)
def test_bytes_written_earlier_are_the_same_event_with_the_same_content_again(event: Event) -> None:
    """A changed field name, order or default would show here."""
    written = bytes.fromhex(file_of(event).read_text())

    assert encode(decode(written)) == encode(event)
    assert content(encode(event)) == content(written)


def content(written: bytes) -> bytes:
    """Return the same maps with the shortest headers: msgspec's grow with the number of fields that a Struct could have, beyond 15."""
    return msgspec.msgpack.encode(msgspec.msgpack.decode(written))


def test_every_event_has_its_bytes() -> None:
    """A new event comes with a file; no file outlives its event."""
    tags = {tag_of(event) for event in get_args(AnyEvent)}

    assert {tag_of(event) for event in EVENTS} == tags
    assert {file.stem for file in FOLDER.glob("*.hex")} == tags


def test_a_field_of_a_later_version_is_passed_over() -> None:
    """An older reader goes on where a newer writer added a field."""
    newer = {"type": "engine_left.v1", "engine_id": "embedded", "left_at": 1.5, "added_later": [1, 2]}

    assert decode(msgspec.msgpack.encode(newer)) == EngineLeft(engine_id="embedded", left_at=1.5)


def test_unknown_tag_is_a_bad_record() -> None:
    """What is no event of ours is named as such, not guessed at."""
    with pytest.raises(BadRecord, match=r"engine_left\.v9"):
        decode(msgspec.msgpack.encode({"type": "engine_left.v9", "engine_id": "embedded", "left_at": 1.5}))


def test_damaged_bytes_are_a_bad_record() -> None:
    """Half a record is not half an event."""
    whole = encode(EVENTS[0])

    with pytest.raises(BadRecord, match=f"record of {len(whole) // 2} bytes"):
        decode(whole[: len(whole) // 2])
