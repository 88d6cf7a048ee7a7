"""Groups into files. A file is there whole, or as it was before."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from evener.cli.errors import Usage
from evener.client.client import Client
from evener.formats import jsonl, parquet
from evener.formats.summary import Outcome
from evener.proto.errors import EvenerError
from evener.proto.spec import Purpose
from evener.proto.trajectories import GroupMerged

FORMATS: Final = {".jsonl": "jsonl", ".parquet": "parquet"}


class NotWritten(EvenerError):
    """Name another file, or make its folder writable; nothing was changed."""


def format_of(file: Path, given: str | None) -> str:
    """Return the format of a file to write. Raises Usage where its ending does not say."""
    kind = given or FORMATS.get(file.suffix)
    if kind is None:
        msg = f"cannot tell the format of {file.name}: call it *.jsonl or *.parquet, or give --format"
        raise Usage(msg)
    return kind


async def fetch(client: Client, run_id: str | None, purpose: Purpose | None = None) -> list[Outcome]:
    """Return all groups that have ended, in the order of their ids."""
    return sorted([event async for event in client.groups(run_id, purpose=purpose)], key=lambda event: event.group_id)


async def write_groups(file: Path, kind: str, groups: Sequence[Outcome]) -> int:
    """Write the rows of the delivered groups; return how many."""
    merged = [event for event in groups if isinstance(event, GroupMerged)]
    writers: dict[str, Callable[[Sequence[GroupMerged], IO[bytes]], int]] = {"jsonl": _jsonl, "parquet": parquet.write}
    return await asyncio.to_thread(_write, file, lambda sink: writers[kind](merged, sink))


def write_bytes(file: Path, data: bytes) -> None:
    """Write a whole file."""
    _write(file, lambda sink: sink.write(data))


def _write(file: Path, fill: Callable[[IO[bytes]], int]) -> int:
    try:
        with _whole(file) as sink:
            return fill(sink)
    except (OSError, parquet.ParquetRefused) as cause:
        msg = f"cannot write {file}: {(isinstance(cause, OSError) and cause.strerror) or cause}"
        raise NotWritten(msg) from cause


def _jsonl(groups: Sequence[GroupMerged], sink: IO[bytes]) -> int:
    count = 0
    for line in jsonl.lines(groups):
        sink.write(line)
        count += 1
    return count


@contextmanager
def _whole(file: Path) -> Iterator[IO[bytes]]:
    """Yield a file beside `file` that takes its place at the end of this block, or vanishes."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f".{file.name}.", delete=False) as sink:
        draft = Path(sink.name)
        try:
            yield sink
        except BaseException:
            draft.unlink()
            raise
    draft.chmod(0o644)
    draft.replace(file)
