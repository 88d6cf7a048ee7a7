"""Groups into files. A file is there whole, or as it was before."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from msgspec import Struct

from evener.cli.cancelling import no_such_run
from evener.cli.errors import Usage
from evener.client.client import Client
from evener.client.views import TaskView
from evener.formats import jsonl, parquet
from evener.formats.summary import Outcome
from evener.proto.errors import EvenerError
from evener.proto.spec import Purpose
from evener.proto.tasks import TaskOutcome
from evener.proto.trajectories import GroupMerged

FORMATS: Final = {".jsonl": "jsonl", ".parquet": "parquet"}


class NotWritten(EvenerError):
    """Name another file, or make its folder writable; nothing was changed."""


class Exported(Struct, frozen=True, kw_only=True):
    """What an export wrote, and what it left out."""

    file: str
    groups: int
    """Delivered ones of the purpose."""
    rows: int
    without_rows: int
    """Delivered ones that have no token to train."""
    failed: int
    """Groups of the purpose that failed, and so have no rows."""
    other_purposes: dict[str, int]
    """Delivered groups that were left out for their purpose."""

    def warnings(self) -> Iterator[str]:
        """Yield what a user should know who expected more."""
        if not self.groups:
            yield "no such group has ended yet; the file is empty" if not self.failed else "all groups failed; the file is empty"
        elif not self.rows:
            yield "none of the groups has a token that can be trained; the file is empty"
        elif self.without_rows:
            yield f"{self.without_rows} of {self.groups} groups have no token that can be trained, and so no row"
        if self.other_purposes:
            listed = ", ".join(f"{count} {purpose}" for purpose, count in sorted(self.other_purposes.items()))
            yield f"groups of other purposes are left out ({listed}): --purpose {min(self.other_purposes)} or --purpose all takes them"


async def export_groups(client: Client, file: Path, kind: str, run_id: str | None, purpose: Purpose | None) -> Exported:
    """Write the rows of all delivered groups of a run (None: of all) and a purpose (None: of any). Raises NoSuchRun."""
    tasks = await client.tasks(run_id)
    if run_id is not None and not tasks:
        raise no_such_run(run_id, await client.tasks())
    groups = await fetch(client, run_id, purpose)
    rows = await write_groups(file, kind, groups)
    merged = [event for event in groups if isinstance(event, GroupMerged)]
    without = sum(not event.accounting.delivered for event in merged)
    others = _other_purposes(tasks, purpose)
    failed = len(groups) - len(merged)
    return Exported(file=str(file), groups=len(merged), rows=rows, without_rows=without, failed=failed, other_purposes=others)


def check_folder(file: Path) -> None:
    """Raise NotWritten where the file's folder is missing: a misspelt one is not made."""
    if not file.parent.is_dir():
        msg = f"cannot write {file}: there is no folder {file.parent}"
        raise NotWritten(msg)


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


def _other_purposes(tasks: Sequence[TaskView], purpose: Purpose | None) -> dict[str, int]:
    """Return how many groups were delivered of each purpose but this one."""
    delivered = [task.purpose for task in tasks if task.outcome in {TaskOutcome.MERGED, TaskOutcome.KEPT}]
    return dict(Counter(found.value for found in delivered if purpose is not None and found is not purpose))


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
