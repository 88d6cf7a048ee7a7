"""The neutral row, which holds everything that a trainer's format needs. Each format is a pure function of neutral rows."""

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from types import MappingProxyType
from typing import Final, TypedDict

import numpy as np
from numpy.typing import NDArray

from evener.proto.arrays import float32s, int32s, uint8s
from evener.proto.errors import EvenerError
from evener.proto.reasons import TerminationReason
from evener.proto.sessions import FinishReason
from evener.proto.trajectories import GroupMerged, Row, TrajectoryScored

CUT_SHORT: Final = frozenset(
    {
        TerminationReason.AGENT_TIME,
        TerminationReason.WALL_TIME,
        TerminationReason.TOKEN_BUDGET,
        TerminationReason.CALL_BUDGET,
        TerminationReason.TURN_BUDGET,
        TerminationReason.CONTEXT_OVERFLOW,
    }
)
"""Termination reasons that cut the agent's work short."""


NO_REGRADES: Final[Mapping[str, str]] = MappingProxyType({})


class RowsRefused(EvenerError):
    """These rows do not fit the format, which is a defect of Evener. Export them as JSON lines, and report the defect."""


class NeutralRow(TypedDict):
    """One branch of one delivered session: T tokens, five arrays of length T."""

    run_id: str
    purpose: str
    """`train`, `eval` or `collect`. Do not train on rows of purpose `eval` or `collect`."""
    task_id: str
    group_id: str
    """The group. Rows of one group are compared with each other."""
    rollout_id: str
    """The session. Rows that share it are one sample: count its reward once."""
    branch_index: int
    n_branches: int
    """The number of rows of the session."""
    policy: str
    harness: str
    ids: NDArray[np.int32]
    """The ids of the whole row, prompt included."""
    loss_mask: NDArray[np.uint8]
    """1: the policy sampled the token, it is trainable, and no other row trains it."""
    logprobs: NDArray[np.float32]
    """The natural logarithm of each sampled token's probability, under the sampled distribution where the loss mask is 1. NaN: not
    sampled."""
    versions: NDArray[np.int32]
    """The policy version of each sampled token. -1: not sampled."""
    call_of: NDArray[np.int32]
    """The index of the branch's call that sampled the token. -1: not sampled."""
    call_rewards: NDArray[np.float32]
    """The reward of each of the branch's calls: `call_rewards[call_of]` are those of its sampled tokens. NaN: the grader gave it none."""
    prompt_len: int
    """The number of tokens before the first sampled one, which is where the response begins."""
    session_tokens: int
    """The number of tokens that all rows of the session train: the session's weight in a loss that is a mean over tokens."""
    reward: float | None
    """The reward of the session, the same in all its rows. None: a recording that nobody graded."""
    group_sessions: int | None
    """The number of sessions of the group whose rewards count: those without a row too. None: the session was exported alone."""
    group_mean: float | None
    """The mean of those rewards. None: there is none, or the session was exported alone."""
    group_deviation: float | None
    """Their (population) standard deviation. None: as `group_mean`."""
    rewards: dict[str, float]
    """All numbers that the session's grader named."""
    flags: list[str]
    """The detectors of reward hacking that flagged the session, each once."""
    regrade: str
    """The name of the regrade that gave this reward. Empty: it is the recorded one."""
    finish_reason: str
    """Why the row's last answer ended: `stop`, `length` or `aborted`."""
    truncated: bool
    """Whether the length limit cut the last answer, or a budget ended the session."""
    status: str
    """The termination reason of the session: `finished`, `agent_time`, ..."""
    kind: str
    """The role of the row in its session: `main`, `branch`, `sub_agent`, `compaction` or `conversation`."""
    fidelity: str
    """`fed`: the engine was given exactly these ids. `matched`: it reported them."""
    temperature: float


def neutral_rows(group: GroupMerged, regrades: Mapping[str, str] = NO_REGRADES) -> list[NeutralRow]:
    """Return the rows of all delivered sessions of a group, by session and branch. Arrays are read-only views.

    `regrades`: the name of the regrade whose reward a session has. Raises TypeError if the group's blobs were not fetched.
    """
    delivered = [member.scored for member in group.members if member.excluded is None and member.scored is not None]
    rewards = [scored.reward for scored in delivered if scored.reward is not None]
    return [row for scored in delivered for row in session_rows(scored, regrades, rewards)]


def session_rows(
    scored: TrajectoryScored, regrades: Mapping[str, str] = NO_REGRADES, rewards: Sequence[float] | None = None
) -> list[NeutralRow]:
    """Return the rows of one session, graded or not. Raises TypeError if its blobs were not fetched.

    `rewards`: those of its group's sessions. None: the session stands alone.
    """
    counts = _Counts(
        session_tokens=sum(int(uint8s(row.loss_mask).sum()) for row in scored.trajectory.rows),
        group_sessions=None if rewards is None else len(rewards),
        group_mean=fmean(rewards) if rewards else None,
        group_deviation=pstdev(rewards) if rewards else None,
    )
    regrade = regrades.get(scored.trajectory.session_id, "")
    return [_row(scored, row, index, regrade, counts) for index, row in enumerate(scored.trajectory.rows)]


class _Counts(TypedDict):
    """What all rows of a session have in common."""

    session_tokens: int
    group_sessions: int | None
    group_mean: float | None
    group_deviation: float | None


def _row(scored: TrajectoryScored, row: Row, index: int, regrade: str, counts: _Counts) -> NeutralRow:
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
        loss_mask=uint8s(row.loss_mask),
        logprobs=float32s(row.logprobs),
        versions=int32s(row.versions),
        call_of=int32s(row.call_of),
        call_rewards=np.array([scored.call_rewards.get(call, np.nan) for call in row.calls], dtype=np.float32),
        prompt_len=row.prompt_length,
        reward=scored.reward,
        **counts,
        rewards=scored.rewards,
        flags=sorted({flag.detector.value for flag in scored.flags}),
        regrade=regrade,
        finish_reason=row.finish_reason.value,
        truncated=row.finish_reason is FinishReason.LENGTH or trajectory.termination_reason in CUT_SHORT,
        status=trajectory.termination_reason.value,
        kind=row.kind.value,
        fidelity=row.fidelity.value,
        temperature=row.sampling.temperature,
    )
