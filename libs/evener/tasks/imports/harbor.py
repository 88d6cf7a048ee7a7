"""Imports task directories in Harbor's format, whole."""

from collections.abc import Iterator
from pathlib import Path

from evener.tasks.directory import find
from evener.tasks.imports.port import ImportOptions, RefusedRow, TaskDraft


def import_harbor(source: str, options: ImportOptions) -> Iterator[TaskDraft | RefusedRow]:  # noqa: ARG001 - the port's signature
    """Yield a task for each directory in a folder. Raises TaskError if it holds none."""
    for path in find(Path(source)):
        yield TaskDraft(name=path.resolve().name, directory=path)
