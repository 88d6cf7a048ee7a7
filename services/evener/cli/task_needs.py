"""Checks that a sandbox gives a task what it needs."""

from collections.abc import Iterable

from evener.cli.errors import Usage
from evener.proto.errors import EvenerError
from evener.sandboxes.registry import BACKENDS, lacks
from evener.tasks.directory import Task


class TaskNeedsMore(EvenerError):
    """Choose another sandbox (`--sandbox`), use an Evener that has one, or leave the task out."""


def check_name(sandbox: str | None) -> None:
    """Raise Usage for a sandbox that is no backend."""
    if sandbox is not None and sandbox not in BACKENDS:
        msg = f"--sandbox {sandbox!r} is not one of {', '.join(BACKENDS)}"
        raise Usage(msg)


def check_needs(task: Task, backends: Iterable[str]) -> None:
    """Raise TaskNeedsMore if none of the backends can give a task what it needs."""
    lacking = {backend: lacks(backend, task) for backend in backends}
    if all(lacking.values()):
        giver = f"the sandbox `{next(iter(lacking))}` cannot" if len(lacking) == 1 else "no sandbox can"
        least: tuple[str, ...] = min(lacking.values(), key=len)
        msg = f"task {task.path} needs what {giver} give: {', '.join(least)}"
        raise TaskNeedsMore(msg)
