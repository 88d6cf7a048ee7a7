"""`evener cancel`: the end of a run."""

from pathlib import Path


async def cancel(run: str, *, state: Path | None = None) -> int:
    """End a run: its sessions are ended. A group fails where too few of its sessions had finished; what was delivered stays.

    Parameters
    ----------
    run
        The run's id, as `evener run` shows it.
    state
        State folder of the Evener to use.
    """
    from evener.cli.cancelling import cancel_run
    from evener.cli.progress import tell
    from evener.cli.running import evener

    async with evener(state) as client:
        tell(await cancel_run(client, run))
    return 0
