"""Decides whether a trajectory is graded, and whether a failed grading is tried again. Pure."""

from collections.abc import Mapping
from typing import Final

from evener.graders.hacking.detect import after_flags
from evener.graders.port import REWARD, Grade, GraderRefused
from evener.graders.registry import GROUP_GRADERS
from evener.proto.reasons import END_POLICY
from evener.proto.sessions import Artifact
from evener.proto.spec import Purpose
from evener.proto.trajectories import Flag, TrajectoryBuilt, TrajectoryScored
from evener.tokens.trajectory import nothing_sampled

CRASH: Final = "crash.txt"
"""The evidence of a grader that crashed: its traceback."""
REASON: Final = "error.txt"
"""The evidence of a failed try that another one followed: why it failed."""


NOTHING_TO_COMPARE: Final = "its agent sampled nothing"
"""Why a session is not compared with the others of its group: it is excluded, and would change their rewards."""
OF_GROUP: Final = "group/"
"""The prefix of what the grading of a whole group left."""


def not_graded(trajectory: TrajectoryBuilt) -> str | None:
    """Return why the session is not graded. None: it is to be graded."""
    if END_POLICY[trajectory.termination_reason].grade:
        compared = trajectory.spec.grader.name in GROUP_GRADERS and trajectory.spec.purpose is Purpose.TRAIN
        return NOTHING_TO_COMPARE if compared and nothing_sampled(trajectory) else None
    return f"{trajectory.termination_reason}: {trajectory.detail}" if trajectory.detail else str(trajectory.termination_reason)


def gives_up(trajectory: TrajectoryBuilt, error: Exception, tries: int) -> bool:
    """Return whether the failure of try number `tries` (from 1) was the last one."""
    return isinstance(error, GraderRefused) or tries >= trajectory.spec.grader.tries


def of_try(number: int, evidence: Mapping[str, bytes], reason: str) -> dict[str, bytes]:
    """Return the evidence of a failed try under the names that tell it from later ones: `try-1/test-stdout.txt`."""
    return {f"try-{number}/{name}": content for name, content in {**evidence, REASON: reason.encode(errors="replace")}.items()}


def of_group(
    scored: TrajectoryScored, whole: Grade, evidence: tuple[Artifact, ...], *, seconds: float, tries: int, now: float
) -> TrajectoryScored:
    """Return the score of a session whose group was graded together. `whole`: the rewards of the sessions, by their numbers."""
    spec = scored.trajectory.spec
    reward = whole.rewards.get(str(spec.index))
    grade = Grade(reward=None, ungraded=whole.ungraded) if reward is None else Grade(reward=reward, rewards={REWARD: reward})
    grade = after_flags(grade, scored.flags, scored.unwatched, spec.grader.hacking)
    kept = (*scored.evidence, *(Artifact(name=f"{OF_GROUP}{one.name}", blob=one.blob) for one in evidence))
    return score(scored.trajectory, grade, kept, flags=scored.flags, unwatched=scored.unwatched, seconds=seconds, tries=tries, now=now)


def score(
    trajectory: TrajectoryBuilt,
    grade: Grade,
    evidence: tuple[Artifact, ...],
    *,
    flags: tuple[Flag, ...] = (),
    unwatched: str | None = None,
    pending: bool = False,
    seconds: float,
    tries: int,
    now: float,
) -> TrajectoryScored:
    """Return the event of a finished grading, or of none (`tries` 0). Its reason is valid UTF-8, even if it names a file that is not."""
    reason = None if grade.ungraded is None else grade.ungraded.encode(errors="backslashreplace").decode()
    return TrajectoryScored(
        trajectory=trajectory,
        pending=pending,
        reward=grade.reward,
        rewards=grade.rewards,
        call_rewards=grade.call_rewards,
        ungraded=reason,
        grader=trajectory.spec.grader.name,
        evidence=evidence,
        flags=flags,
        unwatched=unwatched,
        grading_seconds=seconds,
        tries=tries,
        scored_at=now,
    )
