"""A delivered group as trainers take it: each session once, with its advantage and its rows. Every trainer's format is a function of it.

What no trainer can train rightly is refused here, by name; so is what is beyond the trainer's own settings (`Takes`). Pure.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Final

import numpy as np
from msgspec import Struct

from evener.formats.neutral import NO_REGRADES, NeutralRow, RowsRefused, session_rows
from evener.proto.errors import EvenerError
from evener.proto.spec import Purpose, Sampling
from evener.proto.trajectories import GroupMerged, TrajectoryScored

EPSILON: Final = 1e-6
"""What is added to a group's deviation before rewards are divided by it."""


class GroupRefused(EvenerError):
    """The trainer would train this group wrongly. docs/trainers.md says what each format refuses, and what to do instead."""


class NotForTraining(GroupRefused):
    """Trainers take groups of purpose `train` alone. Export others as neutral rows: `--format jsonl` or `parquet`."""


class SessionUngraded(GroupRefused):
    """A trainer needs a finite reward for every session. Grade the group, or export neutral rows."""


class SamplingRefused(GroupRefused):
    """A trainer divides logits by one temperature and knows no filters. Sample at its temperature, without top_p, top_k and min_p."""


class RowTooLong(GroupRefused):
    """The trainer would cut the row and lose trained tokens. Raise its limit, lower the session's, or leave such rows out."""


class SeveralRows(GroupRefused):
    """This trainer would count each row as a session. Use a format that takes several rows, or a harness that makes one."""


class SessionWithoutRows(GroupRefused):
    """The trainer computes the group's mean from the rows, and this session counts for it. Use a format that carries advantages."""


class GroupIncomplete(GroupRefused):
    """The trainer needs as many sessions as it asked for. Deliver whole groups (no `deliver_early_at`), or use another format."""


class Takes(Struct, frozen=True, kw_only=True):
    """What a trainer is configured to take. None: not checked."""

    row_tokens: int | None = None
    """The most tokens of a whole row."""
    prompt_tokens: int | None = None
    """The most tokens before the first sampled one."""
    response_tokens: int | None = None
    """The most tokens from the first sampled one on."""
    leave_out_too_long: bool = False
    """Whether a longer row is left out whole and its tokens are counted; its session's reward still counts. False: its group is refused."""
    temperature: float | None = None
    """The temperature by which the trainer divides logits."""
    by_deviation: bool = True
    """Whether advantages are in standard deviations of the group's rewards. False: rewards less their mean."""


ANYTHING: Final = Takes()


class TrainSession(Struct, frozen=True, kw_only=True, eq=False):
    """A delivered session. It counts once, however many rows it has."""

    session_id: str
    index: int
    """Its number in the group, from 0 to N - 1."""
    reward: float
    rewards: dict[str, float]
    advantage: float
    """The reward less the mean of the group's sessions, by default in their (population) standard deviations."""
    rows: tuple[NeutralRow, ...]
    """The rows, each with a trainable token. Empty: nothing of the session is trained."""
    tokens: int
    """The number of trainable tokens in all rows: the weight of the session's loss, whatever row a token is in."""
    left_out: int = 0
    """The number of trainable tokens in rows that were left out as too long."""


class TrainGroup(Struct, frozen=True, kw_only=True, eq=False):
    """A delivered group, checked."""

    number: int
    """A number for trainers that have no names: unique among the groups that one trainer holds at a time."""
    group_id: str
    task_id: str
    run_id: str
    policy: str
    size: int
    """N: the number of sessions that were asked for."""
    merged_at: float
    """In Unix seconds."""
    sessions: tuple[TrainSession, ...]
    """The delivered sessions: those whose rewards count."""

    @property
    def tokens(self) -> int:
        """The number of trainable tokens."""
        return sum(session.tokens for session in self.sessions)

    @property
    def zero_variance(self) -> bool:
        """Whether all rewards are equal: all advantages are 0, and there is nothing to learn."""
        return len({session.reward for session in self.sessions}) <= 1

    def rows(self) -> Iterator[tuple[TrainSession, NeutralRow]]:
        """Yield all rows, those of a session one after the other."""
        return ((session, row) for session in self.sessions for row in session.rows)


def train_group(event: GroupMerged, takes: Takes = ANYTHING, *, number: int = 0, regrades: Mapping[str, str] = NO_REGRADES) -> TrainGroup:
    """Return a group as a trainer takes it. Raises GroupRefused, RowsRefused; TypeError if the group's blobs were not fetched."""
    if event.purpose is not Purpose.TRAIN:
        msg = f"group {event.group_id} is of purpose {event.purpose.value}"
        raise NotForTraining(msg)
    delivered = [member.scored for member in event.members if member.excluded is None and member.scored is not None]
    rewards = [_reward(scored) for scored in delivered]
    advantages = advantages_of(rewards, by_deviation=takes.by_deviation)
    return TrainGroup(
        number=number,
        group_id=event.group_id,
        task_id=event.task_id,
        run_id=event.run_id,
        policy=event.policy,
        size=event.size,
        merged_at=event.merged_at,
        sessions=tuple(
            _session(scored, reward, advantage, takes, regrades)
            for scored, reward, advantage in zip(delivered, rewards, advantages, strict=True)
        ),
    )


def advantages_of(rewards: Sequence[float], *, by_deviation: bool = True) -> list[float]:
    """Return the advantages of a group's sessions. Exactly 0 if all rewards are equal."""
    if len(set(rewards)) <= 1:
        return [0.0] * len(rewards)
    middle = fmean(rewards)
    scale = pstdev(rewards, middle) + EPSILON if by_deviation else 1.0
    return [(reward - middle) / scale for reward in rewards]


def _reward(scored: TrajectoryScored) -> float:
    if scored.reward is None or not math.isfinite(scored.reward):
        msg = f"session {scored.trajectory.session_id} has the reward {scored.reward}"
        raise SessionUngraded(msg)
    return scored.reward


def _session(scored: TrajectoryScored, reward: float, advantage: float, takes: Takes, regrades: Mapping[str, str]) -> TrainSession:
    kept, left_out = list[NeutralRow](), 0
    for row, event in zip(session_rows(scored, regrades), scored.trajectory.rows, strict=True):
        _check_tokens(row)
        _check_sampling(row, event.sampling, takes.temperature)
        if (excess := _excess(row, takes)) is None:
            kept.append(row)
        elif takes.leave_out_too_long:
            left_out += int(row["loss_mask"].sum())
        else:
            msg = f"{_called(row)} has {excess}"
            raise RowTooLong(msg)
    return TrainSession(
        session_id=scored.trajectory.session_id,
        index=scored.trajectory.spec.index,
        reward=reward,
        rewards=scored.rewards,
        advantage=advantage,
        rows=tuple(kept),
        tokens=sum(int(row["loss_mask"].sum()) for row in kept),
        left_out=left_out,
    )


def _check_tokens(row: NeutralRow) -> None:
    """Raise RowsRefused for a row that contradicts itself: it was not made by Evener's rules."""
    trained = row["loss_mask"] == 1
    if not trained.any():
        fault = "has no trainable token"
    elif row["prompt_len"] == 0 or trained[: row["prompt_len"]].any():
        fault = "trains a token of its prompt"
    elif not np.isfinite(row["logprobs"][trained]).all():
        fault = "has a trainable token without a logprob"
    elif (row["versions"][trained] < 0).any():
        fault = "has a trainable token without a version"
    else:
        return
    msg = f"{_called(row)} {fault}"
    raise RowsRefused(msg)


def _check_sampling(row: NeutralRow, how: Sampling, temperature: float | None) -> None:
    if how.temperature == 0 or how.top_p < 1 or how.top_k or how.min_p:
        fault = f"was sampled with temperature {how.temperature}, top_p {how.top_p}, top_k {how.top_k} and min_p {how.min_p}"
    elif temperature is not None and not math.isclose(how.temperature, temperature):
        fault = f"was sampled at temperature {how.temperature}, and the trainer divides by {temperature}"
    else:
        return
    msg = f"{_called(row)} {fault}"
    raise SamplingRefused(msg)


def _excess(row: NeutralRow, takes: Takes) -> str | None:
    """Return by what a row is longer than the trainer takes. None: it is not."""
    length, prompt = len(row["ids"]), row["prompt_len"]
    found = (("tokens", length, takes.row_tokens), ("tokens before the first sampled one", prompt, takes.prompt_tokens))
    for what, has, limit in (*found, ("tokens from the first sampled one on", length - prompt, takes.response_tokens)):
        if limit is not None and has > limit:
            return f"{has} {what}, and the trainer takes {limit}"
    return None


def _called(row: NeutralRow) -> str:
    return f"row {row['branch_index']} of session {row['rollout_id']}"
