"""Tells runners which kinds of sandboxes the next sessions need, so that they prepare them ahead."""

from collections.abc import Collection
from typing import Final

from msgspec import structs

from evener.proto.fleet import Heartbeat, QueuedSessions
from evener.proto.sandbox import SandboxKind
from evener.proto.state import Stage, TaskState
from evener.sandboxes.registry import BACKENDS
from evener.scheduler.open_tasks import OpenTasks

LOOKAHEAD_SESSIONS: Final = 2048
"""The number of waiting sessions that are looked at."""
MAX_KINDS: Final = 32
"""The number of kinds that a heartbeat names, at most 500 bytes each."""


def kind_of(task: TaskState) -> SandboxKind | None:
    """Return the kind of sandbox of a task's sessions. None: they need none, or none that is prepared ahead."""
    submitted = task.submitted
    harness = submitted.options.harness
    backend = BACKENDS.get(harness.sandbox)
    if submitted.task is None or not submitted.sandbox_digest or backend is None or not backend.warms:
        return None
    return SandboxKind(backend=harness.sandbox, harness=harness.name, needs=submitted.sandbox_digest)


def opens(runner: Heartbeat, backend: str) -> bool:
    """Return whether a runner can open sandboxes of a backend. One that does not say gets them, and refuses what it cannot."""
    return runner.sandboxes is None or backend not in BACKENDS or backend in runner.sandboxes.backends


def next_up(open_tasks: OpenTasks, held_back: Collection[str]) -> tuple[QueuedSessions, ...]:
    """Return the sessions at the head of the queue by the kind of their sandbox, the next ones first.

    `held_back`: the ids of tasks whose sessions do not start for now.
    """
    found: dict[SandboxKind, QueuedSessions] = {}
    left = LOOKAHEAD_SESSIONS
    for task in open_tasks.by_turns():
        kind, ref = kind_of(task), task.submitted.task
        waiting = sum(session.stage is Stage.QUEUED for session in task.sessions)
        if kind is not None and ref is not None and task.submitted.task_id not in held_back:
            known = found.get(kind) or QueuedSessions(kind=kind, task=ref, sessions=0)
            found[kind] = structs.replace(known, sessions=known.sessions + waiting)
        left -= waiting
        if left <= 0 or len(found) == MAX_KINDS:
            break
    return tuple(found.values())
