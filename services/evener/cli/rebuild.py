"""`evener rebuild`: rebuilds stored sessions and compares them with the record."""

from pathlib import Path
from typing import Literal


async def rebuild(
    *sessions: str,
    since: str | None = None,
    run: str | None = None,
    strategy: Literal["tree", "per_call"] | None = None,
    json: bool = False,
    out: Path | None = None,
    state: Path | None = None,
) -> int:
    """Rebuild sessions from the log, or from their stored records if it was trimmed. Exits with 1 if any differs from the record.

    Parameters
    ----------
    sessions
        Session ids, as `evener run` and the report show them: `TASK.0`, `TASK.1`, ...
    since
        All sessions that ended since an ISO time (2026-01-31T12:00, local by default) or within a duration (90s, 30m, 2h, 7d).
    run
        All sessions of this run; with --since, those of both.
    strategy
        How rows are cut. Default: as they were recorded. Rows of another strategy are not compared.
    json
        Print a JSON line for each session.
    out
        Folder for the results: SESSION.msgpack (the TrajectoryBuilt) and SESSION.jsonl (its rows in the neutral format).
    state
        State folder of the Evener to use.
    """
    from evener.cli.connection import connect
    from evener.cli.rebuild_report import RebuildReport, request_of

    request = request_of(sessions, since, run, strategy, whole=out is not None)
    report = RebuildReport(as_json=json, out=out)
    async with connect(state) as client:
        with report.progress():
            async for rebuilt in client.rebuild(request):
                await report.add(rebuilt)
    return report.end()
