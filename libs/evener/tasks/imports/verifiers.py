"""Imports the tasks of a taskset of the package `verifiers` (version 1): tasks of text, which its own rewards grade."""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

from evener.tasks.directory import INSTRUCTION, MANIFEST
from evener.tasks.imports.columns import plain, toml
from evener.tasks.imports.port import ImportOptions, RefusedRow, SourceUnreadable, TaskDraft
from evener.tasks.tasksets import PACKAGE_NEEDED, TasksetMissing, needs_runtime, taskset_named

VERIFIERS: Final = "verifiers:"
"""The prefix of a taskset's name: `verifiers:NAME`, the module that exports it."""
MAX_TASKS: Final = 100_000
"""The limit for tasksets without an end."""


def import_verifiers(source: str, options: ImportOptions) -> Iterator[TaskDraft | RefusedRow]:
    """Yield a task for each of a taskset. Raises SourceUnreadable."""
    name = source.removeprefix(VERIFIERS)
    try:
        taskset = taskset_named(name)
    except TasksetMissing as cause:
        msg = f"{source}: {cause}; {PACKAGE_NEEDED}"
        raise SourceUnreadable(msg) from cause
    for number, task in enumerate(islice(taskset, options.limit or MAX_TASKS)):
        own = f"{plain(name)}-{plain(task.data.name or '') or f'{number:05d}'}"
        if (reason := _refusal(task)) is not None:
            yield RefusedRow(name=own, reason=reason)
            continue
        table = {"grader": "verifiers", "taskset": name, "index": str(number), "key": task.key}
        yield TaskDraft(
            name=own, files={INSTRUCTION: _instruction(task).encode(errors="replace"), MANIFEST: toml({"metadata.evener": table})}
        )


def _refusal(task: Any) -> str | None:
    if task.NEEDS_CONTAINER or task.data.image is not None:
        return "it works in a container of verifiers' own"
    if (reward := needs_runtime(task)) is not None:
        return f"its reward {reward!r} looks at verifiers' own runtime"
    if not task.data.prompt_text.strip():
        return "it has no prompt"
    return None


def _instruction(task: Any) -> str:
    return "\n\n".join(text for text in (task.data.system_prompt, task.data.prompt_text) if text)
