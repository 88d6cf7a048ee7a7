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
from evener.proto.errors import EvenerError
from evener.service.exits import complain


async def run_tasks(tasks: Path, wish: Wish, *, trust_local: bool, state: Path | None) -> int:
    """Submit, watch, and return the exit code. Whoever leaves before the end is told how the run goes on."""
    planned = await asyncio.to_thread(plan, tasks, wish)  # before anything is started: wrong tasks are told at once
    brought = reached = submitted = False

    def up() -> tuple[str, ...]:
        nonlocal brought
        brought = True
        return trusting(wish, trust_local=trust_local)

    with leaving() as asked:
        try:
            async with evener(state, up, sampling=True) as client:
                reached = True
                try:
                    foresight = Foresight(client, wish)
                    await foresight.look()
                    await submit(client, planned)
                    submitted = True
                    return await _watch(client, wish, planned, foresight)
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
        except EvenerError:
            if submitted:  # the error's own line follows
                complain(f"run {wish.run_id} is not over, and nothing of it is lost; {_again(wish.run_id, 'goes on with it', state)}")
            raise


async def _watch(client: Client, wish: Wish, planned: Sequence[Planned], foresight: Foresight) -> int:
    views = await watch(client, wish.run_id, {each.task_id for each in planned}, foresight)
    tell_troubles(views.values())
    tell_summary(summarize_run(wish.run_id, views.values()))
    return exit_code(views.values())


def left(run_id: str, url: str | None, state: Path | None) -> str:
    """Return what somebody is told who leaves a run. `url`: of the services that it goes on in; None: they end with this command."""
    where = f"run {run_id} goes on in the services at {url}" if url else f"run {run_id} stops where it is (Ctrl-C again: at once)"
    return f"{where}; {_again(run_id, 'shows it again' if url else 'goes on with it', state)}"


def _again(run_id: str, does: str, state: Path | None) -> str:
    cancel = f"evener cancel {run_id}" + (f" --state {state}" if state else "")
    return f"the same command with --run-id {run_id} {does}, `{cancel}` ends it"
