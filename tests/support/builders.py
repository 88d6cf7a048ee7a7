"""Events as services write them, for tests of who reads them. Plain functions; every field can be overridden."""

import hashlib
import time
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from evener.proto.arrays import pack_float32, pack_int32, pack_uint8
from evener.proto.fleet import EngineJoined
from evener.proto.ids import session_of
from evener.proto.reasons import END_POLICY, ExclusionReason, ExitCause, TerminationReason
from evener.proto.sessions import Fidelity, FinishReason, HarnessExited, RootReason, SessionStarted
from evener.proto.spec import GraderSpec, GroupOptions, HarnessSpec, Purpose, Sampling, SessionSpec
from evener.proto.topics import Topic
from evener.proto.trajectories import (
    Accounting,
    CallSummary,
    GroupFailed,
    GroupMerged,
    HarnessExit,
    Row,
    RowKind,
    TrajectoryBuilt,
    TrajectoryScored,
)
from evener.service.auth import Capability
from evener.service.events import EventLog
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


def started(session_id: str, wanted: SessionSpec, *, attempt: int = 1, at: float = T0, **given: Any) -> SessionStarted:
    """Return the start of an attempt that was dispatched at the same moment."""
    fields: dict[str, Any] = {"start_id": f"{session_id}-s{attempt}", "runner_id": "r", "dispatched_at": at, "started_at": at}
    return SessionStarted(session_id=session_id, attempt=attempt, spec=wanted, **fields | given)


def exited(session_id: str, *, attempt: int = 1, at: float = T0, **given: Any) -> HarnessExited:
    """Return the end of the harness of such an attempt: by itself, with exit code 0."""
    fields: dict[str, Any] = {"start_id": f"{session_id}-s{attempt}", "cause": ExitCause.EXITED, "exit_code": 0, "exited_at": at}
    return HarnessExited(session_id=session_id, attempt=attempt, **fields | given)


def joined(url: str, engine_id: str = "e1", **given: Any) -> EngineJoined:
    """Return the joining of a scripted engine of the policy, now."""
    fields: dict[str, Any] = {"kind": "scripted", "policy": "policy", "joined_at": time.time()}
    return EngineJoined(engine_id=engine_id, url=url, **fields | given)


async def start(events: EventLog, event: SessionStarted, *, seconds: float = 600.0) -> Capability:
    """Write the start of an attempt, as its runner does; return what its relay holds for these seconds."""
    at = await events.send(Topic.SESSIONS, event.session_id, event, session_id=event.session_id)
    return Capability(
        session_id=event.session_id,
        attempt=event.attempt,
        start_id=event.start_id,
        partition=at.partition,
        offset=at.offset,
        expires_at=event.started_at + seconds,
    )


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


def changed(event: TrajectoryScored, **given: Any) -> TrajectoryScored:
    """Return the event with fields of its trajectory replaced."""
    return msgspec.structs.replace(event, trajectory=msgspec.structs.replace(event.trajectory, **given))
