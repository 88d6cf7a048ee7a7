"""I2, I3, I6 and I9: checks which sessions of each group were delivered, and why the others were not.

I7: no delivered session met a fault of Evener.
"""

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
from msgspec import Struct

from evener.audit.findings import Findings, Invariant
from evener.audit.sessions import SessionFacts
from evener.audit.snapshot import EventRecord
from evener.audit.tasks import AuditedTask, AuditedTasks
from evener.bus.port import Position
from evener.proto.arrays import float32s, int32s, uint8s
from evener.proto.ids import session_of
from evener.proto.reasons import END_POLICY, ExclusionReason
from evener.proto.spec import Purpose
from evener.proto.topics import GROUP_TOPIC, Topic
from evener.proto.trajectories import GroupFailed, GroupMerged, GroupOutcome, Member, Row, TrajectoryScored
from evener.tokens.rows import digest

NO_ROWS: Final = digest(())


class FirstScore(Struct, frozen=True, kw_only=True):
    """The first TrajectoryScored of a session: the one that counts."""

    reward: float | None
    scored_at: float
    at: Position


class AuditedGroups:
    """The groups of the tasks in the scope, record by record."""

    def __init__(
        self,
        tasks: AuditedTasks,
        sessions: Mapping[str, SessionFacts],
        lost: frozenset[str],
        unproven: frozenset[tuple[str, int]],
        findings: Findings,
        *,
        settled: bool,
    ) -> None:
        """`lost`: sessions of which a record is a dead letter. `unproven`: the staged and the rolled-back versions of policies."""
        self._tasks = tasks
        self._unproven = unproven
        self._sessions = sessions
        self._lost = lost
        self._findings = findings
        self._settled = settled
        self._scores: dict[str, FirstScore] = {}
        self.ended: dict[str, list[Position]] = {}
        """The ends of each group that has any."""

    def score(self, read: EventRecord) -> None:
        """Note a record of `trajectories.scored`."""
        if isinstance(scored := read.event, TrajectoryScored) and not scored.pending:
            first = FirstScore(reward=scored.reward, scored_at=scored.scored_at, at=read.at)
            self._scores.setdefault(scored.trajectory.session_id, first)

    def record(self, topic: Topic, read: EventRecord) -> None:
        """Check a group, its rows inline. Its repeats are noted only."""
        group = read.event
        if not isinstance(group, GroupOutcome):
            return
        ends = self.ended.setdefault(group.group_id, [])
        ends.append(read.at)
        task = self._tasks.known.get(group.task_id)
        if task is None or len(ends) > 1:
            return
        if topic is not GROUP_TOPIC[task.purpose] or group.purpose is not task.purpose:
            what = f"a group of purpose {group.purpose}, of a task of purpose {task.purpose}, is in {topic}"
            self._findings.breach(Invariant.DELIVERED, group.group_id, what, task.at, read.at)
        self._findings.count(Invariant.GROUPS)
        named = [member.session_id for member in group.members]
        if named != [session_of(group.group_id, index) for index in range(task.samples)]:
            self._findings.breach(Invariant.GROUPS, group.group_id, f"it names {', '.join(named) or 'none'}", task.at, read.at)
        self._findings.count(Invariant.ACCOUNTS)
        accounts = [member.scored.trajectory.accounting for member in group.members if member.scored is not None]
        sampled, delivered = sum(one.sampled for one in accounts), sum(one.delivered for one in accounts)
        if (sampled, delivered) != (group.accounting.sampled, group.accounting.delivered):
            counted = f"{group.accounting.sampled} sampled and {group.accounting.delivered} delivered tokens"
            what = f"it counts {counted}, its members {sampled} and {delivered}"
            self._findings.breach(Invariant.ACCOUNTS, group.group_id, what, read.at)
        for member in group.members:
            self._member(task, group, member, read.at)

    def _member(self, task: AuditedTask, group: GroupOutcome, member: Member, at: Position) -> None:
        self._findings.count(Invariant.DELIVERED)
        facts, score = self._sessions.get(member.session_id), self._scores.get(member.session_id)
        if facts is None or score is None:
            late = member.excluded is ExclusionReason.LATE and not self._settled
            if not late and member.session_id not in self._lost:
                self._findings.breach(Invariant.DELIVERED, member.session_id, "it was never built and scored", at)
            return
        shown = (facts.seal, facts.built.at[0], score.at, at)
        for what in self._delivery(task, group, member, facts, score):
            self._findings.breach(Invariant.DELIVERED, member.session_id, what, *shown)
        if member.excluded is None and group.purpose is Purpose.TRAIN:
            self._findings.count(Invariant.OURS)
            for what in facts.ours:
                self._findings.breach(Invariant.OURS, member.session_id, what, *shown)
        for number, row in enumerate(() if member.scored is None else member.scored.trajectory.rows):
            self._findings.count(Invariant.TOKENS)
            for what in _row(row):
                self._findings.breach(Invariant.TOKENS, member.session_id, f"row {number}: {what}", at)

    def _delivery(self, task: AuditedTask, group: GroupOutcome, member: Member, facts: SessionFacts, score: FirstScore) -> Iterator[str]:
        built, end = facts.built, END_POLICY[facts.built.termination_reason]
        by_option = member.excluded in task.may_exclude
        allowed = {
            None: isinstance(group, GroupMerged) and (task.purpose is Purpose.COLLECT or (end.trainable and score.reward is not None)),
            ExclusionReason.UNTRAINABLE_END: not end.trainable,
            ExclusionReason.NOTHING_SAMPLED: not built.own_tokens,
            ExclusionReason.UNGRADED: score.reward is None,
            ExclusionReason.VERSION_UNKNOWN: not self._unproven.isdisjoint((group.policy, version) for version in built.versions),
            ExclusionReason.GROUP_FAILED: isinstance(group, GroupFailed) and group.dropped_by is None,
            ExclusionReason.GROUP_DROPPED: isinstance(group, GroupFailed) and group.dropped_by is not None and by_option,
            ExclusionReason.DEAD_LETTER: member.session_id in self._lost,
        }
        if not allowed.get(member.excluded, by_option):
            told = "delivered" if member.excluded is None else f"excluded as {member.excluded}"
            yield f"it is {told}, although it ended by {built.termination_reason} with reward {score.reward}"
        if member.scored is not None and member.scored.scored_at != score.scored_at:
            yield "not the first of its scores was delivered"
        rows = () if member.scored is None else member.scored.trajectory.rows
        if digest(rows) != (built.rows_digest if member.excluded is None else NO_ROWS):
            yield "other rows than those that were built were delivered"


def _row(row: Row) -> Iterator[str]:
    trained = uint8s(row.loss_mask) == 1
    if not np.isfinite(float32s(row.logprobs)[trained]).all():
        yield "a trainable token has no logprob"
    if (int32s(row.versions)[trained] < 0).any():
        yield "a trainable token has no version"
