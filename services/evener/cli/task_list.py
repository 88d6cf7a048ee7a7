"""Lists the tasks of a folder."""

from pathlib import Path

from msgspec import Struct
from rich.text import Text

from evener.cli.output import tell_each
from evener.graders.oracle import has_oracle
from evener.proto.sandbox import ImageBuild
from evener.sandboxes.registry import BACKENDS, lacks
from evener.tasks.directory import Task, find, load
from evener.tasks.errors import TaskError


class ListedTask(Struct, frozen=True, kw_only=True):
    """A task, as `evener tasks list` shows it. Keys stay; more may be added."""

    task: str
    path: str
    grader: str = ""
    image: str | None = None
    """The image, or `Dockerfile`. None: any will do."""
    oracle: bool = False
    """Whether its solution is known."""
    agent_seconds: float | None = None
    sandboxes: tuple[str, ...] = ()
    """The backends that give what it needs."""
    trouble: str = ""
    """Why it cannot be read, or what no backend gives. Empty: nothing."""


def list_tasks(folder: Path, *, json: bool) -> int:
    """Print all tasks; return the exit code. Raises TaskError if there are none."""
    listed = [_listed(path) for path in find(folder)]
    tell_each(listed, ("task", "grader", "image", "oracle", "sandboxes", "trouble"), _row, json=json or None)
    return 1 if any(not one.grader for one in listed) else 0


def _listed(path: Path) -> ListedTask:
    try:
        task = load(path)
    except TaskError as error:
        return ListedTask(task=path.name, path=str(path), trouble=str(error.args[0]))
    fitting = tuple(name for name in BACKENDS if not lacks(name, task))
    return ListedTask(
        task=task.name,
        path=str(path),
        grader=task.grader.name,
        image=_image(task),
        oracle=has_oracle(task),
        agent_seconds=task.agent_seconds,
        sandboxes=fitting,
        trouble="" if fitting else f"needs {', '.join(task.needs)}",
    )


def _image(task: Task) -> str | None:
    image = task.sandbox.image
    return image.dockerfile if isinstance(image, ImageBuild) else image


def _row(one: ListedTask) -> tuple[str | Text, ...]:
    return one.task, one.grader, one.image or "", "yes" if one.oracle else "", ", ".join(one.sandboxes), one.trouble
