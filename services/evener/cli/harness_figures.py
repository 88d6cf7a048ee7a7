"""The figures of a checked session, what is wrong with them, and their table."""

from collections import Counter
from collections.abc import Mapping

from msgspec import Struct
from rich.table import Table
from rich.text import Text

from evener.cli.output import facts
from evener.cli.submission import RunRequest
from evener.client.session_views import SessionView
from evener.client.views import TaskView
from evener.proto.reasons import ExclusionReason, TerminationReason
from evener.proto.sessions import Fidelity
from evener.proto.spec import Streaming


class Figures(Struct, frozen=True, kw_only=True):
    """The figures of the session."""

    harness: str
    version: str | None
    """The version of the harness. None: it never ran."""
    options: dict[str, str]
    streaming: Streaming
    exit_code: int | None
    termination_reason: TerminationReason | None
    detail: str
    calls: int
    roots: dict[str, int]
    """The number of calls that extended nothing, by reason."""
    rows: int
    sampled: int
    """The number of sampled tokens."""
    delivered: int
    excluded: dict[ExclusionReason, int]
    fed: float
    """The share of rows whose fidelity is `fed`."""
    side_calls: int
    failed_calls: int
    """The number of calls that ended without an answer."""
    retries: int
    """The number of calls that were sampled again for a repeated request."""
    written: bool
    """Whether the harness wrote all files as the script asked."""
    seconds: float
    """How long the harness ran."""

    @property
    def trouble(self) -> str | None:
        """The fault of the harness. None: it has none."""
        unseen = (
            self.sampled
            - self.delivered
            - sum(self.excluded.get(reason, 0) for reason in (ExclusionReason.SIDE_CALL, ExclusionReason.FAILED_TRY))
        )
        if self.termination_reason is not TerminationReason.FINISHED or self.exit_code != 0:
            ended = self.termination_reason.value if self.termination_reason else "unknown"
            return f"it ended as {ended} with exit code {self.exit_code}: {self.detail or 'no detail'}"
        if not self.rows:
            return "it left no rows"
        if unseen:
            return f"{unseen} of {self.sampled} sampled tokens are in no row: {counted(self.excluded)}"
        if self.fed < 1:
            return f"{1 - self.fed:.0%} of the rows were not fed to the engine as they are"
        return None if self.written else "it did not write all files"


def figures_of(run_request: RunRequest, view: TaskView, session: SessionView) -> Figures:
    """Return the figures of a session whose task has ended."""
    built = session.trajectory
    assert built is not None  # noqa: S101 - so it was sealed
    fed = sum(row.fidelity is Fidelity.FED for row in built.rows)
    return Figures(
        harness=run_request.harness.name,
        version=built.harness_version,
        options=run_request.harness.options,
        streaming=run_request.streaming,
        exit_code=built.exit.exit_code if built.exit else None,
        termination_reason=built.termination_reason,
        detail=built.detail or (built.exit.detail if built.exit else ""),
        calls=len(built.calls),
        roots=dict(Counter(call.root.value for call in built.calls if call.root is not None)),
        rows=len(built.rows),
        sampled=built.accounting.sampled,
        delivered=built.accounting.delivered,
        excluded=built.accounting.excluded,
        fed=fed / len(built.rows) if built.rows else 0.0,
        side_calls=built.accounting.side_calls,
        failed_calls=built.accounting.failed_calls,
        retries=sum(call.retry_of is not None or call.try_number > 1 for call in session.calls),
        written=view.rewards == (1.0,),
        seconds=built.exit.wall_seconds if built.exit else 0.0,
    )


def table(figures: Figures) -> Table:
    """Return the figures as a table."""
    options = ", ".join(f"{name}={value}" for name, value in figures.options.items())
    ended = figures.termination_reason.value if figures.termination_reason else "unknown"
    return facts(
        (
            ("harness", f"{figures.harness} {figures.version}" + (f" ({options})" if options else "")),
            ("exit", f"{figures.exit_code}, {ended}"),
            ("calls", str(figures.calls)),
            ("roots", counted(figures.roots)),
            ("rows", str(figures.rows)),
            ("tokens", f"{figures.sampled} sampled, {figures.delivered} delivered"),
            ("excluded", counted(figures.excluded)),
            ("fed", f"{figures.fed:.0%}"),
            ("side calls", str(figures.side_calls)),
            ("failed calls", str(figures.failed_calls)),
            ("retries", str(figures.retries)),
            ("files", Text("written") if figures.written else Text("not written", "red")),
            ("time", f"{figures.seconds:.1f} s"),
        )
    )


def counted(reasons: Mapping[ExclusionReason, int] | Mapping[str, int]) -> str:
    """Return counts by reason in words."""
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items()) or "none"
