"""`evener rebuild`: stored sessions, built again and compared."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

Flag = Annotated[bool, Parameter(negative="")]


async def rebuild(
    *sessions: str,
    since: str | None = None,
    run: str | None = None,
    strategy: Literal["tree", "per_call"] | None = None,
    json: Flag = False,
    out: Path | None = None,
    state: Path | None = None,
) -> int:
    """Build sessions again from the log, or from their stored records where it was trimmed. Exits with 1 if any differs from the recorded.

    Parameters
    ----------
    sessions
        Session ids, as `evener run` and the report show them: `TASK.0`, `TASK.1`, ...
    since
        All sessions that ended since: an ISO time (2026-01-31T12:00, local unless it says otherwise) or a duration (90s, 30m, 2h, 7d).
    run
        All sessions of this run; with --since those of both.
    strategy
        How rows are cut. None: as they were recorded. Another one is not compared.
    json
        Print a JSON line for each session.
    out
        Folder for what was built: SESSION.msgpack (the TrajectoryBuilt) and SESSION.jsonl (its rows in the neutral format).
    state
        State folder of the Evener to use.
    """
    from evener.cli.rebuilding import Report, request_of
    from evener.cli.running import evener

    request = request_of(sessions, since, run, strategy, whole=out is not None)
    report = Report(as_json=json, out=out)
    async with evener(state) as client:
        with report.progress():
            async for rebuilt in client.rebuild(request):
                await report.add(rebuilt)
    return report.end()
