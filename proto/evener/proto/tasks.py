"""Events of the topic `tasks`, keyed by task id. The scheduler writes them."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct, structs

from evener.proto.sessions import Event
from evener.proto.spec import (
    Budgets,
    GraderSpec,
    GroupOptions,
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
    priority: Annotated[int, Meta(ge=1, le=100)] = 1
    """The run's share of the slots, relative to other runs that wait: 3 gets three times the slots of 1. The highest of its waiting tasks
    counts."""
    samples: Annotated[int, Meta(ge=1, le=1024)] = 1
    """N: the number of sessions in the group."""
    group: GroupOptions = GroupOptions()
    purpose: Purpose = Purpose.TRAIN
    harness: HarnessSpec
    policy: str = "policy"
    models: dict[str, Target] = {}
    sampling: Sampling = Sampling()
    streaming: Streaming = Streaming.BUFFERED
    budgets: Budgets = Budgets()
    grader: GraderSpec


class TaskSubmitted(Event, frozen=True, kw_only=True, tag="task_submitted.v1"):
    """A task was accepted. A submission of the same id with the same content is the same task."""

    task_id: str
    task: TaskRef | None
    """The task's files. None: a recording without a task."""
    options: TaskOptions
    sandbox_digest: str = ""
    """The digest of what its sessions ask of their sandbox: `SandboxKind.needs`. Empty: there is no task, or an older scheduler wrote this.
    """
    principal: str = ""
    """The name of the principal that submitted the task. Empty: it was submitted before there were principals."""
    team: str = ""
    """The principal's team."""
    submitted_at: float


class TaskCancelled(Event, frozen=True, kw_only=True, tag="task_cancelled.v1"):
    """A client asked for the end of the task."""

    task_id: str
    reason: str
    cancelled_at: float


class TaskOutcome(StrEnum):
    """How a task ended."""

    MERGED = "merged"
    """The task's group reached the trainers."""
    KEPT = "kept"
    """The task's group, of purpose `eval` or `collect`, was kept."""
    DROPPED = "dropped"
    """The task's group could have been used, but a rule of its run dropped it. The reason names the rule."""
    FAILED = "failed"
    CANCELLED = "cancelled"


class TaskEnded(Event, frozen=True, kw_only=True, tag="task_ended.v1"):
    """The task ended. There is exactly one such event for every task."""

    task_id: str
    outcome: TaskOutcome
    reason: str = ""
    ended_at: float


class TaskDeleted(Event, frozen=True, kw_only=True, tag="task_deleted.v1"):
    """The run of an ended task was deleted: its state is gone, and blobs that only its records name are being removed."""

    task_id: str
    run_id: str
    team: str = ""
    """The team whose principal had submitted the task."""
    deleted_at: float


TaskEvent = TaskSubmitted | TaskCancelled | TaskEnded | TaskDeleted


def group_problem(options: TaskOptions) -> tuple[str, str] | None:
    """Return the field of `options.group` that contradicts the other options, and why. None: no field does."""
    group, samples = options.group, options.samples
    deliver_at = group.deliver_early_at or samples
    if deliver_at > samples:
        return "deliver_early_at", f"{deliver_at} sessions are to be usable, and a group has only {samples}"
    if group.min_usable is not None and group.min_usable > deliver_at:
        return "min_usable", f"{group.min_usable} sessions are to be usable, and a group is delivered at {deliver_at}"
    if group.drop_zero_variance and options.purpose is not Purpose.TRAIN:
        return "drop_zero_variance", f"groups of purpose `{options.purpose}` are not trained, so their variance does not matter"
    if group.drop_zero_variance and samples == 1:
        return "drop_zero_variance", "a group of one session has no variance: every group would be dropped"
    return None


def session_spec(submitted: TaskSubmitted, group_id: str, index: int) -> SessionSpec:
    """Return the spec of session `index` in the task's group."""
    options = submitted.options
    group = options.group
    if group.min_usable is None:
        group = structs.replace(group, min_usable=2 if options.purpose is Purpose.TRAIN and options.samples > 1 else 1)
    return SessionSpec(
        run_id=options.run_id,
        team=submitted.team,
        task_id=submitted.task_id,
        group_id=group_id,
        group_size=options.samples,
        index=index,
        group=group,
        purpose=options.purpose,
        task=submitted.task,
        harness=options.harness,
        policy=options.policy,
        models=options.models,
        sampling=options.sampling,
        streaming=options.streaming,
        budgets=options.budgets,
        grader=options.grader,
    )
