"""Runs planned tasks to their end and shows them."""

import asyncio
from collections.abc import Collection
from pathlib import Path

from evener.cli.progress import GOOD, tell_troubles, watch
from evener.cli.running import evener
from evener.cli.submitting import Wish, plan, submit, trusting
from evener.client.client import Client


async def run_tasks(tasks: Path, wish: Wish, *, trust_local: bool, state: Path | None) -> int:
    """Submit, watch, and return the exit code."""
    planned = await asyncio.to_thread(plan, tasks, wish)  # before anything is started: wrong tasks are told at once
    async with evener(state, lambda: trusting(wish, trust_local=trust_local), sampling=True) as client:
        await submit(client, planned)
        task_ids = {each.task_id for each in planned}
        try:
            views = await watch(client, wish.run_id, task_ids)
        except asyncio.CancelledError:
            await cancel(client, task_ids)
            raise
    tell_troubles(views.values())
    return 0 if all(view.outcome in GOOD for view in views.values()) else 1


async def cancel(client: Client, task_ids: Collection[str]) -> None:
    """Cancel tasks because their user left."""
    for task_id in task_ids:
        await client.cancel(task_id, "its user stopped waiting")
