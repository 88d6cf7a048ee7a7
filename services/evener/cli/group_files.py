"""Writes groups into files. A file is complete, or as it was before."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Final, TypeVar

from msgspec import Struct

from evener.cli.errors import Usage
from evener.cli.regraded import read_regraded, with_regraded
from evener.cli.run_cancellation import tasks_of
from evener.client.client import Client
from evener.client.views import TaskView
from evener.formats.neutral import NO_REGRADES, RowsRefused
from evener.formats.port import WrittenRows
from evener.formats.registry import EXTENSIONS, FORMATS, format_named
from evener.proto.errors import EvenerError
from evener.proto.spec import Purpose
from evener.proto.tasks import TaskOutcome
from evener.proto.trajectories import GroupMerged, GroupOutcome

Result = TypeVar("Result")
MAX_REFUSED: Final = 3
"""How many refused groups a warning describes; the result names all."""


class NotWritten(EvenerError):
    """Name another file, or make its folder writable. Nothing was changed."""


class Exported(Struct, frozen=True, kw_only=True):
    """The result of an export."""

    file: str
    groups: int
    """The number of delivered groups of the purpose."""
    rows: int
    without_rows: int
    """The number of delivered groups that have no token to train."""
    failed: int
    """The number of groups of the purpose that failed and therefore have no rows."""
    other_purposes: dict[str, int]
    """The number of delivered groups of each other purpose, which were not exported."""
    refused: dict[str, str] = {}
    """Why a delivered group is not in the file, by group id: the trainer of this format would train it wrongly."""

    def warnings(self) -> Iterator[str]:
        """Yield the reasons why the export has fewer rows than a user may expect."""
        for group_id, why in islice(self.refused.items(), MAX_REFUSED):
            yield f"group {group_id} is not in the file: {why}"
        if len(self.refused) > MAX_REFUSED:
            yield f"{len(self.refused)} of {self.groups} groups were refused; the result names all"
        if not self.groups:
            yield "no such group has ended yet; the file is empty" if not self.failed else "all groups failed; the file is empty"
        elif not self.rows and not self.refused:
            yield "none of the groups has a token that can be trained; the file is empty"
        elif self.without_rows:
            yield f"{self.without_rows} of {self.groups} groups have no token that can be trained, and so no row"
        if self.other_purposes:
            listed = ", ".join(f"{count} {purpose}" for purpose, count in sorted(self.other_purposes.items()))
            yield f"groups of other purposes are not exported ({listed}): use --purpose {min(self.other_purposes)} or --purpose all"


async def export_groups(
    client: Client, file: Path, kind: str, *, run_id: str | None, purpose: Purpose | None, rewards: Path | None = None
) -> Exported:
    """Write the rows of all delivered groups of a run (None: of all) and a purpose (None: of any). Raises NoSuchRun, Usage.

    `rewards`: what `evener regrade` printed, whose rewards replace the recorded ones. Its name is in the rows.
    """
    scores = {} if rewards is None else await asyncio.to_thread(read_regraded, rewards)
    tasks = await tasks_of(client, run_id)
    groups = with_regraded(await fetch(client, run_id, purpose), scores)
    written = await write_groups(file, kind, groups, dict.fromkeys(scores, "" if rewards is None else rewards.stem))
    merged = [event for event in groups if isinstance(event, GroupMerged)]
    without = sum(not event.accounting.delivered for event in merged)
    others = _other_purposes(tasks, purpose)
    failed = len(groups) - len(merged)
    return Exported(
        file=str(file),
        groups=len(merged),
        rows=written.rows,
        without_rows=without,
        failed=failed,
        other_purposes=others,
        refused=written.refused,
    )


def check_folder(file: Path) -> None:
    """Raise NotWritten if the file's folder is missing: it may be misspelt, and is not created."""
    if not file.parent.is_dir():
        msg = f"cannot write {file}: there is no folder {file.parent}"
        raise NotWritten(msg)


def format_of(file: Path, given: str | None) -> str:
    """Return the format of a file to write, by name or by the file's extension. Raises Usage."""
    kind = given or file.suffix.removeprefix(".")
    if kind in FORMATS:
        return kind
    if given:
        msg = f"--format {given!r} is not one of {', '.join(FORMATS)}"
        raise Usage(msg)
    msg = f"cannot tell the format of {file.name}: call it {' or '.join(f'*.{name}' for name in EXTENSIONS)}, or give --format"
    raise Usage(msg)


async def fetch(client: Client, run_id: str | None, purpose: Purpose | None = None) -> list[GroupOutcome]:
    """Return all groups that have ended, in the order of their ids."""
    return sorted([event async for event in client.groups(run_id, purpose=purpose)], key=lambda event: event.group_id)


async def write_groups(file: Path, kind: str, groups: Sequence[GroupOutcome], regrades: Mapping[str, str] = NO_REGRADES) -> WrittenRows:
    """Write the rows of the delivered groups. `regrades`: the name of the regrade whose reward a session has."""
    merged = [event for event in groups if isinstance(event, GroupMerged)]
    return await asyncio.to_thread(_write, file, lambda sink: format_named(kind).write(merged, sink, regrades))


def write_bytes(file: Path, data: bytes) -> None:
    """Write a whole file."""
    _write(file, lambda sink: sink.write(data))


def _other_purposes(tasks: Sequence[TaskView], purpose: Purpose | None) -> dict[str, int]:
    """Return the number of delivered groups of each purpose but this one."""
    delivered = [task.purpose for task in tasks if task.outcome in {TaskOutcome.MERGED, TaskOutcome.KEPT}]
    return dict(Counter(found.value for found in delivered if purpose is not None and found is not purpose))


def _write(file: Path, fill: Callable[[IO[bytes]], Result]) -> Result:
    try:
        with _whole(file) as sink:
            return fill(sink)
    except (OSError, RowsRefused) as cause:
        msg = f"cannot write {file}: {(isinstance(cause, OSError) and cause.strerror) or cause}"
        raise NotWritten(msg) from cause


@contextmanager
def _whole(file: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file that replaces `file` at the end of this block, or is removed."""
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
