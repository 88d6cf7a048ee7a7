"""What a cell must show, and what it showed: one Struct for both, so that they are compared field by field."""

from collections import Counter

from msgspec import Struct, field, structs

from evener.client.session_views import CallView, SessionView
from evener.client.views import TaskView
from evener.proto.ends import End, LeftOut
from evener.proto.sessions import Fidelity
from evener.proto.trajectories import TrajectoryBuilt


class Facts(Struct, frozen=True, kw_only=True):
    """Of one session."""

    exit_code: int | None = 0
    """The CLI's own, as its folder judges it."""
    end: End = End.FINISHED
    calls: int
    """Answered, side calls included."""
    roots: dict[str, int] = field(default_factory=lambda: {"first": 1})
    """Calls that extend nothing, by reason; side calls apart."""
    rows: int = 1
    delivered: float = 1.0
    """Share of the sampled tokens, those of side calls apart, that rows train. 0 where nothing was sampled."""
    fed: float = 1.0
    """Share of the rows that the engine was given as they are."""
    side_calls: int = 0
    unanswered: int | None = 0
    """Calls that failed. None: as it happens."""
    resampled: int | None = 0
    """Calls sampled anew for a request that was sent again. None: as it happens."""
    aborted: int = 0
    """Answers that the engine did not finish, as its ledger says: their client left."""
    refused: tuple[int, ...] = ()
    """Statuses that the proxy answered."""
    written: bool = True
    """All files, as the script wanted them."""


class Seen(Struct, frozen=True, kw_only=True):
    """What became of a session."""

    facts: Facts
    version: str | None
    sampled: int
    """Tokens."""
    detail: str
    """Of its end."""
    tree: str
    """Each answered call and what it extends: `1 2<1 3<2`."""
    unlike: tuple[str, ...]
    """What the independent checker finds between rows and the engine's ledger."""
    seconds: float
    """Of the CLI's run."""

    def differs(self, wanted: Facts) -> tuple[str, ...]:
        """Return what is not as it should be; empty: all is."""
        pairs = ((name, getattr(self.facts, name), getattr(wanted, name)) for name in structs.asdict(wanted))
        found = tuple(f"{name} {_shown(is_)}, not {_shown(should)}" for name, is_, should in pairs if should is not None and is_ != should)
        return (*found, *self.unlike, *((self.tree, self.detail) if found else ()))


def seen(view: TaskView, session: SessionView, *, refused: tuple[int, ...], aborted: int, unlike: tuple[str, ...]) -> Seen:
    """Return what became of a session whose task has ended."""
    built = built_of(session)
    books, work = built.accounting, [call for call in session.calls if call.side_call is None]
    own = books.sampled - books.left_out.get(LeftOut.SIDE_CALL, 0)
    facts = Facts(
        exit_code=built.exit.exit_code if built.exit else None,
        end=built.end,
        calls=sum(_answered(call) for call in session.calls),
        roots=dict(Counter(call.placement.root.value for call in work if call.placement.root is not None and _answered(call))),
        rows=len(built.rows),
        delivered=books.delivered / own if own else 0.0,
        fed=sum(row.fidelity is Fidelity.FED for row in built.rows) / len(built.rows) if built.rows else 0.0,
        side_calls=books.side_calls,
        unanswered=sum(call.failure is not None for call in session.calls),
        resampled=sum(call.retry_of is not None or call.try_number > 1 for call in session.calls),
        aborted=aborted,
        refused=refused,
        written=view.rewards == (1.0,),
    )
    return Seen(
        facts=facts,
        version=built.harness_version,
        sampled=books.sampled,
        detail=built.detail or (built.exit.detail if built.exit else ""),
        tree=" ".join(str(call.number) + (f"<{call.parent}" if call.parent else "") for call in session.calls if _answered(call)),
        unlike=unlike,
        seconds=built.exit.wall_seconds if built.exit else 0.0,
    )


def built_of(session: SessionView) -> TrajectoryBuilt:
    """Return the trajectory of a session that was sealed."""
    assert session.trajectory is not None
    return session.trajectory


def _answered(call: CallView) -> bool:
    return call.failure is None and call.closed_at is not None


def _shown(value: object) -> str:
    match value:
        case End():
            return value.value
        case float():
            return f"{value:.0%}"
        case dict():
            return ", ".join(f"{count} {name}" for name, count in value.items()) or "none"
        case _:
            return str(value)
