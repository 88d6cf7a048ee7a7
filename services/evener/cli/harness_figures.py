"""What became of a checked session: figures, what is wrong with them, a table."""

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct
from rich.table import Table
from rich.text import Text

from evener.cli.submitting import Wish
from evener.client.session_views import SessionView
from evener.client.views import TaskView
from evener.proto.ends import End, LeftOut
from evener.proto.sessions import Fidelity
from evener.proto.spec import Streaming


class Figures(Struct, frozen=True, kw_only=True):
    """What became of the session."""

    harness: str
    version: str | None
    """None: it never ran."""
    options: dict[str, str]
    streaming: Streaming
    exit_code: int | None
    end: End | None
    detail: str
    calls: int
    roots: dict[str, int]
    """Calls that extended nothing, by reason."""
    rows: int
    sampled: int
    """Tokens."""
    delivered: int
    left_out: dict[LeftOut, int]
    fed: float
    """Share of the rows."""
    side_calls: int
    failed_calls: int
    """Calls that ended without an answer."""
    retries: int
    """Calls sampled anew for a request that was sent again."""
    written: bool
    """All files, as the script wanted them."""
    seconds: float
    """Of the harness's run."""

    @property
    def trouble(self) -> str | None:
        """What is wrong. None: nothing."""
        unseen = self.sampled - self.delivered - sum(self.left_out.get(reason, 0) for reason in (LeftOut.SIDE_CALL, LeftOut.FAILED_TRY))
        if self.end is not End.FINISHED or self.exit_code != 0:
            return f"it ended as {self.end.value if self.end else 'unknown'} with exit code {self.exit_code}: {self.detail or 'no word'}"
        if not self.rows:
            return "it left no rows"
        if unseen:
            return f"{unseen} of {self.sampled} sampled tokens are in no row: {counted(self.left_out)}"
        if self.fed < 1:
            return f"{1 - self.fed:.0%} of the rows were not fed to the engine as they are"
        return None if self.written else "it did not write all files"


def figures_of(wish: Wish, view: TaskView, session: SessionView) -> Figures:
    """Return the figures of a session whose task has ended."""
    built = session.trajectory
    assert built is not None  # noqa: S101 - so it was sealed
    fed = sum(row.fidelity is Fidelity.FED for row in built.rows)
    return Figures(
        harness=wish.harness.name,
        version=built.harness_version,
        options=wish.harness.options,
        streaming=wish.streaming,
        exit_code=built.exit.exit_code if built.exit else None,
        end=built.end,
        detail=built.detail or (built.exit.detail if built.exit else ""),
        calls=len(built.calls),
        roots=dict(Counter(call.root.value for call in built.calls if call.root is not None)),
        rows=len(built.rows),
        sampled=built.accounting.sampled,
        delivered=built.accounting.delivered,
        left_out=built.accounting.left_out,
        fed=fed / len(built.rows) if built.rows else 0.0,
        side_calls=built.accounting.side_calls,
        failed_calls=built.accounting.failed_calls,
        retries=sum(call.retry_of is not None or call.try_number > 1 for call in session.calls),
        written=view.rewards == (1.0,),
        seconds=built.exit.wall_seconds if built.exit else 0.0,
    )


def table(figures: Figures) -> Table:
    """Return the figures as people read them."""
    shown = Table.grid(padding=(0, 2))
    options = ", ".join(f"{name}={value}" for name, value in figures.options.items())
    shown.add_row("harness", f"{figures.harness} {figures.version}" + (f" ({options})" if options else ""))
    shown.add_row("exit", f"{figures.exit_code}, {figures.end.value if figures.end else 'unknown'}")
    shown.add_row("calls", str(figures.calls))
    shown.add_row("roots", counted(figures.roots))
    shown.add_row("rows", str(figures.rows))
    shown.add_row("tokens", f"{figures.sampled} sampled, {figures.delivered} delivered")
    shown.add_row("left out", counted(figures.left_out))
    shown.add_row("fed", f"{figures.fed:.0%}")
    shown.add_row("side calls", str(figures.side_calls))
    shown.add_row("failed calls", str(figures.failed_calls))
    shown.add_row("retries", str(figures.retries))
    shown.add_row("files", Text("written") if figures.written else Text("not written", "red"))
    shown.add_row("time", f"{figures.seconds:.1f} s")
    return shown


def counted(reasons: Mapping[LeftOut, int] | Mapping[str, int]) -> str:
    """Return counts by reason as people read them."""
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items()) or "none"
