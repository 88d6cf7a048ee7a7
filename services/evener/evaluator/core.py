"""What to do with a trajectory: grade it, or say why not; after a failed grading: again, or give up. Pure."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from evener.graders.port import Grade, GraderRefused
from evener.proto.ends import CONSEQUENCES
from evener.proto.sessions import Artifact
from evener.proto.trajectories import TrajectoryBuilt, TrajectoryScored

MAX_PAUSE_SECONDS: Final = 60.0
MOST_DOUBLINGS: Final = 60
"""Of the first pause: a store that is away for a day has thousands of tries."""
CRASH: Final = "crash.txt"
"""Evidence of a grader that crashed: its traceback."""
REASON: Final = "error.txt"
"""Evidence of a failed try that was followed by another: why it failed."""


class Next(StrEnum):
    """What follows a failed try."""

    AGAIN = "again"
    GIVE_UP = "give_up"


def not_graded(trajectory: TrajectoryBuilt) -> str | None:
    """Return why the session is not graded. None: it is to be graded."""
    if CONSEQUENCES[trajectory.end].grade:
        return None
    return f"{trajectory.end}: {trajectory.detail}" if trajectory.detail else str(trajectory.end)


def after_failure(trajectory: TrajectoryBuilt, error: Exception, tries: int) -> Next:
    """Return what follows the failure of try number `tries` (from 1)."""
    refused = isinstance(error, GraderRefused)
    return Next.GIVE_UP if refused or tries >= trajectory.spec.grader.tries else Next.AGAIN


def pause_seconds(tries: int, first: float) -> float:
    """Return the pause after try number `tries`: `first`, then twice as long each time, up to a minute."""
    return min(MAX_PAUSE_SECONDS, first * 2.0 ** min(tries - 1, MOST_DOUBLINGS))


def of_try(number: int, evidence: Mapping[str, bytes], reason: str) -> dict[str, bytes]:
    """Return the evidence of a failed try as it is named beside that of later ones: `try-1/test-stdout.txt`."""
    return {f"try-{number}/{name}": content for name, content in {**evidence, REASON: reason.encode(errors="replace")}.items()}


def score(
    trajectory: TrajectoryBuilt, grade: Grade, evidence: tuple[Artifact, ...], *, seconds: float, tries: int, now: float
) -> TrajectoryScored:
    """Return the event of a finished grading, or of none (`tries` 0). Its reason is such as every reader decodes: it may name a file."""
    reason = None if grade.ungraded is None else grade.ungraded.encode(errors="backslashreplace").decode()
    return TrajectoryScored(
        trajectory=trajectory,
        reward=grade.reward,
        rewards=grade.rewards,
        ungraded=reason,
        grader=trajectory.spec.grader.name,
        evidence=evidence,
        grading_seconds=seconds,
        tries=tries,
        scored_at=now,
    )
