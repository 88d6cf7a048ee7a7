"""Cancels the tasks of a run."""

import asyncio
import difflib
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from msgspec import Struct

from evener.client.client import Client
from evener.client.run_end import until_over
from evener.client.views import TaskView
from evener.proto.errors import EvenerError

CANCELLATION_SECONDS: Final = 60.0
"""How long the command waits for the sessions to end."""


class NoSuchRun(EvenerError):
    """`evener runs` lists the runs."""


class Cancelled(Struct, frozen=True, kw_only=True):
    """The result of cancelling a run."""

    run: str
    cancelled: int
    ended_before: int
    ending: int
    """The number of cancelled tasks whose sessions have not ended yet."""


async def cancel_run(client: Client, run_id: str, seconds: float = CANCELLATION_SECONDS) -> Cancelled:
    """Cancel all tasks of a run that have not ended, and wait for their end. Raises NoSuchRun."""
    tasks = await tasks_of(client, run_id)
    going = [task.task_id for task in tasks if task.outcome is None]
    for task_id in going:
        await client.cancel(task_id, "cancelled by its user")
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await until_over(client, run_id)
    ending = sum(task.outcome is None for task in await client.tasks(run_id))
    return Cancelled(run=run_id, cancelled=len(going), ended_before=len(tasks) - len(going), ending=ending)


async def tasks_of(client: Client, run_id: str | None) -> Sequence[TaskView]:
    """Return the tasks of a run (None: of all). Raises NoSuchRun, which suggests the run with the most similar name, if it has none."""
    tasks = await client.tasks(run_id)
    if run_id is None or tasks:
        return tasks
    runs = list(dict.fromkeys(task.run_id for task in await client.tasks()))
    near = difflib.get_close_matches(run_id, runs, n=1)
    raise NoSuchRun(f"there is no run {run_id!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
