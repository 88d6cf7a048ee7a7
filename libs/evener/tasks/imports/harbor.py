"""Imports task directories in Harbor's format, whole: of a folder, or of a data set that the program `harbor` downloads by name."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from evener.tasks.directory import find
from evener.tasks.imports.port import ImportOptions, RefusedRow, SourceUnreadable, TaskDraft

REGISTRY: Final = "harbor:"
"""The prefix of a data set's name in Harbor's registry: `harbor:NAME`, or `harbor:NAME@VERSION`."""
PROGRAM: Final = "harbor"
DOWNLOAD_SECONDS: Final = 3600.0


def import_harbor(source: str, options: ImportOptions) -> Iterator[TaskDraft | RefusedRow]:  # noqa: ARG001 - the port's signature
    """Yield a task for each directory in a folder. Raises TaskError if it holds none, SourceUnreadable."""
    if not source.startswith(REGISTRY):
        yield from _of_folder(Path(source))
        return
    with tempfile.TemporaryDirectory(prefix="evener-harbor-") as folder:
        _download(source.removeprefix(REGISTRY), Path(folder))
        for data_set in sorted(Path(folder).iterdir()):
            yield from _of_folder(data_set)


def _of_folder(folder: Path) -> Iterator[TaskDraft]:
    for path in find(folder):
        yield TaskDraft(name=path.resolve().name, directory=path)


def _download(name: str, into: Path) -> None:
    """Have `harbor` download a data set. It needs another Python than ours, so that it is asked as a program. Raises SourceUnreadable."""
    if name.startswith("-") or (program := shutil.which(PROGRAM)) is None:
        msg = f"{REGISTRY}{name} needs the program `{PROGRAM}` (the package `harbor`, in an environment of its own)"
        raise SourceUnreadable(msg)
    command = (program, "dataset", "download", name, "--export", "--output-dir", str(into))
    try:
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=DOWNLOAD_SECONDS)
    except (OSError, subprocess.SubprocessError) as cause:
        said = (getattr(cause, "stderr", None) or b"") + (getattr(cause, "stdout", None) or b"") or str(cause).encode()
        msg = f"{REGISTRY}{name}: {said[-1000:].decode(errors='replace').strip()}"
        raise SourceUnreadable(msg) from cause
