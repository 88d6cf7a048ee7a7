"""`evener cancel`: ends a run."""

from pathlib import Path


async def cancel(run: str, *, state: Path | None = None) -> int:
    """End a run: its sessions are ended. A group fails if too few of its sessions had finished; delivered groups stay.

    Parameters
    ----------
    run
        The run's id, as `evener run` shows it.
    state
        State folder of the Evener to use.
    """
    from evener.cli.connection import connect
    from evener.cli.output import tell
    from evener.cli.run_cancellation import cancel_run

    async with connect(state) as client:
        tell(await cancel_run(client, run))
    return 0
