"""Writes drafts as task directories. A directory is complete and good, or it is not there."""

import shutil
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path, PurePosixPath

from evener.tasks.directory import IGNORED, Task, load
from evener.tasks.errors import TaskError
from evener.tasks.imports.port import Importer, ImportOptions, RefusedRow, TaskDraft
from evener.tasks.pack import FILE_MODE, PROGRAM_MODE


def import_into(folder: Path, importer: Importer, source: str, options: ImportOptions) -> Iterator[Task | RefusedRow]:
    """Write the tasks of a source into a folder; yield each as it is read back, or why it was refused. Raises TaskError, OSError.

    A task that is there already is replaced, so that the same import again changes nothing. Two of one name are refused.
    """
    folder.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    for draft in islice(importer(source, options), options.limit):
        if isinstance(draft, RefusedRow):
            yield draft
        elif draft.name.casefold() in seen:
            yield RefusedRow(name=draft.name, reason="another task of this source has this name")
        else:
            seen.add(draft.name.casefold())
            yield _written(folder, draft)


def _written(folder: Path, draft: TaskDraft) -> Task | RefusedRow:
    with tempfile.TemporaryDirectory(dir=folder, prefix=".import-") as scratch:
        path = Path(scratch) / draft.name
        try:
            _write(path, draft)
            load(path)
        except TaskError as cause:
            return RefusedRow(name=draft.name, reason=str(cause.args[0]).replace(f"task {path}: ", ""))
        target = folder / draft.name
        if target.exists():
            shutil.rmtree(target)
        path.rename(target)
    return load(target)


def _write(path: Path, draft: TaskDraft) -> None:
    if draft.directory is None:
        path.mkdir()
    else:
        load(draft.directory)  # what it may not contain is not copied
        shutil.copytree(draft.directory, path, symlinks=True, ignore=shutil.ignore_patterns(*IGNORED))
    for name, content in draft.files.items():
        if ".." in (parts := PurePosixPath(name).parts) or not parts or parts[0] == "/":
            msg = f"its file {name!r} leaves the task"
            raise TaskError(msg)
        file = path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        file.chmod(PROGRAM_MODE if file.suffix == ".sh" else FILE_MODE)
