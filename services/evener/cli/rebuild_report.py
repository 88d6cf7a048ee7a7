"""Shows rebuilt sessions on a terminal or as JSON, and writes them as files."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from msgspec import structs
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from evener.cli.errors import Usage
from evener.cli.group_files import write_bytes
from evener.cli.moments import moment
from evener.cli.output import console, tell
from evener.client.session_views import RebuildRequest, Rebuilt
from evener.formats.jsonl import line
from evener.formats.neutral import session_rows
from evener.proto.codec import encode
from evener.proto.spec import Strategy
from evener.proto.trajectories import TrajectoryBuilt, TrajectoryScored
from evener.service.exits import complain


def request_of(sessions: Sequence[str], since: str | None, run: str | None, strategy: str | None, *, whole: bool) -> RebuildRequest:
    """Return the request for these arguments. Raises Usage."""
    if sessions and (since or run):
        msg = "sessions by name and --since or --run contradict each other"
        raise Usage(msg)
    if not sessions and not since and not run:
        msg = "name sessions, or give --since or --run"
        raise Usage(msg)
    return RebuildRequest(
        sessions=tuple(dict.fromkeys(sessions)),
        since=None if since is None else moment("--since", since, time.time()),
        run_id=run,
        strategy=Strategy(strategy) if strategy else None,
        whole=whole,
    )


class RebuildReport:
    """The output of `evener rebuild`, session by session and at the end."""

    def __init__(self, *, as_json: bool, out: Path | None) -> None:
        self._console = console()
        self._json = as_json
        self._out = out
        self._counts = {"equal": 0, "different": 0, "not compared": 0, "not built": 0}
        self._bar: Progress | None = None

    @contextmanager
    def progress(self) -> Iterator[None]:
        """Show the progress on a terminal while this block runs."""
        columns = (TextColumn("rebuilt"), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self._console, transient=True, disable=self._json or not self._console.is_terminal) as bar:
            bar.add_task("rebuilt", total=None)
            self._bar = bar
            yield

    async def add(self, rebuilt: Rebuilt) -> None:
        """Report one session, and write its files if requested. Raises NotWritten."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=rebuilt.number, total=rebuilt.total)
        self._counts[_compared(rebuilt)] += 1
        if rebuilt.trajectory is not None and self._out is not None:
            await asyncio.to_thread(_write, self._out, rebuilt.trajectory)
        if self._json:
            tell(structs.replace(rebuilt, trajectory=None))
        elif rebuilt.problem is not None:
            complain(rebuilt.problem)
        else:
            self._console.print(_line(rebuilt), soft_wrap=True)

    def end(self) -> int:
        """Report the number of sessions by result; return the exit code."""
        total = sum(self._counts.values())
        if not total:
            complain("warning: no such session has ended")
        elif total > 1 and not self._json:
            said = ", ".join(f"{count} {name}" for name, count in self._counts.items() if count)
            self._console.print(f"{total} sessions: {said}", highlight=False)
        return 1 if self._counts["different"] or self._counts["not built"] else 0


def _compared(rebuilt: Rebuilt) -> str:
    if rebuilt.problem is not None:
        return "not built"
    return {True: "equal", False: "different", None: "not compared"}[rebuilt.equal]


def _line(rebuilt: Rebuilt) -> Text:
    compared = _compared(rebuilt)
    text = Text(f"{rebuilt.session_id}  {rebuilt.rows} rows, {rebuilt.tokens} tokens, {rebuilt.trained} trained  {rebuilt.digest[:16]}  ")
    text.append(compared, {"equal": "green", "different": "red"}.get(compared, "yellow"))
    if rebuilt.equal is None:
        text.append(" (nothing recorded)" if rebuilt.recorded is None else " (recorded by another strategy)")
    elif rebuilt.differs:
        text.append(f" in {', '.join(rebuilt.differs)}; recorded {(rebuilt.recorded or '')[:16]}")
    text.append(f"  from the {rebuilt.source.value}")
    for inconsistency in rebuilt.inconsistencies:
        text.append(f"\n  inconsistency: {inconsistency}", "red")
    return text


def _write(folder: Path, trajectory: TrajectoryBuilt) -> None:
    """Write the event, and its rows in the neutral format, ungraded."""
    scored = TrajectoryScored(trajectory=trajectory, grader=trajectory.spec.grader.name, scored_at=trajectory.sealed_at)
    write_bytes(folder / f"{trajectory.session_id}.msgpack", encode(trajectory))
    write_bytes(folder / f"{trajectory.session_id}.jsonl", b"".join(line(row) for row in session_rows(scored)))
