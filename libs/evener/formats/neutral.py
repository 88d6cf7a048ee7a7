"""The neutral row: everything that any trainer's format is made of. Other formats are pure functions of it."""

from typing import Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from evener.proto.arrays import float32s, int32s, uint8s
from evener.proto.ends import End
from evener.proto.sessions import FinishReason
from evener.proto.trajectories import GroupMerged, Row, TrajectoryScored

CUT_SHORT: Final = frozenset({End.AGENT_TIME, End.TOKEN_BUDGET, End.CALL_BUDGET, End.TURN_BUDGET, End.CONTEXT_OVERFLOW})
"""Ends that cut the agent's work short."""


class NeutralRow(TypedDict):
    """One branch of one delivered session: T tokens, five arrays of length T."""

    run_id: str
    purpose: str
    """`train`, `eval` or `collect`: what is evaluated or collected is not to be trained."""
    task_id: str
    group_id: str
    """Rows of one group are compared with each other."""
    rollout_id: str
    """The session. Rows that share it are one sample: count its reward once."""
    branch_index: int
    n_branches: int
    """Rows of the session."""
    policy: str
    harness: str
    ids: NDArray[np.int32]
    """The whole row, prompt included."""
    mask: NDArray[np.uint8]
    """1: sampled by the policy, trainable, and trained by no other row."""
    logprobs: NDArray[np.float32]
    """Natural log, of the sampled distribution where the mask is 1. NaN where not sampled."""
    versions: NDArray[np.int32]
    """Policy version of each sampled token, else -1."""
    call_of: NDArray[np.int32]
    """Which of the branch's calls sampled the token, else -1."""
    prompt_len: int
    """Tokens before the first sampled one: where the response begins."""
    reward: float | None
    """Of the session, the same in all its rows. None: a recording that nobody graded."""
    rewards: dict[str, float]
    """All named numbers of its grader."""
    finish_reason: str
    """Of the row's last sampled tokens: `stop`, `length` or `aborted`."""
    truncated: bool
    """The last answer was cut by length, or a budget ended the session."""
    status: str
    """How the session ended: `finished`, `agent_time`, ..."""
    kind: str
    """`main`, `branch`, `sub_agent` or `compaction`."""
    fidelity: str
    """`fed` or `matched`."""
    temperature: float


def neutral_rows(group: GroupMerged) -> list[NeutralRow]:
    """Return the rows of all delivered sessions of a group, by session and branch. Arrays are read-only views.

    Raises TypeError where the group's blobs were not fetched.
    """
    delivered = (member.scored for member in group.members if member.left_out is None)
    return [row for scored in delivered if scored is not None for row in session_rows(scored)]


def session_rows(scored: TrajectoryScored) -> list[NeutralRow]:
    """Return the rows of one session, graded or not. Raises TypeError where its blobs were not fetched."""
    return [_row(scored, row, index) for index, row in enumerate(scored.trajectory.rows)]


def _row(scored: TrajectoryScored, row: Row, index: int) -> NeutralRow:
    trajectory = scored.trajectory
    spec = trajectory.spec
    return NeutralRow(
        run_id=spec.run_id,
        purpose=spec.purpose.value,
        task_id=spec.task_id,
        group_id=spec.group_id,
        rollout_id=trajectory.session_id,
        branch_index=index,
        n_branches=len(trajectory.rows),
        policy=spec.policy,
        harness=spec.harness.name,
        ids=int32s(row.ids),
        mask=uint8s(row.mask),
        logprobs=float32s(row.logprobs),
        versions=int32s(row.versions),
        call_of=int32s(row.call_of),
        prompt_len=row.prompt_length,
        reward=scored.reward,
        rewards=scored.rewards,
        finish_reason=row.finish_reason.value,
        truncated=row.finish_reason is FinishReason.LENGTH or trajectory.end in CUT_SHORT,
        status=trajectory.end.value,
        kind=row.kind.value,
        fidelity=row.fidelity.value,
        temperature=row.sampling.temperature,
    )
