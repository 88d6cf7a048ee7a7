"""Runs planned tasks to their end and shows their progress."""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

from evener.cli.connection import connect
from evener.cli.interrupts import BY_SIGNAL, leaving
from evener.cli.progress import tell_troubles, watch
from evener.cli.run_summary import exit_code, summarize_run, tell_summary
from evener.cli.run_warnings import RunWarnings
from evener.cli.sandbox_choice import offered_here, placed, placed_there, sandboxes_of, trusting
from evener.cli.submission import Planned, RunRequest, plan, submit
from evener.client.client import Client
from evener.proto.errors import EvenerError
from evener.service.exits import complain, print_no_more


async def run_tasks(tasks: Path, run_request: RunRequest, *, sandbox: str | None = None, trust_local: bool, state: Path | None) -> int:
    """Submit, watch, and return the exit code. A user who interrupts is told how the run continues."""
    planned = await asyncio.to_thread(plan, tasks, run_request, sandbox)  # before anything is started: wrong tasks are told at once
    brought = reached = submitted = False

    def up() -> tuple[str, ...]:
        nonlocal brought, planned
        brought, planned = True, placed(planned, offered_here(trust_local=trust_local))
        return trusting(run_request, sandboxes_of(planned), trust_local=trust_local)

    with leaving() as asked:
        try:
            async with connect(state, up, sampling=True) as client:
                reached = True
                try:
                    run_warnings = RunWarnings(client, run_request)
                    planned = planned if brought else await placed_there(planned, client)
                    await run_warnings.check_engines()
                    await submit(client, planned)
                    submitted = True
                    return await _watch(client, run_request, planned, run_warnings, state)
                except asyncio.CancelledError:
                    if asked.number is not None:
                        complain(left(run_request.run_id, None if brought else client.url, state))
                    raise
        except asyncio.CancelledError:
            if asked.number is None:
                raise
            if not reached:
                complain("interrupted before anything was submitted")
            return asked.taken_back()
        except EvenerError:
            if submitted:  # the error's own line follows
                again = _again(run_request.run_id, "continues it", state)
                complain(f"run {run_request.run_id} has not ended, and nothing of it is lost; {again}")
            raise


async def _watch(client: Client, run_request: RunRequest, planned: Sequence[Planned], run_warnings: RunWarnings, state: Path | None) -> int:
    try:
        return await _watched(client, run_request, planned, run_warnings)
    except BrokenPipeError:
        print_no_more()
        again = _again(run_request.run_id, "continues it", state)
        complain(f"nobody reads what is printed, so run {run_request.run_id} is left before its end; {again}")
        return BY_SIGNAL + signal.SIGPIPE


async def _watched(client: Client, run_request: RunRequest, planned: Sequence[Planned], run_warnings: RunWarnings) -> int:
    views = await watch(client, run_request.run_id, {each.task_id for each in planned}, run_warnings)
    tell_troubles(views.values())
    tell_summary(summarize_run(run_request.run_id, views.values()))
    return exit_code(views.values())


def left(run_id: str, url: str | None, state: Path | None) -> str:
    """Return the message for a user who leaves a run. `url` is that of the services that continue it. None: they end with this command."""
    where = f"run {run_id} continues in the services at {url}" if url else f"run {run_id} is paused (Ctrl-C again: stop at once)"
    return f"{where}; {_again(run_id, 'shows it again' if url else 'continues it', state)}"


def _again(run_id: str, does: str, state: Path | None) -> str:
    cancel = f"evener cancel {run_id}" + (f" --state {state}" if state else "")
    return f"the same command with --run-id {run_id} {does}; `{cancel}` ends it"
