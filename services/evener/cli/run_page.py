"""Makes the page of a run from what the services know about it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from evener.cli.group_files import fetch, write_bytes
from evener.cli.run_cancellation import tasks_of
from evener.client.client import Client
from evener.client.views import TaskView
from evener.formats.report.render import render, wanted_ids


class Reported(Struct, frozen=True, kw_only=True):
    """The result of a report."""

    file: str
    bytes: int
    groups: int
    """The number of groups that have ended, including failed ones."""
    not_ended: int
    """The number of tasks that are not in the report yet."""


async def write_report(client: Client, run_id: str, out: Path) -> Reported:
    """Write the page of a run. Raises NoSuchRun, NotWritten."""
    tasks = await tasks_of(client, run_id)
    groups = await fetch(client, run_id)
    ids = wanted_ids(groups)
    pieces = dict(zip(ids, await client.pieces(groups[0].policy, ids), strict=True)) if ids else {}
    page = await asyncio.to_thread(render, groups, pieces, title=f"Run {run_id}", facts=_facts(tasks), submitted=len(tasks))
    data = page.encode()
    await asyncio.to_thread(write_bytes, out, data)
    return Reported(file=str(out), bytes=len(data), groups=len(groups), not_ended=sum(task.outcome is None for task in tasks))


def _facts(tasks: Sequence[TaskView]) -> dict[str, str]:
    """Return the facts under the title."""
    began = min(task.submitted_at for task in tasks)
    ended = max((task.ended_at for task in tasks if task.ended_at is not None), default=began)
    names = {"harness": {task.harness for task in tasks}, "purpose": {task.purpose.value for task in tasks}}
    said = {name: ", ".join(sorted(values)) for name, values in names.items()}
    return said | {"samples": ", ".join(sorted({str(task.samples) for task in tasks})), "wall time": f"{ended - began:.0f} s"}
