"""Server-sent events as a strict client reads them: each has one line of data, perhaps one with its type before it, and an empty line."""

import json
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any, Final, NamedTuple

DONE: Final = "[DONE]"
"""The data of the event that ends a stream of OpenAI Chat."""


class ServerSentEvent(NamedTuple):
    """One event of a stream."""

    type: str | None
    """None: the event names no type."""
    data: str

    def value(self) -> Any:
        """Return the data, which is JSON."""
        return json.loads(self.data)


def events_in(body: bytes) -> list[ServerSentEvent]:
    """Return the events of a stream. Raises AssertionError if the last one is cut, or if a line is neither a type nor data."""
    *blocks, rest = body.decode().split("\n\n")
    assert not rest, f"the stream ends inside an event: {rest[-200:]!r}"
    return [_event(block) for block in blocks]


def values_in(body: bytes) -> list[Any]:
    """Return the JSON of all events of a stream but `[DONE]`."""
    return [event.value() for event in events_in(body) if event.data != DONE]


async def events_from(lines: AsyncIterable[bytes]) -> AsyncIterator[ServerSentEvent]:
    """Yield the events of a stream as they arrive, from its lines."""
    block = b""
    async for line in lines:
        if line != b"\n":
            block += line
            continue
        yield _event(block.decode().removesuffix("\n"))
        block = b""


def _event(block: str) -> ServerSentEvent:
    *types, data = block.split("\n")
    assert len(types) <= 1, f"more than a type and one line of data: {block!r}"
    assert all(line.startswith("event: ") for line in types), f"no type: {block!r}"
    assert data.startswith("data: "), f"no data: {block!r}"
    return ServerSentEvent(types[0].removeprefix("event: ") if types else None, data.removeprefix("data: "))
