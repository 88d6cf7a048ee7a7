"""The expected and the observed facts of a cell: one Struct for both, so that they are compared field by field."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from signal import SIGINT, SIGKILL, SIGTERM
from typing import Final, Literal

from msgspec import Struct, structs

from evener.client.session_views import CallView, SessionView
from evener.client.views import TaskView
from evener.proto.reasons import ExclusionReason, ExitCause, TerminationReason
from evener.proto.sessions import Fidelity
from evener.proto.trajectories import Row, TrajectoryBuilt


class Open(Enum):
    """What a case leaves open."""

    AS_IT_HAPPENS = "as it happens"
    BY_SIGNAL = "by a signal"
    """An exit code of a program that was asked to end, or killed where it did not: its own, or the kernel's."""


AS_IT_HAPPENS: Final = Open.AS_IT_HAPPENS
BY_SIGNAL: Final = Open.BY_SIGNAL
ENDED: Final = frozenset(code for number in (SIGINT, SIGTERM, SIGKILL) for code in (-number, 128 + number))


class Facts(Struct, frozen=True, kw_only=True):
    """The facts of one session. `Open` is used only in what a cell must show."""

    tree: str
    """Each root with its reason, and how many answers hang on it one after the other; branches in brackets, side calls apart:
    `first 7`, or `first 1(5 2), compaction 1`."""
    rows: int = 1
    cause: ExitCause | None = ExitCause.EXITED
    """Why the CLI is gone. None: its end was not reported."""
    exit_code: int | Open | None = 0
    """The CLI's own, as its folder judges it. None: it has none."""
    end: TerminationReason = TerminationReason.FINISHED
    delivered: float = 1.0
    """Share of the sampled tokens, those of side calls and failed tries apart, that rows train. 0 where nothing was sampled."""
    fed: float = 1.0
    """Share of the rows that the engine was given as they are."""
    side_calls: int = 0
    unanswered: int | Open = 0
    """Calls that failed."""
    resampled: int | Open = 0
    """Calls sampled anew for a request that was sent again."""
    aborted: int = 0
    """Answers that the engine did not finish, as its ledger says: their client left."""
    refused: tuple[int, ...] = ()
    """Statuses that the proxy answered."""
    written: bool = True
    """Whether all files are as the script wanted them."""


class Exited(Struct, frozen=True, kw_only=True):
    """What the sandbox-runner writes into its log when a CLI is gone."""

    event: Literal["harness_exited"]
    session_id: str
    cause: ExitCause
    exit_code: int | None


class Seen(Struct, frozen=True, kw_only=True):
    """What became of a session."""

    facts: Facts
    version: str | None
    calls: int
    """Answered, side calls included."""
    sampled: int
    """The number of sampled tokens."""
    detail: str
    """The detail of its end."""
    unlike: tuple[str, ...]
    """What the independent checker finds between rows and the engine's ledger."""
    seconds: float
    """How long the CLI ran."""
    rows: tuple[Row, ...] = ()
    """What a trainer is given."""

    def differs(self, wanted: Facts) -> tuple[str, ...]:
        """Return what is not as it should be; empty: all is."""
        pairs = ((name, getattr(self.facts, name), getattr(wanted, name)) for name in structs.asdict(wanted))
        found = tuple(f"{name} {_shown(is_)}, not {_shown(should)}" for name, is_, should in pairs if not _fits(is_, should))
        return (*found, *self.unlike, *((self.detail,) if found else ()))


def seen(
    view: TaskView, session: SessionView, exited: Exited | None, *, refused: tuple[int, ...], aborted: int, unlike: tuple[str, ...]
) -> Seen:
    """Return what became of a session whose task has ended. `exited`: how its CLI did; None: that was never told."""
    built = built_of(session)
    books, told = built.accounting, built.exit
    if told is not None and exited is not None and (told.cause, told.exit_code) != (exited.cause, exited.exit_code):
        unlike = (*unlike, f"the trajectory tells another exit: {told.cause}, {told.exit_code}")
    own = books.sampled - sum(books.excluded.get(reason, 0) for reason in (ExclusionReason.SIDE_CALL, ExclusionReason.FAILED_TRY))
    answered = [call for call in session.calls if call.failure is None and call.closed_at is not None]
    facts = Facts(
        tree=tree_of(answered),
        rows=len(built.rows),
        cause=exited.cause if exited else None,
        exit_code=exited.exit_code if exited else None,
        end=built.termination_reason,
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
        calls=len(answered),
        sampled=books.sampled,
        detail=built.detail or (built.exit.detail if built.exit else ""),
        unlike=unlike,
        seconds=built.exit.wall_seconds if built.exit else 0.0,
        rows=built.rows,
    )


def built_of(session: SessionView) -> TrajectoryBuilt:
    """Return the trajectory of a session that was sealed."""
    assert session.trajectory is not None
    return session.trajectory


def tree_of(calls: Iterable[CallView]) -> str:
    """Return the calls as `Facts.tree` writes them, side calls apart. Roots and branches stand in the order of the log."""
    work = [call for call in calls if call.side_call is None]
    below: dict[int | None, list[CallView]] = defaultdict(list)
    for call in work:
        below[call.parent].append(call)
    return ", ".join(f"{call.placement.root} {_chain(call, below)}" for call in below[None])


def _chain(call: CallView, below: Mapping[int | None, Sequence[CallView]]) -> str:
    length = 1
    while len(children := below.get(call.number, ())) == 1:
        (call,) = children
        length += 1
    return f"{length}({' '.join(_chain(child, below) for child in children)})" if children else str(length)


def _fits(found: object, wanted: object) -> bool:
    match wanted:
        case Open.AS_IT_HAPPENS:
            return True
        case Open.BY_SIGNAL:
            return found in ENDED
        case _:
            return found == wanted


def _shown(value: object) -> str:
    match value:
        case Enum():
            return str(value.value)
        case float():
            return f"{value:.0%}"
        case _:
            return str(value)
