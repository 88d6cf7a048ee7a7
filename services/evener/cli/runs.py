"""`evener runs`: lists runs."""

from pathlib import Path


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
