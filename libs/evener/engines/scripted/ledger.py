"""The ledger of a scripted engine: the ids that it was fed and that it sampled, with which tests compare rows."""

import asyncio
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

Kept = TypeVar("Kept")


class LedgerEntry(Struct, frozen=True, kw_only=True):
    """One request, written when it ends, as one line of JSON."""

    request_id: str
    """The request id that the client sent."""
    fed_ids: tuple[int, ...]
    """The ids of the prompt."""
    sampled_ids: tuple[int, ...]
    """The sampled ids, whether or not anybody received them."""
    logprobs: tuple[float, ...]
    versions: tuple[str, ...]
    """The label of the weights for each sampled id."""
    at: float
    """When the request arrived, in Unix seconds."""
    aborted: bool
    """Whether the client disconnected, or the script or a control request ended the answer."""
    probe: bool = False
    """Whether the request belongs to the check at start, and is not a call."""


_entries: Final = msgspec.json.Decoder(LedgerEntry)


class Ledger:
    """The entries in the order in which their requests ended. They are also appended to a file, if there is one."""

    def __init__(self, path: Path | None, keep: int | None = None) -> None:
        """`keep`: how many of the newest entries memory holds (None: all). The file holds all."""
        self.open = 0
        """The number of requests being sampled now."""
        self._keep = keep
        self._calls = 0
        self._lines: list[bytes] = []
        self._entries: list[LedgerEntry] = []
        self._file = path.open("ab", buffering=0) if path else None
        self._changed = asyncio.Event()

    @property
    def entries(self) -> list[LedgerEntry]:
        """The newest entries. They are kept as JSON until they are read, which is small and fast for thousands of ids."""
        self._entries += [_entries.decode(line) for line in self._lines]
        self._lines.clear()
        self._entries = self._newest(self._entries)
        return self._entries

    def add(self, entry: LedgerEntry) -> None:
        """Append an entry, unbuffered, so that it survives if the process is killed."""
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
