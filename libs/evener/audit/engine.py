"""I11: every row against the ledgers of the engines that sampled it."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from evener.audit.engine_ledger import call_of, check_trajectory
from evener.audit.findings import Findings, Invariant
from evener.bus.port import Position
from evener.proto.codec import encode
from evener.proto.errors import ConfigError
from evener.proto.trajectories import TrajectoryBuilt

Entries = list[dict[str, Any]]
"""The requests of one call, as the engine noted them."""


class _Line(Struct, frozen=True, kw_only=True):
    request_id: str


_lines: Final = msgspec.json.Decoder(_Line)


class EngineLedgers(Mapping[str, Entries]):
    """Ledger files of engines, by call id. Only the places of the lines are in memory."""

    def __init__(self, paths: Iterable[Path]) -> None:
        """Raises ConfigError for a file that is no ledger, OSError."""
        self._offsets: dict[str, list[tuple[Path, int]]] = {}
        for path in paths:
            for start, line in _each_line(path):
                try:
                    request_id = _lines.decode(line).request_id
                except (msgspec.DecodeError, UnicodeDecodeError) as cause:
                    msg = f"the line at byte {start} of {path} is not an entry of an engine's ledger: {cause}"
                    raise ConfigError(msg) from cause
                self._offsets.setdefault(call_of(request_id), []).append((path, start))

    def __getitem__(self, call_id: str) -> Entries:
        return [_entry(path, start) for path, start in self._offsets[call_id]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets)


class EngineChecks:
    """Compares trajectories with what engines were fed and sampled."""

    def __init__(self, ledger: Mapping[str, Entries], findings: Findings) -> None:
        self._ledger = ledger
        self._findings = findings
        self._trained: set[str] = set()
        """Calls of the rows so far: they belong to their sessions alone."""

    def check(self, built: TrajectoryBuilt, at: Position) -> None:
        """Check a session's rows, which are inline."""
        self._findings.count(Invariant.ENGINE)
        trained = Counter[tuple[str, int]]()
        for fault in check_trajectory(msgspec.msgpack.decode(encode(built)), self._ledger, trained):
            self._findings.breach(Invariant.ENGINE, built.session_id, fault, at)
        for (request, token), times in trained.items():
            if times > 1:
                self._findings.breach(
                    Invariant.ENGINE, built.session_id, f"token {token} of request {request} is trained {times} times", at
                )
        calls = {call for row in built.rows for call in row.calls}
        for call in calls & self._trained:
            self._findings.breach(Invariant.ENGINE, built.session_id, f"call {call} is in the rows of another session too", at)
        self._trained |= calls


def _each_line(path: Path) -> Iterator[tuple[int, bytes]]:
    start = 0
    with path.open("rb") as file:
        for line in file:
            yield start, line
            start += len(line)


def _entry(path: Path, start: int) -> dict[str, Any]:
    with path.open("rb") as file:
        file.seek(start)
        entry: dict[str, Any] = json.loads(file.readline())
        return entry
