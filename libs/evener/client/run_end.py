"""Determines when a run is over: when all of its tasks have ended."""

from collections.abc import Iterable
from contextlib import aclosing
from typing import Self

from msgspec import Struct

from evener.client.client import Client
from evener.client.errors import ClientError
from evener.client.views import TaskView
from evener.proto.spec import Purpose
from evener.proto.tasks import TaskOutcome


class NoGroupDelivered(ClientError):
    """The run is over, and none of its groups can be trained. Mend what the reason names, and submit the tasks under another run id."""


class TaskEnd(Struct, frozen=True):
    """A task of a run. `outcome` None: it has not ended."""

    task_id: str
    purpose: Purpose
    outcome: TaskOutcome | None
    reason: str

    @classmethod
    def of(cls, view: TaskView) -> Self:
        """Return the task of a view."""
        return cls(view.task_id, view.purpose, view.outcome, view.reason)


def is_over(tasks: Iterable[TaskEnd]) -> bool:
    """Return whether there are tasks and all of them have ended."""
    found = tuple(tasks)
    return bool(found) and all(task.outcome is not None for task in found)


def check_delivered(run_id: str, tasks: Iterable[TaskEnd]) -> None:
    """Raise NoGroupDelivered if a run is over and delivered no group to train."""
    found = tuple(tasks)
    wanted = [task for task in found if task.purpose is Purpose.TRAIN]
    if not wanted:
        purposes = " and ".join(sorted({task.purpose.value for task in found}))
        msg = f"run {run_id} is over, and none of its {len(found)} groups is for training: their purpose is {purposes}"
        raise NoGroupDelivered(msg)
    if all(task.outcome is not TaskOutcome.MERGED for task in wanted):
        first = wanted[0]
        why = first.reason or (first.outcome.value if first.outcome else "open")
        msg = f"run {run_id} is over, and none of its {len(wanted)} groups was delivered; {first.task_id}: {why}"
        raise NoGroupDelivered(msg)


async def until_over(client: Client, run_id: str) -> list[TaskEnd]:
    """Wait until the run is over; return its tasks. A run without a task has not begun. Raises ClientError."""
    known = {view.task_id: view for view in await client.patiently(lambda: client.tasks(run_id))}
    after = max((view.cursor for view in known.values()), default=0)
    if not is_over(map(TaskEnd.of, known.values())):
        async with aclosing(client.watch(run_id, after=after)) as views:
            async for view in views:
                known[view.task_id] = view
                if is_over(map(TaskEnd.of, known.values())):
                    break
    return [TaskEnd.of(view) for view in known.values()]
