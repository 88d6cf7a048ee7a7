"""The table of all sessions, and which of them are shown token by token. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from evener.formats.report.conversation import MAX_TOKENS, chosen, main_row
from evener.formats.report.view import NO_NUMBER, number
from evener.formats.summary import NOT_ENDED, seen
from evener.proto.arrays import int32s
from evener.proto.trajectories import GroupFailed, GroupOutcome, Member, TrajectoryScored

MAX_SHOWN_TOKENS: Final = 60_000
"""The largest number of tokens in all conversations together, which makes a page of some megabytes."""
MAX_LISTED: Final = 2_000
"""The largest number of sessions in the table. Further ones are counted."""


class SessionLine(Struct, frozen=True):
    """One session in the table."""

    session_id: str
    anchor: str | None
    """The anchor of the session's conversation on the page. None: the conversation is not shown."""
    end: str
    detail: str
    reward: str
    calls: int
    sampled: int
    delivered: int
    """The number of delivered tokens."""
    why_not: str
    """Why none of the session's tokens are delivered. Empty: some are."""


class Listing(Struct, frozen=True):
    """The table of sessions."""

    lines: tuple[SessionLine, ...]
    hidden: int
    """The number of sessions that are not in the table."""


def shown(outcomes: Sequence[GroupOutcome]) -> list[TrajectoryScored]:
    """Return the sessions that are shown token by token: the most telling one, then the others in their order, while there is room."""
    first = chosen(outcomes)
    with_rows = [scored for event in outcomes for _, scored in seen(event.members) if scored.trajectory.rows]
    ordered = [] if first is None else [first, *(scored for scored in with_rows if scored is not first)]
    left, found = MAX_SHOWN_TOKENS, list[TrajectoryScored]()
    for scored in ordered:
        tokens = min(len(int32s(main_row(scored).ids)), MAX_TOKENS)
        if tokens <= left:
            found.append(scored)
            left -= tokens
    return found


def listing(outcomes: Iterable[GroupOutcome], on_page: Iterable[TrajectoryScored]) -> Listing:
    """Return the table, in the order of the groups. `on_page` are the sessions whose conversations the page shows."""
    anchors = {scored.trajectory.session_id: anchor_of(number) for number, scored in enumerate(on_page)}
    lines = list(_lines(outcomes, anchors))
    return Listing(tuple(lines[:MAX_LISTED]), max(0, len(lines) - MAX_LISTED))


def anchor_of(number: int) -> str:
    """Return the anchor of the n-th conversation on the page."""
    return f"conversation-{number}"


def _lines(outcomes: Iterable[GroupOutcome], anchors: dict[str, str]) -> Iterator[SessionLine]:
    for event in outcomes:
        for member in event.members:
            trajectory = member.scored.trajectory if member.scored else None
            accounting = trajectory.accounting if trajectory else None
            yield SessionLine(
                session_id=member.session_id,
                anchor=anchors.get(member.session_id),
                end=(member.termination_reason.value if member.termination_reason else NOT_ENDED).replace("_", " "),
                detail=trajectory.detail if trajectory else "",
                reward=NO_NUMBER if member.reward is None else number(member.reward),
                calls=len(trajectory.calls) if trajectory else 0,
                sampled=accounting.sampled if accounting else 0,
                delivered=accounting.delivered if accounting else 0,
                why_not=_why_not(event, member),
            )


def _why_not(event: GroupOutcome, member: Member) -> str:
    """Return why nothing of a session is delivered."""
    if isinstance(event, GroupFailed):
        return "its group failed" if event.dropped_by is None else "its group was dropped"
    if member.excluded is not None:
        reason = member.excluded.value.replace("_", " ")
        return f"{reason}: {member.scored.ungraded}" if member.scored and member.scored.ungraded else reason
    accounting = member.scored.trajectory.accounting if member.scored else None
    if accounting is None or accounting.delivered:
        return ""
    return ", ".join(f"{count} {reason.value.replace('_', ' ')}" for reason, count in accounting.excluded.items()) or "no token was sampled"
