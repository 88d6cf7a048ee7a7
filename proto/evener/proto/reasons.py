"""Why calls, attempts and sessions end, why tokens are excluded, and what follows from an end.

The gateway, which seals, and the scheduler, which starts attempts, use the same pure function: `termination_of`.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import Final

from msgspec import Struct


class ExitCause(StrEnum):
    """Why the runner reports that a harness is gone."""

    EXITED = "exited"
    """The process exited by itself. Its exit code is recorded."""
    AGENT_TIME = "agent_time"
    """The agent's clock ran out, and the runner ended the process."""
    WALL_TIME = "wall_time"
    """The attempt took as long as it may, waits included, and the runner ended the process."""
    NO_START = "no_start"
    """The harness could not be started, for a reason that another attempt would meet again (program missing, bad configuration)."""
    CANCELLED = "cancelled"
    """The scheduler asked the runner to end the harness."""
    SANDBOX_LOST = "sandbox_lost"
    """The sandbox or its runner failed while the harness ran."""
    STOPPED = "stopped"
    """The runner was asked to stop while the harness ran, or could open no further file. Another attempt may run elsewhere."""


class CallFailure(StrEnum):
    """Why a call has no answer."""

    ENGINE_UNREACHABLE = "engine_unreachable"
    ENGINE_ERROR = "engine_error"
    NOT_COMMITTED = "not_committed"
    OWNER_LOST = "owner_lost"
    """The call's gateway died, was fenced or let the partition go while the call was open."""
    OVERLOADED = "overloaded"
    CONTEXT_OVERFLOW = "context_overflow"
    BUDGET = "budget"
    CANCELLED = "cancelled"
    """The harness disconnected, or its session ended, before anything was sampled."""
    REFUSED = "refused"
    """The request asks for what its provider serves and Evener does not (a field, an image without vision). The detail names it."""
    MALFORMED = "malformed"
    """No provider would serve this request: it is not JSON, or a field is missing or of the wrong type."""
    MODEL_REFUSED = "model_refused"
    """The run's own model map refuses this model."""


INFRASTRUCTURE: Final = frozenset(
    {
        CallFailure.ENGINE_UNREACHABLE,
        CallFailure.ENGINE_ERROR,
        CallFailure.NOT_COMMITTED,
        CallFailure.OWNER_LOST,
        CallFailure.OVERLOADED,
    }
)
"""Faults of Evener that another attempt may not meet: a session whose agent did not go on after one of these is run again."""
UNSERVED: Final = frozenset({CallFailure.REFUSED})
"""Faults of Evener that another attempt would meet again: a session is not trained if any of its calls failed for one of these reasons.
All other failures are the doing of the agent, its harness or the run's owner, and part of what is trained."""


class TerminationReason(StrEnum):
    """Why an attempt or a session ended. Every stage uses this one enum."""

    FINISHED = "finished"
    """The harness exited with code 0."""
    HARNESS_FAILED = "harness_failed"
    """The harness exited with another code, and no infrastructure fault explains it."""
    AGENT_TIME = "agent_time"
    WALL_TIME = "wall_time"
    TOKEN_BUDGET = "token_budget"
    CALL_BUDGET = "call_budget"
    TURN_BUDGET = "turn_budget"
    CONTEXT_OVERFLOW = "context_overflow"
    LOOPING = "looping"
    INFRASTRUCTURE = "infrastructure"
    """A call failed because of Evener and its agent did not go on, whatever the exit code of the harness."""
    REFUSED = "refused"
    """A call asked for something that Evener does not serve, so what the agent did next says nothing about the agent. The detail names the
    field."""
    SANDBOX_LOST = "sandbox_lost"
    STOPPED = "stopped"
    """The runner was stopped."""
    NO_START = "no_start"
    """The attempt could not start, and another attempt would not help: the task fails with the reason."""
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    """The session's hard deadline passed."""
    ATTEMPTS_USED_UP = "attempts_used_up"


class EndPolicy(Struct, frozen=True):
    """What follows from a termination reason."""

    run_again: bool = False
    grade: bool = False
    trainable: bool = False
    fails_task: bool = False


RUN_AGAIN: Final = EndPolicy(run_again=True)
GRADED: Final = EndPolicy(grade=True, trainable=True)
DISCARDED: Final = EndPolicy()

END_POLICY: Final[dict[TerminationReason, EndPolicy]] = {
    TerminationReason.FINISHED: GRADED,
    TerminationReason.HARNESS_FAILED: GRADED,
    TerminationReason.AGENT_TIME: GRADED,
    TerminationReason.WALL_TIME: GRADED,
    TerminationReason.TOKEN_BUDGET: GRADED,
    TerminationReason.CALL_BUDGET: GRADED,
    TerminationReason.TURN_BUDGET: GRADED,
    TerminationReason.CONTEXT_OVERFLOW: GRADED,
    TerminationReason.LOOPING: GRADED,
    TerminationReason.INFRASTRUCTURE: RUN_AGAIN,
    TerminationReason.REFUSED: DISCARDED,
    TerminationReason.SANDBOX_LOST: RUN_AGAIN,
    TerminationReason.STOPPED: RUN_AGAIN,
    TerminationReason.NO_START: EndPolicy(fails_task=True),
    TerminationReason.CANCELLED: DISCARDED,
    TerminationReason.DEADLINE: DISCARDED,
    TerminationReason.ATTEMPTS_USED_UP: DISCARDED,
}


class ExclusionReason(StrEnum):
    """Why a sampled token does not reach a trainer. The delivered tokens plus the excluded ones always equal the sampled ones."""

    ORPHAN = "orphan"
    """The answer was not received, or a transport retry superseded it."""
    ABORTED = "aborted"
    SIDE_CALL = "side_call"
    FROZEN = "frozen"
    """A frozen engine of the model map sampled the token, not the policy."""
    CONSTRAINED = "constrained"
    """The reported logprob is not that of the distribution the token was sampled from."""
    VERSION_UNKNOWN = "version_unknown"
    IMAGE = "image"
    """The context of the token holds an image, which rows cannot carry yet."""
    INCONSISTENT = "inconsistent"
    """A record of the token is missing or damaged, or contradicts another record."""
    FAILED_TRY = "failed_try"
    """The call failed before its answer was complete."""
    BUDGET = "budget"
    """The token was sampled after the session's token budget was spent, and was cut off."""
    EARLIER_ATTEMPT = "earlier_attempt"
    UNTRAINABLE_END = "untrainable_end"
    """The session ended for a reason that makes it untrainable."""
    NOTHING_SAMPLED = "nothing_sampled"
    """For a whole session: no call of its agent sampled a token, so its reward is not the policy's."""
    UNGRADED = "ungraded"
    STALE = "stale"
    LATE = "late"
    """The group was delivered early, before this session ended."""
    GROUP_FAILED = "group_failed"
    GROUP_DROPPED = "group_dropped"
    """A rule of the run dropped the group, though the group could have been used. The group's record names the rule."""
    DEAD_LETTER = "dead_letter"


NOT_BY_ITSELF: Final[dict[ExitCause, TerminationReason]] = {
    ExitCause.CANCELLED: TerminationReason.CANCELLED,
    ExitCause.NO_START: TerminationReason.NO_START,
    ExitCause.SANDBOX_LOST: TerminationReason.SANDBOX_LOST,
    ExitCause.STOPPED: TerminationReason.STOPPED,
}
"""Exit causes that decide the termination reason alone: neither the exit code nor the calls matter."""


def termination_of(
    cause: ExitCause,
    exit_code: int | None,
    last_call: CallFailure | None,
    budget: TerminationReason | None,
    failures: Collection[CallFailure] = (),
) -> TerminationReason:
    """Return why an attempt ended.

    `last_call` is the failure of the attempt's last call that no answered call followed; it is None if that call was answered, or if there
    was no call. `budget` is the limit that the gateway enforced during the attempt, if any. `failures` are the failures of all calls.
    """
    if cause in NOT_BY_ITSELF:
        return NOT_BY_ITSELF[cause]
    if last_call in INFRASTRUCTURE:
        return TerminationReason.INFRASTRUCTURE
    if not UNSERVED.isdisjoint(failures):
        return TerminationReason.REFUSED
    if budget is not None:
        return budget
    if last_call is CallFailure.CONTEXT_OVERFLOW:
        return TerminationReason.CONTEXT_OVERFLOW
    if cause is ExitCause.AGENT_TIME:
        return TerminationReason.AGENT_TIME
    if cause is ExitCause.WALL_TIME:
        return TerminationReason.WALL_TIME
    return TerminationReason.FINISHED if exit_code == 0 else TerminationReason.HARNESS_FAILED
