"""The importer port: a source goes in, drafts of task directories come out."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from msgspec import Struct

from evener.tasks.errors import TaskError

DataRow = dict[str, Any]
"""A row of a data set: column to value."""


class ImportOptions(Struct, frozen=True, kw_only=True):
    """What the user says of a source. Importers ignore what does not concern them."""

    split: str | None = None
    """The split of a data set on a hub."""
    prompt: str | None = None
    """The column with the instruction; `a.b` is the field `b` of column `a`. None: the first known one that is there."""
    answer: str | None = None
    """The column with the expected answer, likewise."""
    name: str | None = None
    """The column with the name of a task. None: the first known one; without one, tasks are numbered."""
    match: str | None = None
    """How answers are compared, as in `[metadata.evener]`, or `judge` or `http`. None: `number` where it is one, else `exact`."""
    endpoint: str = "judge"
    """The evaluator's endpoint that judges or verifies."""
    rubric: str = "The answer agrees with the reference answer in substance."
    image: str | None = None
    """A template for the image of a row, instead of the dialect's: `{instance_id}`, `{image_key}`, `{repo_name}`."""
    repositories: Path | None = None
    """A folder with clones, `OWNER__NAME` or `NAME`. The files of the base commit are put into the task, which then needs no image."""
    limit: int | None = None
    """The number of tasks to import. None: all."""


class TaskDraft(Struct, frozen=True, kw_only=True):
    """A task directory to be written."""

    name: str
    """The name of its folder."""
    files: dict[str, bytes] = {}
    """Its files, by path."""
    directory: Path | None = None
    """A directory that is copied before the files are written. None: there is none."""


class RefusedRow(Struct, frozen=True, kw_only=True):
    """What could not be imported."""

    name: str
    reason: str


class SourceUnreadable(TaskError):
    """Name a folder of tasks, a file of rows (*.jsonl, *.json, *.parquet), or `hf:NAME` for a data set of the Hugging Face hub."""


Importer = Callable[[str, ImportOptions], Iterator[TaskDraft | RefusedRow]]
"""Reads a source lazily. Raises SourceUnreadable."""
