"""`evener runs`: what was submitted, run by run."""

from pathlib import Path


async def runs(*, state: Path | None = None) -> int:
    """List all runs with how their tasks stand, the newest last: a table on a terminal, JSON lines otherwise.

    Parameters
    ----------
    state
        State folder of the Evener to use.
    """
    from evener.cli.run_summary import summarize_runs, tell_runs
    from evener.cli.running import evener

    async with evener(state) as client:
        tell_runs(summarize_runs(await client.tasks()))
    return 0
