"""`evener report`: writes a run as one page."""

from pathlib import Path


async def report(run: str, *, out: Path = Path("report.html"), state: Path | None = None) -> int:
    """Write a run's groups, time lines, sessions and tokens as one self-contained HTML page.

    Parameters
    ----------
    run
        The run's id, as `evener run` shows it.
    out
        File to write.
    state
        State folder of the Evener to use.
    """
    from evener.cli.connection import connect
    from evener.cli.group_files import check_folder
    from evener.cli.output import tell
    from evener.cli.run_page import write_report

    check_folder(out)
    async with connect(state) as client:
        tell(await write_report(client, run, out))
    return 0
