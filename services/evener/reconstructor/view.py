"""A session for people: its calls as a tree, the fate of every answer, its rows and its messages. Pure."""

from collections.abc import Sequence
from typing import Any

from evener.client.session_views import AttemptView, CallView, Preview, Proposed, SegmentView, SessionSource, SessionView
from evener.proto.codec import NOT_AN_EVENT
from evener.proto.reasons import TerminationReason
from evener.proto.sessions import SegmentRef
from evener.proto.spec import Strategy
from evener.tokens.conversation import conversation
from evener.tokens.forest import Call, Forest
from evener.tokens.inconsistencies import inconsistent_segments
from evener.tokens.kinds import last_message, main_branch, other_message
from evener.tokens.proposals import propose
from evener.tokens.quirks_toml import quirks_toml
from evener.tokens.rows import SessionRows, cut
from evener.tokens.session import SessionLog
from evener.tokens.trajectory import build


def view_of(session: SessionLog, source: SessionSource, strategy: Strategy) -> SessionView:
    """Return the view of a session, ended or not. Raises ValueError if not even its spec is known."""
    seal, spec = session.sealed, session.spec
    if spec is None:
        msg = f"session {session.session_id}: neither a start nor a giving-up was read"
        raise ValueError(msg)
    made = cut(session, seal.termination_reason if seal else TerminationReason.FINISHED, strategy, inconsistent_segments(session))
    preview = Preview(
        attempt=session.attempt, spec=spec, rows=made.rows, accounting=made.accounting, inconsistencies=tuple(session.inconsistencies)
    )
    numbers = {call.call_id: number for number, call in enumerate(session.forest.in_order(), 1)}
    branches = made.branches or (tuple(main_branch(session)),)
    return SessionView(
        session_id=session.session_id,
        source=source,
        attempts=_attempts(session),
        calls=_calls(session.forest, made),
        trajectory=build(session, strategy=strategy) if seal else None,
        preview=None if seal else preview,
        messages=tuple(_said(session.forest, branch) for branch in branches if branch),
        proposed=_proposed(session),
        last_message=numbers[last.call_id] if (last := last_message(session)) is not None else None,
        other_message=numbers[other.call_id] if (other := other_message(session)) is not None else None,
    )


def _proposed(session: SessionLog) -> Proposed | None:
    try:
        proposal = propose(session)
    except (KeyError, IndexError, AttributeError, *NOT_AN_EVENT):  # damaged, or what it follows is missing
        return None
    return None if proposal is None else Proposed(because=proposal.because, toml=quirks_toml(proposal.quirks))


def _attempts(session: SessionLog) -> tuple[AttemptView, ...]:
    views = []
    for attempt, start in sorted(session.starts.items()):
        ended = session.ended.get(attempt) or (session.sealed if attempt == session.attempt else None)
        views.append(
            AttemptView(
                attempt=attempt,
                started_at=start.started_at,
                termination_reason=ended.termination_reason if ended else None,
                detail=ended.detail if ended else "",
            )
        )
    return tuple(views)


def _calls(forest: Forest, made: SessionRows) -> tuple[CallView, ...]:
    ordered = forest.in_order()
    numbers = {call.call_id: number for number, call in enumerate(ordered, 1)}
    rows: dict[SegmentRef, list[int]] = {}
    for number, branch in enumerate(made.branches):
        for segment in branch:
            rows.setdefault(segment, []).append(number)
    return tuple(_call(forest, call, numbers, made, rows) for call in ordered)


def _call(forest: Forest, call: Call, numbers: dict[str, int], made: SessionRows, rows: dict[SegmentRef, list[int]]) -> CallView:
    opened, closed, placement = call.opened, call.closed, call.placement
    segments = call.segments()
    shared = placement.prefix.length if placement.prefix else 0
    return CallView(
        number=numbers[call.call_id],
        call_id=call.call_id,
        attempt=opened.attempt,
        parent=numbers[placement.parent.call_id] if placement.parent else None,
        parent_choice=placement.parent.choice if placement.parent else 0,
        placement=placement,
        given_tokens=len(call.prompt_delta_ids) + shared,
        prompt_tokens=opened.prompt_tokens,
        segments=tuple(_segment(call, one, made, rows) for one in segments),
        policy=opened.policy,
        model=opened.model,
        engine_id=opened.engine_id,
        fidelity=call.fidelity,
        side_call=opened.side_call,
        retry_of=numbers.get(opened.retry_of) if opened.retry_of else None,
        try_number=opened.try_number,
        failure=call.failed.reason if call.failed else None,
        detail=call.failed.detail if call.failed else "",
        received=not forest.orphaned(call),
        opened_at=opened.opened_at,
        closed_at=closed.closed_at if closed else call.failed.failed_at if call.failed else None,
    )


def _segment(call: Call, segment: SegmentRef, made: SessionRows, rows: dict[SegmentRef, list[int]]) -> SegmentView:
    fate = made.fates[segment]
    return SegmentView(
        tokens=fate.total(),
        trained=fate[None],
        excluded={reason: tokens for reason, tokens in fate.items() if reason is not None},
        finish_reason=call.choices[segment.choice].finish_reason,
        rows=tuple(rows.get(segment, ())),
    )


def _said(forest: Forest, branch: Sequence[SegmentRef]) -> tuple[dict[str, Any], ...]:
    try:
        return tuple(conversation(forest, branch))
    except (KeyError, IndexError, *NOT_AN_EVENT):  # damaged, or what it follows is missing
        return ()
