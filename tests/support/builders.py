"""Events as services write them, for tests of who reads them. Plain functions; every field can be overridden."""

import hashlib
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from evener.proto.arrays import pack_float32, pack_int32, pack_uint8
from evener.proto.fleet import EngineJoined, Heartbeat
from evener.proto.ids import session_of
from evener.proto.reasons import END_POLICY, CallFailure, ExclusionReason, ExitCause, TerminationReason
from evener.proto.sessions import (
    AttemptEnded,
    CallClosed,
    CallFailed,
    CallOpened,
    Choice,
    Fidelity,
    FinishReason,
    HarnessExited,
    RootReason,
    SessionDispatched,
    SessionGivenUp,
    SessionSealed,
    SessionStarted,
)
from evener.proto.spec import GraderSpec, GroupOptions, HarnessSpec, Purpose, Sampling, SessionSpec
from evener.proto.trajectories import (
    Accounting,
    CallSummary,
    GroupFailed,
    GroupMerged,
    HarnessExit,
    Member,
    Row,
    RowKind,
    TrajectoryBuilt,
    TrajectoryScored,
)
from evener.service.fleet_feed import FleetRecord
from evener.tokens.digests import Message
from evener.tokens.place import Placed
from evener.trainer_bridge.core import fold, outcome
from evener.trainer_bridge.rules import Fate, PolicyVersions, decision_for

T0 = 1_790_000_000.0
"""Unix seconds at which the sessions of tests are dispatched."""


def spec(group: str = "fix-the-bug", index: int = 0, size: int = 4, **given: Any) -> SessionSpec:
    """Return what sample `index` of a group of `size` is to do; fields of `GroupOptions` may be given as they are."""
    asked = {name: given.pop(name) for name in GroupOptions.__struct_fields__ if name in given}
    fields: dict[str, Any] = {
        "run_id": "run",
        "task_id": group,
        "group_id": group,
        "group_size": size,
        "index": index,
        "group": GroupOptions(**{"min_usable": min(2, size), **asked}),
        "purpose": Purpose.TRAIN,
        "task": None,
        "harness": HarnessSpec(name="script"),
        "policy": "policy",
        "grader": GraderSpec(name="answer", options={"expected": "42"}),
    }
    return SessionSpec(**fields | given)


def alone(name: str = "t", **given: Any) -> SessionSpec:
    """Return what the one session of a group of its own is to do; it is not graded."""
    return spec(name, 0, 1, **{"grader": GraderSpec(name="none"), **given})


def dispatched(session_id: str, wanted: SessionSpec, *, attempt: int = 1, at: float = T0, **given: Any) -> SessionDispatched:
    """Return the dispatch of an attempt to runner `r`."""
    fields: dict[str, Any] = {"runner_id": "r", "dispatched_at": at, "lease_seconds": 10.0}
    return SessionDispatched(session_id=session_id, attempt=attempt, spec=wanted, **fields | given)


def started(session_id: str, wanted: SessionSpec, *, attempt: int = 1, at: float = T0, **given: Any) -> SessionStarted:
    """Return the start of an attempt that was dispatched at the same moment."""
    fields: dict[str, Any] = {"start_id": f"{session_id}-s{attempt}", "runner_id": "r", "dispatched_at": at, "started_at": at}
    return SessionStarted(session_id=session_id, attempt=attempt, spec=wanted, **fields | given)


def exited(session_id: str, *, attempt: int = 1, at: float = T0, **given: Any) -> HarnessExited:
    """Return the end of the harness of such an attempt: by itself, with exit code 0."""
    fields: dict[str, Any] = {"start_id": f"{session_id}-s{attempt}", "cause": ExitCause.EXITED, "exit_code": 0, "exited_at": at}
    return HarnessExited(session_id=session_id, attempt=attempt, **fields | given)


def attempt_ended(
    session_id: str, reason: TerminationReason = TerminationReason.INFRASTRUCTURE, *, attempt: int = 1, at: float = T0
) -> AttemptEnded:
    """Return the end of an attempt that is to be run again."""
    return AttemptEnded(session_id=session_id, attempt=attempt, termination_reason=reason, ended_at=at)


def given_up(session_id: str, wanted: SessionSpec, reason: TerminationReason, *, attempt: int = 1, at: float = T0) -> SessionGivenUp:
    """Return the scheduler's word that a session is not tried any more."""
    return SessionGivenUp(session_id=session_id, attempt=attempt, termination_reason=reason, spec=wanted, given_up_at=at)


def sealed(
    session_id: str, reason: TerminationReason = TerminationReason.FINISHED, *, attempt: int = 1, at: float = T0, **given: Any
) -> SessionSealed:
    """Return the seal of a session without calls."""
    fields: dict[str, Any] = {"rows_digest": "0" * 64, "calls": 0, "sampled_tokens": 0}
    return SessionSealed(session_id=session_id, attempt=attempt, termination_reason=reason, sealed_at=at, **fields | given)


def call_opened(
    session_id: str, placed: Placed, messages: Sequence[Message], tools: Sequence[Message] = (), *, number: int = 1, **given: Any
) -> CallOpened:
    """Return the opening of call `c<number>`, which hangs where its messages and tools were placed, `number` seconds after 1970."""
    fields: dict[str, Any] = {
        "attempt": 1,
        "start_id": f"{session_id}-s1",
        "call_id": f"c{number}",
        "request_id": f"r{number}",
        "dialect": "openai_chat",
        "model": "m",
        "policy": "policy",
        "engine_id": "e",
        "placement": placed.placement,
        "prompt_delta_ids": pack_int32(placed.prompt_delta_ids),
        "prompt_tokens": len(placed.context),
        "history_base": placed.history_base,
        "messages": msgspec.json.encode(placed.messages),
        "message_count": len(messages),
        "tools": msgspec.json.encode(tools) if tools and placed.history_base is None else None,
        "tool_count": len(tools),
        "side_call": placed.side_call,
        "cuts": placed.cuts,
        "sampling": Sampling(),
        "body_digest": hashlib.sha256(msgspec.json.encode([messages, tools], order="sorted")).hexdigest(),
        "opened_at": float(number),
    }
    return CallOpened(session_id=session_id, **fields | given)


def choice(
    ids: Sequence[int], message: Message, finish: FinishReason = FinishReason.STOP, *, logprobs: Sequence[float], version: int = 0
) -> Choice:
    """Return an answer of so many ids, all sampled by one version."""
    return Choice(
        sampled_ids=pack_int32(ids),
        logprobs=pack_float32(logprobs),
        versions=pack_int32([version] * len(ids)),
        finish_reason=finish,
        message=msgspec.json.encode(message),
    )


def call_closed(opened: CallOpened, choices: Sequence[Choice], **given: Any) -> CallClosed:
    """Return the end of a call with these answers, half a second after its opening."""
    fields: dict[str, Any] = {"answer_id": f"a{opened.call_id}", "answer_created": 1, "closed_at": opened.opened_at + 0.5}
    return CallClosed(**of_call(opened), choices=tuple(choices), **fields | given)


def call_failed(opened: CallOpened, reason: CallFailure, **given: Any) -> CallFailed:
    """Return the end of a call without an answer, half a second after its opening."""
    fields: dict[str, Any] = {"detail": "", "status": 503, "failed_at": opened.opened_at + 0.5}
    return CallFailed(**of_call(opened), reason=reason, **fields | given)


def of_call(opened: CallOpened, request_id: str | None = None) -> dict[str, Any]:
    """Return the fields by which later events name a call, and the request that they are about (None: the call's own)."""
    request_id = request_id or opened.request_id
    return {"session_id": opened.session_id, "attempt": opened.attempt, "call_id": opened.call_id, "request_id": request_id}


def heartbeat(service: str, instance_id: str, *, at: float = T0, **given: Any) -> Heartbeat:
    """Return a sign of life of a service."""
    return Heartbeat(instance_id=instance_id, service=service, at=at, **{"boot_id": "b"} | given)


def joined(url: str, engine_id: str = "e1", **given: Any) -> EngineJoined:
    """Return the joining of a scripted engine of the policy, now."""
    fields: dict[str, Any] = {"kind": "scripted", "policy": "policy", "joined_at": time.time()}
    return EngineJoined(engine_id=engine_id, url=url, **fields | given)


def listing(instance_id: str, address: str, *partitions: int, epoch: int = 1, releasing: bool = False, **given: Any) -> FleetRecord:
    """Return the record of `fleet` in which a gateway lists its partitions, all with the same epoch. `releasing`: it hands them over."""
    given = {"service": "provider_gateway", "releasing" if releasing else "partitions": partitions} | given
    epochs = tuple((number, epoch) for number in partitions)
    beat = heartbeat(given.pop("service"), instance_id, address=address, epochs=epochs, **given)
    return FleetRecord(key=instance_id, offset=0, event=beat, written_at=beat.at, heard_at=0.0)


def row(turns: Sequence[tuple[int, int]] = ((12, 6), (5, 4)), *, seed: int = 0, version: int = 0, masked: bool = False) -> Row:
    """Return a main row of `turns`, each (given tokens, sampled tokens); `masked`: nothing of it is trainable."""
    drawn = np.random.default_rng(seed)
    calls = [call for call, (given, sampled) in enumerate(turns) for call in [-1] * given + [call] * sampled]
    call_of = np.array(calls, dtype=np.int32)
    was_sampled = call_of >= 0
    length = len(call_of)
    return Row(
        ids=pack_int32(drawn.integers(1, 49152, length)),
        loss_mask=pack_uint8(np.zeros(length) if masked else was_sampled),
        logprobs=pack_float32(np.where(was_sampled, -drawn.exponential(0.8, length), np.nan)),
        versions=pack_int32(np.where(was_sampled, version, -1)),
        call_of=pack_int32(call_of),
        calls=tuple(f"c{seed:04x}{number:02x}" for number in range(len(turns))),
        prompt_length=turns[0][0],
        kind=RowKind.MAIN,
        root=RootReason.FIRST,
        fidelity=Fidelity.FED,
        policy="policy",
        finish_reason=FinishReason.STOP,
        sampling=Sampling(),
    )


def calls(turns: Sequence[tuple[int, int]] = ((12, 6), (5, 4)), *, seed: int = 0, start: float = T0 + 1.0) -> tuple[CallSummary, ...]:
    """Return the calls of a row of the same turns and seed, one second each, half a second apart."""
    names = [f"c{seed:04x}{number:02x}" for number in range(len(turns))]
    context = np.cumsum([given + sampled for given, sampled in turns])
    return tuple(
        CallSummary(
            call_id=name,
            attempt=1,
            parent=names[number - 1] if number else None,
            root=None if number else RootReason.FIRST,
            prompt_tokens=int(context[number]) - turns[number][1],
            sampled_tokens=turns[number][1],
            opened_at=start + 1.5 * number,
            closed_at=start + 1.5 * number + 1.0,
            engine_seconds=0.75,
            queue_seconds=0.25,
        )
        for number, name in enumerate(names)
    )


def built(
    group: str = "fix-the-bug",
    index: int = 0,
    *,
    size: int = 4,
    end: TerminationReason = TerminationReason.FINISHED,
    version: int = 0,
    turns: Sequence[tuple[int, int]] = ((12, 6), (5, 4)),
    given: dict[str, Any] | None = None,
    **options: Any,
) -> TrajectoryBuilt:
    """Return sample `index` of a group; `options` are of its spec, `given` of the trajectory itself."""
    sampled = sum(turn[1] for turn in turns)
    trainable = END_POLICY[end].trainable
    books = (
        Accounting(sampled=sampled, delivered=sampled)
        if trainable
        else Accounting(sampled=sampled, excluded={ExclusionReason.UNTRAINABLE_END: sampled})
    )
    fields: dict[str, Any] = {
        "session_id": session_of(group, index),
        "attempt": 1,
        "spec": spec(group, index, size, **options),
        "termination_reason": end,
        "exit": HarnessExit(cause=ExitCause.EXITED, exit_code=0, agent_seconds=3.5, wall_seconds=4.0, prepare_seconds=0.5),
        "rows": (row(turns, seed=index, version=version),) if trainable else (),
        "versions": (version,) if trainable else (),
        "accounting": books,
        "calls": calls(turns, seed=index),
        "answer": "The answer is 42.",
        "rule": 1,
        "rows_digest": hashlib.sha256(f"{group}.{index}".encode()).hexdigest(),
        "dispatched_at": T0,
        "started_at": T0 + 0.5,
        "sealed_at": T0 + 4.5,
    }
    return TrajectoryBuilt(**fields | (given or {}))


def scored(trajectory: TrajectoryBuilt | None = None, *, reward: float | None = 1.0, **given: Any) -> TrajectoryScored:
    """Return a trajectory (by default the first of a group) with its reward; None: ungraded."""
    fields: dict[str, Any] = {
        "trajectory": built() if trajectory is None else trajectory,
        "reward": reward,
        "rewards": {} if reward is None else {"reward": reward},
        "ungraded": "the grader gave no reward" if reward is None else None,
        "grader": "answer",
        "grading_seconds": 0.25,
        "tries": 1,
        "scored_at": T0 + 5.0,
    }
    return TrajectoryScored(**fields | given)


def group(
    rewards: Sequence[float | None] = (1.0, 0.0, 0.5, 1.0), name: str = "fix-the-bug", **options: Any
) -> tuple[TrajectoryScored, ...]:
    """Return a whole group, one session for each reward."""
    return tuple(scored(built(name, index, size=len(rewards), **options), reward=reward) for index, reward in enumerate(rewards))


def decided(
    sessions: Iterable[TrajectoryScored], newest: int | None = None, *, unproven: Iterable[int] = (), now: float = T0 + 10.0
) -> GroupMerged | GroupFailed | None:
    """Return the end that the bridge gives to a group of these sessions. None: the group waits."""
    state, read = None, dict[int, TrajectoryScored]()
    for one in sessions:
        read.setdefault(one.trajectory.spec.index, one)
        state = fold(state, one) or state
    assert state is not None
    decision = decision_for(state, PolicyVersions(newest, frozenset(unproven)))
    return None if decision.fate is Fate.WAIT else outcome(state, decision, read, now)


def ended(sessions: Iterable[TrajectoryScored], newest: int | None = None, *, now: float = T0 + 10.0) -> GroupMerged | GroupFailed:
    """Return the end of a group of these sessions, which does not wait."""
    event = decided(sessions, newest, now=now)
    assert event is not None
    return event


def group_ended(
    task_id: str, rewards: Iterable[float | None], *, reason: str | None = None, purpose: Purpose = Purpose.TRAIN, at: float = T0
) -> GroupMerged | GroupFailed:
    """Return the end of a group as the scheduler reads it, without trajectories: merged, or failed for a reason."""
    finished = TerminationReason.FINISHED
    members = tuple(
        Member(session_id=session_of(task_id, index), attempt=1, termination_reason=finished, reward=reward)
        for index, reward in enumerate(rewards)
    )
    common: dict[str, Any] = {"group_id": task_id, "task_id": task_id, "run_id": "default", "policy": "policy", "purpose": purpose}
    common |= {"size": len(members), "members": members, "accounting": Accounting()}
    return GroupMerged(**common, merged_at=at) if reason is None else GroupFailed(**common, reason=reason, failed_at=at)


def changed(event: TrajectoryScored, **given: Any) -> TrajectoryScored:
    """Return the event with fields of its trajectory replaced."""
    return msgspec.structs.replace(event, trajectory=msgspec.structs.replace(event.trajectory, **given))
