"""`evener report`: a run as one page."""

from pathlib import Path


async def report(run: str, *, out: Path = Path("report.html"), state: Path | None = None) -> int:
    """Write a run's groups, time lines, sessions and tokens as one HTML page that asks nobody for anything.

    Parameters
    ----------
    run
        The run's id, as `evener run` shows it.
    out
        File to write.
    state
        State folder of the Evener to use.
    """
    from evener.cli.exporting import check_folder
    from evener.cli.progress import tell
    from evener.cli.reporting import write_report
    from evener.cli.running import evener

    check_folder(out)
    async with evener(state) as client:
        tell(await write_report(client, run, out))
    return 0
