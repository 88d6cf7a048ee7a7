"""How sessions end, why tokens are left out, and what follows from an end: one enum each, and one table.

The gateway (which seals) and the scheduler (which starts attempts) judge an end with the same pure function: `judge`.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import Final

from msgspec import Struct


class ExitCause(StrEnum):
    """Why the runner says that a harness is gone."""

    EXITED = "exited"
    """The process ended by itself; its exit code is recorded."""
    AGENT_TIME = "agent_time"
    """The agent's clock ran out, and the runner ended the process."""
    NO_START = "no_start"
    """It could not be started for a reason that another attempt would meet again (harness missing, bad configuration)."""
    CANCELLED = "cancelled"
    """The scheduler asked for it."""
    SANDBOX_LOST = "sandbox_lost"
    """The sandbox or its runner failed under the harness."""
    STOPPED = "stopped"
    """The runner was asked to stop while the harness ran; another attempt may run elsewhere."""


class CallFailure(StrEnum):
    """Why a call has no answer."""

    ENGINE_UNREACHABLE = "engine_unreachable"
    ENGINE_ERROR = "engine_error"
    NOT_COMMITTED = "not_committed"
    OWNER_LOST = "owner_lost"
    """Its gateway died or was fenced while the call was open."""
    OVERLOADED = "overloaded"
    CONTEXT_OVERFLOW = "context_overflow"
    BUDGET = "budget"
    CANCELLED = "cancelled"
    """The harness left or its session ended before anything was sampled."""
    REFUSED = "refused"
    """The request asks for what its provider would serve and we do not (a field, an image without vision); the detail names it."""
    MALFORMED = "malformed"
    """The request is none that any provider would serve: not JSON, a field missing or of a wrong type."""
    MODEL_REFUSED = "model_refused"
    """The run's own model map refuses this model."""


class Whose(StrEnum):
    """Whose fault it is that a call has no answer."""

    OURS = "ours"
    """Something of ours failed, was full or did not know the session. Another attempt may not meet it."""
    UNSERVED = "unserved"
    """Ours as well: we do not serve what a provider would. Another attempt would meet it again."""
    AGENT = "agent"
    """What the agent did: it filled its context, or spent its budget."""
    HARNESS = "harness"
    """The harness asked wrongly, or left."""
    RUN = "run"
    """The run's owner chose it."""


WHOSE: Final[dict[CallFailure, Whose]] = {
    CallFailure.ENGINE_UNREACHABLE: Whose.OURS,
    CallFailure.ENGINE_ERROR: Whose.OURS,
    CallFailure.NOT_COMMITTED: Whose.OURS,
    CallFailure.OWNER_LOST: Whose.OURS,
    CallFailure.OVERLOADED: Whose.OURS,
    CallFailure.REFUSED: Whose.UNSERVED,
    CallFailure.CONTEXT_OVERFLOW: Whose.AGENT,
    CallFailure.BUDGET: Whose.AGENT,
    CallFailure.CANCELLED: Whose.HARNESS,
    CallFailure.MALFORMED: Whose.HARNESS,
    CallFailure.MODEL_REFUSED: Whose.RUN,
}
INFRASTRUCTURE: Final = frozenset(failure for failure, whose in WHOSE.items() if whose is Whose.OURS)
"""A session whose last call met one of these is run again."""
UNSERVED: Final = frozenset(failure for failure, whose in WHOSE.items() if whose is Whose.UNSERVED)
"""A session any of whose calls met one of these is not trained."""


class End(StrEnum):
    """Why an attempt or a session ended. One enum for every stage."""

    FINISHED = "finished"
    """The harness exited with 0."""
    HARNESS_FAILED = "harness_failed"
    """The harness exited with another code, and no infrastructure fault explains it."""
    AGENT_TIME = "agent_time"
    TOKEN_BUDGET = "token_budget"
    CALL_BUDGET = "call_budget"
    TURN_BUDGET = "turn_budget"
    CONTEXT_OVERFLOW = "context_overflow"
    LOOPING = "looping"
    INFRASTRUCTURE = "infrastructure"
    """The last call failed for a reason of ours, whatever the harness's exit code."""
    REFUSED = "refused"
    """A call asked for what we do not serve: what the agent did after it says nothing about the agent. The detail names the field."""
    SANDBOX_LOST = "sandbox_lost"
    RUNNER_LOST = "runner_lost"
    """The lease ran out without a sign of the runner."""
    STOPPED = "stopped"
    """The runner was stopped."""
    NO_START = "no_start"
    """Nothing another attempt could mend: the task fails with the reason."""
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    """The session's hard deadline passed."""
    ATTEMPTS_USED_UP = "attempts_used_up"


class Consequence(Struct, frozen=True):
    """What follows from an end."""

    run_again: bool = False
    grade: bool = False
    trainable: bool = False
    fails_task: bool = False


RUN_AGAIN: Final = Consequence(run_again=True)
GRADED: Final = Consequence(grade=True, trainable=True)
NOTHING: Final = Consequence()

CONSEQUENCES: Final[dict[End, Consequence]] = {
    End.FINISHED: GRADED,
    End.HARNESS_FAILED: GRADED,
    End.AGENT_TIME: GRADED,
    End.TOKEN_BUDGET: GRADED,
    End.CALL_BUDGET: GRADED,
    End.TURN_BUDGET: GRADED,
    End.CONTEXT_OVERFLOW: GRADED,
    End.LOOPING: GRADED,
    End.INFRASTRUCTURE: RUN_AGAIN,
    End.REFUSED: NOTHING,
    End.SANDBOX_LOST: RUN_AGAIN,
    End.RUNNER_LOST: RUN_AGAIN,
    End.STOPPED: RUN_AGAIN,
    End.NO_START: Consequence(fails_task=True),
    End.CANCELLED: NOTHING,
    End.DEADLINE: NOTHING,
    End.ATTEMPTS_USED_UP: NOTHING,
}


class LeftOut(StrEnum):
    """Why a sampled token does not reach a trainer. Delivered + left out by reason = sampled, always."""

    ORPHAN = "orphan"
    """Its answer was not received, or a transport retry superseded it."""
    ABORTED = "aborted"
    SIDE_CALL = "side_call"
    FROZEN = "frozen"
    """Sampled by a frozen engine of the model map, not by the policy."""
    CONSTRAINED = "constrained"
    """Its logprob is not that of the distribution it was sampled from."""
    VERSION_UNKNOWN = "version_unknown"
    IMAGE = "image"
    """Its context holds an image, which rows cannot carry yet."""
    DOUBT = "doubt"
    """A record of it is missing, damaged or contradicts another."""
    FAILED_TRY = "failed_try"
    """Its call failed before the answer was whole."""
    BUDGET = "budget"
    """It came when the session's token budget was spent, and was cut off."""
    EARLIER_ATTEMPT = "earlier_attempt"
    END = "end"
    """Its session's end is not trainable."""
    NOTHING_SAMPLED = "nothing_sampled"
    """Of a session: no call of its agent sampled a token, so its reward is not the policy's."""
    UNGRADED = "ungraded"
    STALE = "stale"
    LATE = "late"
    """Its group had been delivered early."""
    GROUP_FAILED = "group_failed"
    DEAD_LETTER = "dead_letter"


NOT_BY_ITSELF: Final[dict[ExitCause, End]] = {
    ExitCause.CANCELLED: End.CANCELLED,
    ExitCause.NO_START: End.NO_START,
    ExitCause.SANDBOX_LOST: End.SANDBOX_LOST,
    ExitCause.STOPPED: End.STOPPED,
}
"""Exits that say all: neither the harness's code nor its calls count."""


def judge(
    cause: ExitCause, exit_code: int | None, last_call: CallFailure | None, budget: End | None, failures: Collection[CallFailure] = ()
) -> End:
    """Return how an attempt ended.

    `last_call` is the failure of the attempt's last call that was not followed by an answered one (None: answered, or no call),
    `budget` the limit that the gateway enforced during the attempt, if any, `failures` those of all its calls.
    """
    if cause in NOT_BY_ITSELF:
        return NOT_BY_ITSELF[cause]
    if last_call in INFRASTRUCTURE:
        return End.INFRASTRUCTURE
    if not UNSERVED.isdisjoint(failures):
        return End.REFUSED
    if budget is not None:
        return budget
    if last_call is CallFailure.CONTEXT_OVERFLOW:
        return End.CONTEXT_OVERFLOW
    if cause is ExitCause.AGENT_TIME:
        return End.AGENT_TIME
    return End.FINISHED if exit_code == 0 else End.HARNESS_FAILED
