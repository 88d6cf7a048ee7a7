"""The grader port: a trajectory and what its agent left go in; a reward and its evidence come out."""

import math
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from msgspec import Struct

from evener.blobs.port import Blobs
from evener.proto.errors import EvenerError
from evener.proto.trajectories import TrajectoryBuilt
from evener.sandboxes.port import Sandboxes

REWARD = "reward"
"""The name of the number that is the reward, if a grader gives several."""


class GraderError(EvenerError):
    """The grader crashed or gave no reward. The session counts as ungraded, not as 0. Look at its evidence: `evener show SESSION`."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


class GraderRefused(GraderError):
    """Trying again cannot help. Correct the task or the grader's options, and submit the task again."""


class GradingContext(Struct, frozen=True, kw_only=True, eq=False):
    """What a grader may use."""

    trajectory: TrajectoryBuilt
    """The session to grade. `trajectory.spec.grader.options` are the grader's own options."""
    blobs: Blobs
    """The blob store, which holds the task's archive and the session's artifacts."""
    sandboxes: Sandboxes | None
    """The backend that opens fresh sandboxes, of the kind in which the session ran. None: this process has none of that kind."""
    name: str
    """A name for a sandbox, unique among the gradings that run."""
    evidence: dict[str, bytes] = msgspec.field(default_factory=dict)
    """The files that the grading leaves, name to content. A grader fills it as it runs, so that it is kept however the grading ends."""


class Grade(Struct, frozen=True, kw_only=True):
    """What a session is worth."""

    reward: float | None
    """The reward, a finite number. None: this grader does not grade, and `ungraded` says why."""
    rewards: dict[str, float] = {}
    """All numbers that the grader reports, by name."""
    ungraded: str | None = None
    """Why there is no reward. None: there is one."""


Grader = Callable[[GradingContext], Awaitable[Grade]]
"""A way to score a session. A grader knows nothing of groups, retries or topics.

Raises GraderError or BlobError; any other exception is a crash of the grader.
"""


def graded(rewards: Mapping[str, float]) -> Grade:
    """Return the grade of named numbers: the one named `reward`, or their mean. Raises GraderError if one of them is not finite."""
    if not rewards:
        msg = "no reward among the grader's numbers"
        raise GraderError(msg)
    for name, value in rewards.items():
        if not math.isfinite(value):
            msg = f"reward {name!r} is {value}, not a finite number"
            raise GraderError(msg)
    reward = rewards.get(REWARD, sum(rewards.values()) / len(rewards))
    return Grade(reward=float(reward), rewards={name: float(value) for name, value in rewards.items()})
