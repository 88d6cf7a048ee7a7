"""Groups for tests of trainers' formats: small, with everything that a format can get wrong."""

from typing import Any

import numpy as np
from msgspec import structs
from tests.support.builders import built, ended, scored

from evener.proto.arrays import pack_float32, pack_int32, pack_uint8
from evener.proto.reasons import ExclusionReason, TerminationReason
from evener.proto.sessions import Fidelity, FinishReason, RootReason
from evener.proto.spec import Sampling
from evener.proto.trajectories import Accounting, GroupMerged, Row, RowKind, TrajectoryScored

REWARDS = (1.0, 0.0, 0.5, 0.25)
Segment = tuple[str, int]
"""What a segment is, and its length: `given` (not sampled), `trained`, or `context` (sampled, and trained in an earlier row)."""
TURNS: tuple[Segment, ...] = (("given", 4), ("trained", 3), ("given", 2), ("trained", 2))
BRANCH: tuple[Segment, ...] = (("given", 4), ("context", 3), ("given", 1), ("trained", 2), ("given", 2))
"""A row whose first answer an earlier row trains, and that ends with what was not sampled."""
SUB_AGENT: tuple[Segment, ...] = (("given", 5), ("trained", 1))


def row_of(segments: tuple[Segment, ...], *, seed: int, kind: RowKind = RowKind.MAIN, version: int = 3, **given: Any) -> Row:
    """Return a row of segments. Its last trained token is of the next version; every id and logprob is another one."""
    drawn = np.random.default_rng(seed)
    what = np.array([name for name, length in segments for _ in range(length)])
    calls = [name != "given" for name, _ in segments]
    numbers = np.cumsum(calls) - 1
    call_of = np.array([number if call else -1 for (_, n), number, call in zip(segments, numbers, calls, strict=True) for _ in range(n)])
    trained = what == "trained"
    versions = np.where(call_of >= 0, version, -1)
    versions[np.flatnonzero(trained)[-1:]] = version + 1
    length = len(what)
    fields: dict[str, Any] = {
        "ids": pack_int32(1000 * (seed + 1) + drawn.permutation(1000)[:length]),
        "loss_mask": pack_uint8(trained),
        "logprobs": pack_float32(np.where(call_of >= 0, -drawn.uniform(0.01, 3.0, length), np.nan)),
        "versions": pack_int32(versions),
        "call_of": pack_int32(call_of),
        "calls": tuple(f"c{seed}.{number}" for number in range(sum(calls))),
        "prompt_length": segments[0][1],
        "kind": kind,
        "root": RootReason.FIRST,
        "fidelity": Fidelity.FED,
        "policy": "policy",
        "finish_reason": FinishReason.STOP,
        "sampling": Sampling(),
    }
    return Row(**fields | given)


def session(index: int, rows: tuple[Row, ...], *, reward: float | None = 1.0, size: int = 4, **given: Any) -> TrajectoryScored:
    """Return a session of these rows."""
    tokens = sum(int(np.frombuffer(row.loss_mask, np.uint8).sum()) for row in rows if isinstance(row.loss_mask, bytes))
    books = Accounting(sampled=tokens, delivered=tokens) if rows else Accounting(sampled=2, excluded={ExclusionReason.CONSTRAINED: 2})
    fields = {"rows": rows, "accounting": books, "versions": (3, 4) if rows else ()}
    trajectory = built("task", index, size=size, given=fields, **given)
    named = {} if reward is None else {"reward": reward, "tests": reward / 2}
    return scored(trajectory, reward=reward, rewards=named)


def single_rows(rewards: tuple[float, ...] = REWARDS, **given: Any) -> GroupMerged:
    """Return a group of sessions with one row each. A budget cut the second one short."""
    end = TerminationReason.TOKEN_BUDGET
    sessions = [
        session(index, (row_of(TURNS, seed=index, **given),), reward=reward, size=len(rewards), **({"end": end} if index == 1 else {}))
        for index, reward in enumerate(rewards)
    ]
    return merged(*sessions)


def several_rows(rewards: tuple[float, ...] = REWARDS) -> GroupMerged:
    """Return the same group, but the last session has three rows: its own, a branch of it, and a sub-agent's."""
    whole = single_rows(rewards)
    scores = [member.scored for member in whole.members if member.scored is not None]
    last = len(rewards) - 1
    rows = (
        *scores[last].trajectory.rows,
        row_of(BRANCH, seed=10, kind=RowKind.BRANCH),
        row_of(SUB_AGENT, seed=11, kind=RowKind.SUB_AGENT, version=4),
    )
    return merged(*scores[:last], session(last, rows, reward=rewards[last], size=len(rewards)))


def with_rowless(rewards: tuple[float, ...] = REWARDS) -> GroupMerged:
    """Return the same group, but nothing of the first session is trained. Its reward counts."""
    scores = [member.scored for member in single_rows(rewards).members if member.scored is not None]
    return merged(session(0, (), reward=rewards[0], size=len(rewards)), *scores[1:])


def merged(*sessions: TrajectoryScored) -> GroupMerged:
    """Return the group of these sessions."""
    event = ended(sessions, now=1_790_000_010.0)
    assert isinstance(event, GroupMerged)
    return event


def resampled(event: GroupMerged, sampling: Sampling) -> GroupMerged:
    """Return the group with rows that say they were sampled so."""
    return rebuilt(event, lambda row: structs.replace(row, sampling=sampling))


def rebuilt(event: GroupMerged, change: Any) -> GroupMerged:
    """Return the group with every row changed."""
    members = []
    for member in event.members:
        assert member.scored is not None
        trajectory = member.scored.trajectory
        rows = tuple(change(row) for row in trajectory.rows)
        scored_again = structs.replace(member.scored, trajectory=structs.replace(trajectory, rows=rows))
        members.append(structs.replace(member, scored=scored_again))
    return structs.replace(event, members=tuple(members))
