"""The ids that a scripted engine was fed and sampled: the truth that tests compare rows with."""

import asyncio
from pathlib import Path

import msgspec
from msgspec import Struct


class Entry(Struct, frozen=True, kw_only=True):
    """One request, written when it ends. JSON, one a line."""

    request_id: str
    """As the client sent it."""
    fed_ids: tuple[int, ...]
    """The prompt."""
    sampled_ids: tuple[int, ...]
    """What was sampled, also if nobody received it."""
    logprobs: tuple[float, ...]
    versions: tuple[str, ...]
    """The label of the weights, per sampled id."""
    at: float
    """Unix seconds of the request's arrival."""
    aborted: bool
    """The client left, or the script cut the answer."""
    probe: bool = False
    """Not a call: asked by the check of the engine at start."""


class Ledger:
    """Entries in the order in which their requests ended; appended to a file too, if there is one."""

    def __init__(self, path: Path | None) -> None:
        self.entries: list[Entry] = []
        self.open = 0
        """Requests that are being sampled now."""
        self._file = path.open("ab", buffering=0) if path else None
        self._changed = asyncio.Event()

    def add(self, entry: Entry) -> None:
        """Append an entry. Small and unbuffered: it is there even if the process is killed."""
        self.entries.append(entry)
        if self._file:
            self._file.write(msgspec.json.encode(entry) + b"\n")
        self._changed.set()

    async def until(self, count: int) -> None:
        """Wait until there are `count` entries that are not probes."""
        while sum(not entry.probe for entry in self.entries) < count:
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()
