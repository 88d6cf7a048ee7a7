"""The grader port: a trajectory and what its agent left go in; a reward and its evidence come out."""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec
from msgspec import Struct

from evener.blobs.port import Blobs
from evener.graders.config import Endpoint
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


class Allowed(Struct, frozen=True, kw_only=True):
    """What graders may reach outside of sandboxes."""

    endpoints: Mapping[str, Endpoint] = {}
    modules: Sequence[str] = ()
    """The Python modules whose functions may grade, in this process."""


class GradingContext(Struct, frozen=True, kw_only=True, eq=False):
    """The inputs and resources of a grader."""

    trajectory: TrajectoryBuilt
    """The session to grade. `trajectory.spec.grader.options` are the grader's own options."""
    blobs: Blobs
    """The blob store, which holds the task's archive and the session's artifacts."""
    sandboxes: Sandboxes | None
    """The backend that opens fresh sandboxes, of the kind in which the session ran. None: this process has none of that kind."""
    name: str
    """A name for a sandbox, unique among the gradings that run."""
    allowed: Allowed = Allowed()
    group: Sequence[TrajectoryBuilt] = ()
    """The sessions of the group that are graded together, for a grader that compares them. `trajectory` is the first of them."""
    evidence: dict[str, bytes] = msgspec.field(default_factory=dict)
    """The files that the grading leaves, name to content. A grader fills it as it runs, so that it is kept however the grading ends."""


class Grade(Struct, frozen=True, kw_only=True):
    """The rewards of a session."""

    reward: float | None
    """The reward, a finite number. None: this grader does not grade, and `ungraded` says why."""
    rewards: dict[str, float] = {}
    """All numbers that the grader reports, by name."""
    call_rewards: dict[str, float] = {}
    """Rewards of single calls, by call id. Calls without one are not in it."""
    ungraded: str | None = None
    """Why there is no reward. None: there is one."""


Grader = Callable[[GradingContext], Awaitable[Grade]]
"""A way to score a session. A grader knows nothing of groups, retries or topics.

Raises GraderError or BlobError; any other exception is a crash of the grader.
"""


def graded(rewards: Mapping[str, float], call_rewards: Mapping[str, float] | None = None) -> Grade:
    """Return the grade of named numbers: the one named `reward`, or their mean. Raises GraderError if one of them is not finite."""
    if not rewards:
        msg = "no reward among the grader's numbers"
        raise GraderError(msg)
    for name, value in (*rewards.items(), *(call_rewards or {}).items()):
        if not math.isfinite(value):
            msg = f"reward {name!r} is {value}, not a finite number"
            raise GraderError(msg)
    reward = rewards.get(REWARD, sum(rewards.values()) / len(rewards))
    named = {name: float(value) for name, value in rewards.items()}
    return Grade(reward=float(reward), rewards=named, call_rewards={call: float(value) for call, value in (call_rewards or {}).items()})


def of_calls(trajectory: TrajectoryBuilt, call_rewards: Mapping[str, float]) -> Mapping[str, float]:
    """Return rewards of calls. Raises GraderError if one of the calls is not of this session."""
    known = {call.call_id for call in trajectory.calls}
    for call_id in call_rewards:
        if call_id not in known:
            msg = f"call {call_id!r} has a reward, but the session has no call of that id"
            raise GraderError(msg)
    return call_rewards
