"""`evener runs`: lists runs; `evener runs delete` deletes one."""

from pathlib import Path

from cyclopts import App

app = App(name="runs", help="List runs, or delete one.", result_action="return_value")


@app.default
async def runs(*, state: Path | None = None) -> int:
    """List all runs with the state of their tasks, the newest last: a table on a terminal, otherwise JSON lines.

    Parameters
    ----------
    state
        State folder of the Evener to use.
    """
    from evener.cli.connection import connect
    from evener.cli.run_summary import summarize_runs, tell_runs

    async with connect(state) as client:
        tell_runs(summarize_runs(await client.tasks()))
    return 0


@app.command
async def delete(run: str, *, state: Path | None = None) -> int:
    """Delete a run that has ended. It is no longer listed; the blobs that only it names are removed within hours.

    What trainers were given stays with them, and the log keeps its records until their retention.

    Parameters
    ----------
    run
        The run's id, as `evener runs` shows it.
    state
        State folder of the Evener to use.
    """
    from evener.cli.connection import connect
    from evener.cli.output import tell
    from evener.cli.run_cancellation import tasks_of

    async with connect(state) as client:
        await tasks_of(client, run)
        tell(await client.delete_run(run))
    return 0
