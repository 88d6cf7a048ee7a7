"""The audit of a log after the storm: what Evener promises, checked from the outside. Returns the faults, one line each.

I1 every answer that a harness received was committed as it was received; I2 no trainable token without logprob and version;
I3 each session is delivered once, or its group's record says why not, and never twice; I4 every task has one end; I5 a rebuild
from the log, or from the stored records, gives the same bytes; I6 every group names all its sessions; I7 no delivered session
sampled nothing, was refused a call, or ended by a fault of ours.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct
from tests.support.checker import check
from tests.support.log import Log, Read

from evener.blobs.port import Blobs
from evener.proto.arrays import float32s, inline, int32s, uint8s
from evener.proto.codec import encode
from evener.proto.ids import group_of, session_of
from evener.proto.reasons import END_POLICY, CallFailure, ExclusionReason, TerminationReason
from evener.proto.sessions import (
    AttemptEnded,
    CallClosed,
    CallDelivered,
    CallFailed,
    CallOpened,
    CallUndelivered,
    FinishReason,
    HarnessExited,
    SessionSealed,
)
from evener.proto.spec import Purpose
from evener.proto.topics import Topic
from evener.proto.trajectories import GroupFailed, GroupMerged, Member, Row, TrajectoryBuilt
from evener.reconstructor.core import unpack
from evener.tokens.session import SessionLog
from evener.tokens.trajectory import build

OWNERS: Final = (CallOpened, CallClosed, CallFailed, CallUndelivered, CallDelivered, AttemptEnded, SessionSealed)
"""Events that the owner of a partition writes."""
AGENTS_ENDS: Final = frozenset(
    {
        TerminationReason.FINISHED,
        TerminationReason.HARNESS_FAILED,
        TerminationReason.AGENT_TIME,
        TerminationReason.TOKEN_BUDGET,
        TerminationReason.CALL_BUDGET,
        TerminationReason.TURN_BUDGET,
        TerminationReason.CONTEXT_OVERFLOW,
        TerminationReason.LOOPING,
    }
)
OURS: Final = frozenset(
    {
        CallFailure.ENGINE_UNREACHABLE,
        CallFailure.ENGINE_ERROR,
        CallFailure.NOT_COMMITTED,
        CallFailure.OWNER_LOST,
        CallFailure.OVERLOADED,
        CallFailure.REFUSED,
    }
)
TOPIC_OF: Final = {Purpose.TRAIN: Topic.MERGED, Purpose.EVAL: Topic.KEPT, Purpose.COLLECT: Topic.KEPT}


class Answered(Struct, frozen=True, kw_only=True):
    """An answer in a harness's own ledger."""

    answer_id: str
    message: dict[str, Any]
    """The message of OpenAI Chat that was received."""
    body_digest: str
    """The digest of the request."""
    tried: int
    """How often the harness sent the request until then."""


async def audit(log: Log, blobs: Blobs, *, answers: Collection[Answered] = (), engine: Collection[str] | None = None) -> list[str]:
    """Return what is wrong. `answers`: the harnesses' ledgers; `engine`: lines of the scripted engine's ledger (None: unknown)."""
    faults = [f"dead letter of {letter.service}: {letter.reason}" for letter in log.dead]
    faults += _answers(log, answers)
    for task_id in log.submitted:
        faults += _task(log, task_id)
    for session_id in _expected(log):
        faults += [f"{session_id}: {fault}" for fault in [*_sealing(log, session_id), *await _building(log, session_id, blobs)]]
    faults += _strangers(log)
    if engine is not None:
        faults += check([msgspec.msgpack.decode(encode(built[0])) for built in log.built.values()], list(engine))
    return faults


def answer_digest(message: dict[str, Any]) -> str:
    """Return the digest of an answer's canonical form: its text and tool calls, from the log or as a message of OpenAI Chat."""
    calls = [(call["id"], *_function(call)) for call in message.get("tool_calls") or ()]
    return hashlib.sha256(json.dumps([message.get("content") or "", calls], sort_keys=True).encode()).hexdigest()


def _function(call: dict[str, Any]) -> tuple[str, Any]:
    function = call.get("function", call)
    arguments = function["arguments"]
    try:
        return function["name"], json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return function["name"], arguments


def _answers(log: Log, answers: Collection[Answered]) -> Iterator[str]:
    """I1, and one answer to a request."""
    closed = [(name, event) for name in log.sessions for event in log.of_kind(name, CallClosed) if _whole(event)]
    said = {event.call_id: answer_digest(msgspec.json.decode(inline(event.choices[0].message))) for _, event in closed}
    given = [(event.answer_id, said[event.call_id]) for _, event in closed]
    for name in log.sessions:  # a transport retry gets the answer under its own id
        given += [(event.request_id, said[event.call_id]) for event in log.of_kind(name, CallDelivered)]
    digests = {(f"chatcmpl-{answer_id}", digest) for answer_id, digest in given}
    for answer in answers:
        if (answer.answer_id, answer_digest(answer.message)) not in digests:
            yield f"I1: the harness was answered {answer.answer_id}, and no committed call says so"
    for request_id, times in Counter(event.request_id for _, event in closed).items():
        if times > 1:
            yield f"request {request_id} was answered {times} times"
    for answer_id, times in Counter(answer.answer_id for answer in answers).items():
        if times > 1:
            yield f"answer {answer_id} was received {times} times"


def _whole(call: CallClosed) -> bool:
    return all(choice.finish_reason is not FinishReason.ABORTED for choice in call.choices)


def _expected(log: Log) -> list[str]:
    """Return the ids of all sessions that the submitted tasks have."""
    return [session_of(group_of(task_id), index) for task_id, task in log.submitted.items() for index in range(task.options.samples)]


def _strangers(log: Log) -> Iterator[str]:
    expected = set(_expected(log))
    groups = {group_of(task_id) for task_id in log.submitted}
    for session_id in (log.sessions.keys() | log.built.keys() | log.scored.keys()) - expected:
        yield f"{session_id}: a session of no task"
    for group_id in log.groups.keys() - groups:
        yield f"{group_id}: a group of no task"


def _task(log: Log, task_id: str) -> Iterator[str]:
    """I3, I4, I6 and the books of one task."""
    ends, groups = log.ended.get(task_id, ()), log.groups.get(group_of(task_id), ())
    if len(ends) != 1:
        yield f"I4: task {task_id} has {len(ends)} ends"
    if len(groups) != 1:
        yield f"I3: the group of task {task_id} ended {len(groups)} times"
    options = log.submitted[task_id].options
    for topic, group in groups:
        if topic is not TOPIC_OF[options.purpose]:
            yield f"I3: group {group.group_id} of purpose {options.purpose} stands in {topic}"
        named = [member.session_id for member in group.members]
        if named != [session_of(group.group_id, index) for index in range(options.samples)]:
            yield f"I6: group {group.group_id} names {named}"
        books = [member.scored.trajectory.accounting for member in group.members if member.scored is not None]
        if sum(book.sampled for book in books) != group.accounting.sampled or sum(b.delivered for b in books) != group.accounting.delivered:
            yield f"group {group.group_id}: its books are not the sums of its members'"
        for member in group.members:
            yield from (f"{member.session_id}: {fault}" for fault in _member(log, group, member))


def _member(log: Log, group: GroupMerged | GroupFailed, member: Member) -> Iterator[str]:
    """I2 and I3 of one session in its group's record."""
    built = log.built.get(member.session_id)
    if not built or member.session_id not in log.scored:
        yield "I3: it was never built and scored"
        return
    options = log.submitted[group.task_id].options
    first = log.scored[member.session_id][0]
    allowed = {
        None: isinstance(group, GroupMerged)
        and (options.purpose is Purpose.COLLECT or (END_POLICY[built[0].termination_reason].trainable and first.reward is not None)),
        ExclusionReason.UNTRAINABLE_END: not END_POLICY[built[0].termination_reason].trainable,
        ExclusionReason.NOTHING_SAMPLED: not _own_tokens(built[0]),
        ExclusionReason.UNGRADED: first.reward is None,
        ExclusionReason.STALE: options.group.max_staleness is not None,
        ExclusionReason.LATE: options.group.deliver_early_at is not None,
        ExclusionReason.GROUP_FAILED: isinstance(group, GroupFailed) and group.dropped_by is None,
        ExclusionReason.GROUP_DROPPED: isinstance(group, GroupFailed) and group.dropped_by is not None,
    }
    if not allowed.get(member.excluded, False):
        yield f"I3: left out: {member.excluded}, end {built[0].termination_reason}, reward {first.reward}"
    if member.scored is not None and member.scored.scored_at != first.scored_at:
        yield "I3: not the first of its scores was delivered"
    if member.excluded is None and group.purpose is Purpose.TRAIN:
        yield from (f"I7: {fault}" for fault in _ours(log, built[0]))
    rows = () if member.scored is None else member.scored.trajectory.rows
    if rows != (built[0].rows if member.excluded is None else ()):
        yield "I3: other rows than those that were built were delivered"
    yield from (f"I2: row {number}: {fault}" for number, row in enumerate(rows) for fault in _row(row))


def _ours(log: Log, built: TrajectoryBuilt) -> Iterator[str]:
    """I7: what of ours a trained session met in the attempt that counts. Nothing is taken from the tables that judge it."""
    if built.termination_reason not in AGENTS_ENDS:
        yield f"it ended by {built.termination_reason}, which is not the agent's doing"
    if not _own_tokens(built):
        yield "its agent sampled nothing"
    exits = [left for left in log.of_kind(built.session_id, HarnessExited) if left.attempt == built.attempt][:1]
    told = {(failed.reason, failed.detail) for left in exits for failed in left.failures}
    answered = {event.request_id for event in log.of_kind(built.session_id, CallClosed) if _whole(event)}
    failed = [event for event in log.of_kind(built.session_id, CallFailed) if event.attempt == built.attempt]
    told |= {(event.reason, event.detail) for event in failed if event.request_id not in answered}
    for reason, detail in sorted(told):
        if reason is CallFailure.REFUSED:
            yield f"a call of it was refused: {detail}"
    for left in exits:
        if left.unanswered in OURS:
            yield f"its last request had no answer for a reason of ours: {left.unanswered}"
    last = _last_call(log, built)
    well = any(left.exit_code == 0 for left in exits)
    if last in OURS and not (last is CallFailure.OVERLOADED and well):  # left waiting by a harness that did not need it
        yield f"its last call failed for a reason of ours: {last}"


def _own_tokens(built: TrajectoryBuilt) -> int:
    """Return the policy's tokens that the agent itself sampled in the attempt that counts."""
    frozen = built.accounting.excluded.get(ExclusionReason.FROZEN, 0)
    return sum(call.sampled_tokens for call in built.calls if call.attempt == built.attempt and call.side_call is None) - frozen


def _last_call(log: Log, built: TrajectoryBuilt) -> CallFailure | None:
    """Return why the last call of the agent failed. None: it was answered, or there is none."""
    own = [event for event in log.of_kind(built.session_id, CallOpened) if event.attempt == built.attempt and event.side_call is None]
    failed = {event.call_id: event.reason for event in log.of_kind(built.session_id, CallFailed)}
    answered = {event.call_id for event in log.of_kind(built.session_id, CallClosed) if _whole(event)}
    ends = [failed.get(event.call_id) for event in own if event.call_id in answered or event.call_id in failed]
    while ends and ends[-1] is CallFailure.CANCELLED:
        ends.pop()
    return ends[-1] if ends else None


def _row(row: Row) -> Iterator[str]:
    trained = uint8s(row.loss_mask) == 1
    if not np.isfinite(float32s(row.logprobs)[trained]).all():
        yield "a trainable token has no logprob"
    if (int32s(row.versions)[trained] < 0).any():
        yield "a trainable token has no version"


def _sealing(log: Log, session_id: str) -> Iterator[str]:
    """One seal, after which the owner wrote nothing, and at which no call was open."""
    written = [read.event for read in log.sessions.get(session_id, ()) if isinstance(read.event, OWNERS)]
    seals = [event for event in written if isinstance(event, SessionSealed)]
    if len(seals) != 1:
        yield f"it has {len(seals)} seals"
    elif written[-1] is not seals[0]:
        yield f"{type(written[-1]).__name__} after its seal"
    opened = Counter(event.call_id for event in written if isinstance(event, CallOpened))
    ended = Counter(event.call_id for event in written if isinstance(event, CallClosed | CallFailed))
    if opened != ended or (opened and max(opened.values()) > 1):
        yield "its calls were not each opened once and ended once"


async def _building(log: Log, session_id: str, blobs: Blobs) -> list[str]:
    """I5: every TrajectoryBuilt is what the log gives, and what the stored records give, byte for byte."""
    built = log.built.get(session_id, [])
    if not built:
        return ["I5: it was never built"]
    faults = [f"inconsistency: {inconsistency}" for inconsistency in built[0].inconsistencies]
    kept = built[0].records
    if kept is None:
        return [*faults, "I5: its records were not kept"]
    rebuilt = {
        "the log": _replayed(session_id, log.sessions[session_id]),
        "its stored records": unpack(session_id, await blobs.get(kept)).session,
    }
    written = {encode(one) for one in built}
    for source, session in rebuilt.items():
        if written != {_built(session, built[0])}:
            faults.append(f"I5: built again from {source}, it is not what was written ({len(written)} versions)")
    return faults


def _replayed(session_id: str, reads: Iterable[Read]) -> SessionLog:
    session = SessionLog(session_id)
    for read in reads:
        session.apply(read.event, offset=read.record.offset, record_at=read.record.timestamp_ms / 1000)
    return session


def _built(session: SessionLog, like: TrajectoryBuilt) -> bytes | None:
    return None if session.sealed is None else encode(build(session, records=like.records, strategy=like.strategy))
