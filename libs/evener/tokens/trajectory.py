"""Builds the TrajectoryBuilt of a sealed session: the same bytes whenever, wherever and however often it is built."""

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from evener.proto.arrays import inline, int32s, uint8s
from evener.proto.blobs import BlobRef
from evener.proto.codec import NOT_AN_EVENT
from evener.proto.spec import Strategy
from evener.proto.trajectories import CallSummary, HarnessExit, Row, TrajectoryBuilt
from evener.tokens.forest import Call
from evener.tokens.inconsistencies import inconsistent_segments, named
from evener.tokens.kinds import last_message
from evener.tokens.rows import ROW_RULE, cut, digest
from evener.tokens.session import SessionLog


def build(session: SessionLog, *, records: BlobRef | None = None, strategy: Strategy = Strategy.TREE) -> TrajectoryBuilt:
    """Return the trajectory of a sealed session. Raises ValueError if the session has no seal or no known spec."""
    seal, spec = session.sealed, session.spec
    if seal is None or spec is None:
        msg = f"session {session.session_id} cannot be built: {'no seal' if seal is None else 'neither a start nor a giving-up'} was read"
        raise ValueError(msg)
    inconsistent = inconsistent_segments(session)
    made = cut(session, seal.termination_reason, strategy, inconsistent)
    rows_digest = digest(made.rows)
    inconsistencies = named(session, inconsistent)
    if strategy is Strategy.TREE and seal.rule == ROW_RULE and rows_digest != seal.rows_digest:
        inconsistencies.append(f"rows differ from the live ones: {rows_digest} is not {seal.rows_digest}")
    start, left = session.starts.get(session.attempt), session.exit
    return TrajectoryBuilt(
        session_id=session.session_id,
        attempt=session.attempt,
        spec=spec,
        termination_reason=seal.termination_reason,
        detail=seal.detail,
        harness_version=start.harness_version if start else None,
        exit=None
        if left is None
        else HarnessExit(
            cause=left.cause,
            exit_code=left.exit_code,
            detail=left.detail,
            agent_seconds=left.agent_seconds,
            wall_seconds=left.wall_seconds,
            prepare_seconds=left.prepare_seconds,
            artifacts=left.artifacts,
            reward=left.reward,
            failures=left.failures,
        ),
        rows=made.rows,
        versions=trained_versions(made.rows),
        accounting=made.accounting,
        calls=tuple(_summary(call) for call in session.forest.in_order()),
        answer=_answer(session),
        strategy=strategy,
        rule=ROW_RULE,
        rows_digest=rows_digest,
        inconsistencies=tuple(inconsistencies),
        records=records,
        dispatched_at=start.dispatched_at if start else None,
        started_at=start.started_at if start else None,
        sealed_at=seal.sealed_at,
    )


def nothing_sampled(trajectory: TrajectoryBuilt) -> bool:
    """Return whether no call of the agent itself sampled a token of the policy. The policy then has no part in the reward."""
    return not trajectory.accounting.delivered and not any(
        call.sampled_tokens
        for call in trajectory.calls
        if call.attempt == trajectory.attempt and call.side_call is None and not call.frozen
    )


def trained_versions(rows: Sequence[Row]) -> tuple[int, ...]:
    """Return the policy versions of the trainable tokens of rows, each once, rising."""
    found = [int32s(row.versions)[uint8s(row.loss_mask) == 1] for row in rows]
    return tuple(np.unique(np.concatenate(found)).tolist()) if found else ()


def _summary(call: Call) -> CallSummary:
    opened, closed, placement = call.opened, call.closed, call.placement
    return CallSummary(
        call_id=call.call_id,
        attempt=opened.attempt,
        parent=placement.parent.call_id if placement.parent else None,
        root=placement.root,
        side_call=opened.side_call,
        frozen=opened.policy is None,
        prompt_tokens=opened.prompt_tokens,
        sampled_tokens=call.sampled_tokens,
        failure=call.failed.reason if call.failed else None,
        undelivered=call.undelivered,
        opened_at=opened.opened_at,
        closed_at=closed.closed_at if closed else call.failed.failed_at if call.failed else None,
        engine_seconds=closed.engine_seconds if closed else 0.0,
        queue_seconds=closed.queue_seconds if closed else 0.0,
    )


def _answer(session: SessionLog) -> str | None:
    segment = last_message(session)
    if segment is None:
        return None
    try:
        message: dict[str, Any] = msgspec.json.decode(inline(session.forest.calls[segment.call_id].choices[segment.choice].message))
    except NOT_AN_EVENT:  # damaged: its tokens are inconsistent
        return None
    content = message.get("content") if isinstance(message, dict) else None
    return content if isinstance(content, str) else ""
