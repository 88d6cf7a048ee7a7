"""The ids that a scripted engine was fed and sampled: the truth that tests compare rows with."""

import asyncio
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

Kept = TypeVar("Kept")


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
    """The client left, or the script or the engine's control ended the answer."""
    probe: bool = False
    """Not a call: asked by the check of the engine at start."""


class Written(Struct, frozen=True, kw_only=True):
    """An entry as it is written: the same fields."""

    request_id: str
    fed_ids: list[int]
    sampled_ids: list[int]
    logprobs: list[float]
    versions: list[str]
    at: float
    aborted: bool
    probe: bool


_entries: Final = msgspec.json.Decoder(Entry)


class Ledger:
    """Entries in the order in which their requests ended; appended to a file too, if there is one."""

    def __init__(self, path: Path | None, keep: int | None = None) -> None:
        """`keep`: how many of the newest entries memory holds; None: all. The file holds all."""
        self.open = 0
        """Requests that are being sampled now."""
        self._keep = keep
        self._calls = 0
        self._lines: list[bytes] = []
        self._entries: list[Entry] = []
        self._file = path.open("ab", buffering=0) if path else None
        self._changed = asyncio.Event()

    @property
    def entries(self) -> list[Entry]:
        """The newest entries. Kept as JSON until somebody looks: a prompt of thousands of ids is small and made quickly that way."""
        self._entries += [_entries.decode(line) for line in self._lines]
        self._lines.clear()
        self._entries = self._newest(self._entries)
        return self._entries

    def add(self, entry: Written) -> None:
        """Append an entry. Unbuffered: it is there even if the process is killed."""
        line = msgspec.json.encode(entry)
        self._lines.append(line)
        if self._keep is not None and len(self._lines) > 2 * self._keep:
            self._lines = self._newest(self._lines)
        if self._file:
            self._file.write(line + b"\n")
        self._calls += not entry.probe
        self._changed.set()

    async def until(self, count: int) -> None:
        """Wait until `count` entries that are not probes were added."""
        while self._calls < count:
            self._changed.clear()
            await self._changed.wait()

    def close(self) -> None:
        """Close the file."""
        if self._file:
            self._file.close()

    def _newest(self, kept: list[Kept]) -> list[Kept]:
        return kept if self._keep is None else kept[max(len(kept) - self._keep, 0) :]
