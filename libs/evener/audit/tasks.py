"""I4: checks that every submitted task ended once."""

from msgspec import Struct

from evener.audit.findings import Findings, Invariant
from evener.audit.snapshot import EventRecord
from evener.bus.port import Position
from evener.proto.ids import group_of
from evener.proto.reasons import ExclusionReason
from evener.proto.spec import Purpose
from evener.proto.tasks import TaskDeleted, TaskEnded, TaskSubmitted


class Scope(Struct, frozen=True, kw_only=True):
    """The tasks that are audited. Times are Unix seconds of submission."""

    run_id: str | None = None
    since: float | None = None
    until: float | None = None

    @property
    def whole(self) -> bool:
        """Whether it is the whole log."""
        return self == Scope()

    def covers(self, task: TaskSubmitted) -> bool:
        """Return whether a task is audited."""
        after = self.since is None or task.submitted_at >= self.since
        before = self.until is None or task.submitted_at < self.until
        return after and before and self.run_id in {None, task.options.run_id}


class AuditedTask(Struct, kw_only=True, eq=False):
    """What its later stages are held against."""

    purpose: Purpose
    samples: int
    may_exclude: frozenset[ExclusionReason]
    """The reasons for which its group options may exclude sessions."""
    at: Position
    ends: list[Position]


class AuditedTasks:
    """The tasks in the scope."""

    def __init__(self, scope: Scope, findings: Findings) -> None:
        self._scope = scope
        self._findings = findings
        self.known: dict[str, AuditedTask] = {}
        self.unheard: dict[str, list[Position]] = {}
        """The ends of tasks that were never submitted, or that are out of scope."""
        self.deleted = set[str]()
        """Tasks whose run was deleted, with blobs that their records name."""

    def wants(self, key: str) -> bool:
        """Return whether the records of a session or a group are audited, by its id."""
        task_id, _, index = key.rpartition(".")
        if key in self.deleted or (task_id in self.deleted and index.isdecimal()):
            return False
        return self._scope.whole or self.has_session(key) or self.has_group(key)

    def has_session(self, session_id: str) -> bool:
        """Return whether a session's task is in the scope."""
        return session_id.rpartition(".")[0] in self.known

    def has_group(self, group_id: str) -> bool:
        """Return whether a group's task is in the scope."""
        return group_id in self.known

    def expects(self, session_id: str) -> bool:
        """Return whether it is a session of a task in the scope."""
        task_id, _, index = session_id.rpartition(".")
        task = self.known.get(task_id)
        return task is not None and index.isdecimal() and int(index) < task.samples and index == str(int(index))

    def record(self, read: EventRecord, ended_before: int) -> None:
        """Note a record of `tasks`. Ends from `ended_before` on are too new to count."""
        event = read.event
        if isinstance(event, TaskSubmitted) and self._scope.covers(event):
            options = event.options
            self.known.setdefault(
                event.task_id,
                AuditedTask(
                    purpose=options.purpose,
                    samples=options.samples,
                    may_exclude=options.group.may_exclude(),
                    at=read.at,
                    ends=[],
                ),
            )
        elif isinstance(event, TaskEnded) and read.record.offset < ended_before:
            task = self.known.get(event.task_id)
            (self.unheard.setdefault(event.task_id, []) if task is None else task.ends).append(read.at)
        elif isinstance(event, TaskDeleted):
            self.deleted.add(event.task_id)
            self.known.pop(event.task_id, None)
            self.unheard.pop(event.task_id, None)

    def check_ends(self, groups: dict[str, list[Position]], *, settled: bool, trimmed: bool) -> int:
        """Check every task against its ends and its groups; return how many are open. `settled`: none may be."""
        open_tasks = 0
        for task_id, task in self.known.items():
            ends, delivered = task.ends, groups.get(group_of(task_id), [])
            self._findings.count(Invariant.TASKS)
            if len(ends) > 1 or (settled and not ends):
                self._findings.breach(Invariant.TASKS, task_id, f"it has {len(ends)} ends", task.at, *ends)
            if len(delivered) > 1 or (not delivered and (settled or ends) and not trimmed):
                self._findings.breach(
                    Invariant.DELIVERED, task_id, f"its group ended {len(delivered)} times", *(ends or [task.at]), *delivered
                )
            open_tasks += not ends
        if self._scope.whole and not trimmed:
            for task_id, at in self.unheard.items():
                self._findings.breach(Invariant.TASKS, task_id, "it ended, but was never submitted", *at)
        return open_tasks
