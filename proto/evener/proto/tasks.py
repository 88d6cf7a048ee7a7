"""Events of the topic `tasks`, keyed by task id: written by the scheduler."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from evener.proto.sessions import Event
from evener.proto.spec import (
    Budgets,
    Count,
    GraderSpec,
    HarnessSpec,
    Purpose,
    Sampling,
    SessionSpec,
    Streaming,
    Target,
    TaskRef,
)


class TaskOptions(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a client submits with a task. An unknown key is refused by name."""

    run_id: str = "default"
    samples: Annotated[int, Meta(ge=1, le=1024)] = 1
    """N sessions of the group."""
    early_at: Count | None = None
    at_least: Count | None = None
    """None: 2 where purpose is `train` and N is above 1, else 1."""
    purpose: Purpose = Purpose.TRAIN
    harness: HarnessSpec
    policy: str = "policy"
    models: dict[str, Target] = {}
    sampling: Sampling = Sampling()
    streaming: Streaming = Streaming.HOLD
    budgets: Budgets = Budgets()
    grader: GraderSpec
    max_lag: Annotated[int, Meta(ge=0)] | None = None


class TaskSubmitted(Event, frozen=True, kw_only=True, tag="task_submitted.v1"):
    """A task was accepted. The same task id again, with the same content, is the same task."""

    task_id: str
    task: TaskRef | None
    """None: a recording without a task."""
    options: TaskOptions
    submitted_at: float


class TaskCancelled(Event, frozen=True, kw_only=True, tag="task_cancelled.v1"):
    """Somebody asked for the task's end."""

    task_id: str
    reason: str
    cancelled_at: float


class TaskOutcome(StrEnum):
    """How a task ended."""

    MERGED = "merged"
    """Its group reached the trainers."""
    KEPT = "kept"
    """Its group of purpose `eval` or `collect` was kept."""
    FAILED = "failed"
    CANCELLED = "cancelled"


class TaskEnded(Event, frozen=True, kw_only=True, tag="task_ended.v1"):
    """Exactly one for every task."""

    task_id: str
    outcome: TaskOutcome
    reason: str = ""
    ended_at: float


def session_spec(submitted: TaskSubmitted, group_id: str, index: int) -> SessionSpec:
    """Return what sample `index` of the task's group is to do."""
    options = submitted.options
    least = options.at_least
    if least is None:
        least = 2 if options.purpose is Purpose.TRAIN and options.samples > 1 else 1
    return SessionSpec(
        run_id=options.run_id,
        task_id=submitted.task_id,
        group_id=group_id,
        group_size=options.samples,
        index=index,
        early_at=options.early_at,
        at_least=least,
        purpose=options.purpose,
        task=submitted.task,
        harness=options.harness,
        policy=options.policy,
        models=options.models,
        sampling=options.sampling,
        streaming=options.streaming,
        budgets=options.budgets,
        grader=options.grader,
        max_lag=options.max_lag,
    )
