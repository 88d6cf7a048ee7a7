"""Trajectories as the reconstructor builds them, for tests of what comes after it. Plain functions; everything can be overridden."""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from evener.proto.arrays import pack_float32, pack_int32, pack_uint8
from evener.proto.ends import CONSEQUENCES, End, ExitCause, LeftOut
from evener.proto.ids import session_of
from evener.proto.sessions import Fidelity, FinishReason, RootReason
from evener.proto.spec import GraderSpec, HarnessSpec, Purpose, Sampling, SessionSpec
from evener.proto.trajectories import Accounting, CallSummary, HarnessExit, Row, RowKind, TrajectoryBuilt, TrajectoryScored

T0 = 1_790_000_000.0
"""Unix seconds at which the sessions of tests are dispatched."""


def spec(group: str = "fix-the-bug", index: int = 0, size: int = 4, **given: Any) -> SessionSpec:
    """Return what sample `index` of a group of `size` is to do."""
    fields: dict[str, Any] = {
        "run_id": "run",
        "task_id": group,
        "group_id": group,
        "group_size": size,
        "index": index,
        "at_least": min(2, size),
        "purpose": Purpose.TRAIN,
        "task": None,
        "harness": HarnessSpec(name="script"),
        "policy": "policy",
        "grader": GraderSpec(name="answer", options={"expected": "42"}),
    }
    return SessionSpec(**fields | given)


def row(turns: Sequence[tuple[int, int]] = ((12, 6), (5, 4)), *, seed: int = 0, version: int = 0, masked: bool = False) -> Row:
    """Return a main row of `turns`, each (given tokens, sampled tokens); `masked`: nothing of it is trainable."""
    drawn = np.random.default_rng(seed)
    calls = [call for call, (given, sampled) in enumerate(turns) for call in [-1] * given + [call] * sampled]
    call_of = np.array(calls, dtype=np.int32)
    was_sampled = call_of >= 0
    length = len(call_of)
    return Row(
        ids=pack_int32(drawn.integers(1, 49152, length)),
        mask=pack_uint8(np.zeros(length) if masked else was_sampled),
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
    end: End = End.FINISHED,
    version: int = 0,
    turns: Sequence[tuple[int, int]] = ((12, 6), (5, 4)),
    given: dict[str, Any] | None = None,
    **options: Any,
) -> TrajectoryBuilt:
    """Return sample `index` of a group; `options` are of its spec, `given` of the trajectory itself."""
    sampled = sum(turn[1] for turn in turns)
    trainable = CONSEQUENCES[end].trainable
    books = Accounting(sampled=sampled, delivered=sampled) if trainable else Accounting(sampled=sampled, left_out={LeftOut.END: sampled})
    fields: dict[str, Any] = {
        "session_id": session_of(group, index),
        "attempt": 1,
        "spec": spec(group, index, size, **options),
        "end": end,
        "exit": HarnessExit(cause=ExitCause.EXITED, exit_code=0, agent_seconds=3.5, wall_seconds=4.0, prepare_seconds=0.5),
        "rows": (row(turns, seed=index, version=version),) if trainable else (),
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


def changed(event: TrajectoryScored, **given: Any) -> TrajectoryScored:
    """Return the event with fields of its trajectory replaced."""
    return msgspec.structs.replace(event, trajectory=msgspec.structs.replace(event.trajectory, **given))
