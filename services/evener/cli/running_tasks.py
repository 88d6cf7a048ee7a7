"""Runs planned tasks to their end and shows them."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from evener.cli.foreseeing import Foresight
from evener.cli.leaving import leaving
from evener.cli.progress import tell_troubles, watch
from evener.cli.run_summary import exit_code, summarize_run, tell_summary
from evener.cli.running import evener
from evener.cli.submitting import Planned, Wish, plan, submit, trusting
from evener.client.client import Client
from evener.service.exits import complain


async def run_tasks(tasks: Path, wish: Wish, *, trust_local: bool, state: Path | None) -> int:
    """Submit, watch, and return the exit code. Whoever leaves before the end is told how the run goes on."""
    planned = await asyncio.to_thread(plan, tasks, wish)  # before anything is started: wrong tasks are told at once
    brought = reached = False

    def up() -> tuple[str, ...]:
        nonlocal brought
        brought = True
        return trusting(wish, trust_local=trust_local)

    with leaving() as asked:
        try:
            async with evener(state, up, sampling=True) as client:
                reached = True
                try:
                    return await _run(client, wish, planned)
                except asyncio.CancelledError:
                    if asked.number is not None:
                        complain(left(wish.run_id, None if brought else client.url, state))
                    raise
        except asyncio.CancelledError:
            if asked.number is None:
                raise
            if not reached:
                complain("left before anything was submitted")
            return asked.taken_back()


async def _run(client: Client, wish: Wish, planned: Sequence[Planned]) -> int:
    foresight = Foresight(client, wish)
    await foresight.look()
    await submit(client, planned)
    views = await watch(client, wish.run_id, {each.task_id for each in planned}, foresight)
    tell_troubles(views.values())
    tell_summary(summarize_run(wish.run_id, views.values()))
    return exit_code(views.values())


def left(run_id: str, url: str | None, state: Path | None) -> str:
    """Return what somebody is told who leaves a run. `url`: of the services that it goes on in; None: they end with this command."""
    where = f"run {run_id} goes on in the services at {url}" if url else f"run {run_id} stops where it is (Ctrl-C again: at once)"
    same = "shows it again" if url else "goes on with it"
    cancel = f"evener cancel {run_id}" + (f" --state {state}" if state else "")
    return f"{where}; the same command with --run-id {run_id} {same}, `{cancel}` ends it"
