"""Imports tasks and tells what became of each."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from evener.cli.group_files import NotWritten
from evener.cli.output import tell
from evener.service.exits import complain
from evener.tasks.directory import Task
from evener.tasks.imports.port import ImportOptions, RefusedRow
from evener.tasks.imports.registry import format_of_source, importer_for
from evener.tasks.imports.writing import import_into

MAX_REFUSALS: Final = 20
"""The number of refusals that are told one by one."""


class Imported(Struct, frozen=True, kw_only=True):
    """What `evener tasks import` prints. Keys stay; more may be added."""

    folder: str
    format: str
    tasks: int
    with_oracle: int
    """The number of tasks that bring a solution, so that `evener tasks validate` can try it."""
    needs: dict[str, int]
    """What the tasks need that no sandbox gives yet, with the number of tasks."""
    refused: int


async def import_tasks(source: str, out: Path, kind: str | None, options: ImportOptions) -> int:
    """Import, and print the result; return the exit code. Raises TaskError."""
    imported = await asyncio.to_thread(_imported, source, out, kind, options)
    tell(imported)
    return 1 if imported.refused else 0


def _imported(source: str, out: Path, kind: str | None, options: ImportOptions) -> Imported:
    kind = kind or format_of_source(source, options.split)
    tasks = oracles = refused = 0
    needs: dict[str, int] = {}
    for each in _each(source, out, kind, options):
        if isinstance(each, RefusedRow):
            refused += 1
            if refused <= MAX_REFUSALS:
                complain(f"{each.name} is not imported: {each.reason}")
            continue
        tasks += 1
        oracles += each.solution is not None
        for need in each.needs:
            needs[need] = needs.get(need, 0) + 1
    if refused > MAX_REFUSALS:
        complain(f"{refused - MAX_REFUSALS} more are not imported")
    return Imported(folder=str(out), format=kind, tasks=tasks, with_oracle=oracles, needs=needs, refused=refused)


def _each(source: str, out: Path, kind: str, options: ImportOptions) -> Iterator[Task | RefusedRow]:
    try:
        yield from import_into(out, importer_for(kind), source, options)
    except OSError as cause:
        msg = f"cannot write tasks into {out}: {cause.strerror or cause}"
        raise NotWritten(msg) from cause
