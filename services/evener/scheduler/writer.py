"""The only writer: it takes over, folds the items of its inbox into a draft, and commits each draft in one transaction."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import structlog
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind

from evener.bus.port import GroupOffset, Outgoing, Position, Producer
from evener.proto.codec import tag_of
from evener.proto.errors import EvenerError, Recoverable
from evener.proto.fleet import Heartbeat, QueuedSessions, Running
from evener.proto.sessions import SessionDispatched, SessionGivenUp, SessionSealed
from evener.proto.state import DeletedTask, Stage, TaskState
from evener.proto.tasks import TaskEnded, TaskSubmitted
from evener.proto.topics import HEADER_SESSION, HEADER_TYPE, Topic
from evener.runtime.faults import point
from evener.runtime.tasks import Tasks
from evener.scheduler.admission import admit
from evener.scheduler.backpressure import Backpressure
from evener.scheduler.config import Config
from evener.scheduler.core import CommandRefused, Draft, RunIsOpen, Write, given_up
from evener.scheduler.fleet_reader import FleetReader
from evener.scheduler.fleet_series import hide_fleet, show_fleet
from evener.scheduler.housekeeping import Chores, Housekeeper
from evener.scheduler.inbox import INBOX_TOPICS, Batch, ClockTick, Inbox, Item, PendingCommand, TaskCommand, fail, follow
from evener.scheduler.open_tasks import OpenTasks
from evener.scheduler.quarantine import Quarantine
from evener.scheduler.quotas import Spending
from evener.scheduler.sandbox_kinds import next_up
from evener.scheduler.team_series import show_teams
from evener.scheduler.watch import Watch
from evener.service.context import ServiceContext
from evener.service.events import EventLog, header
from evener.service.partitions import resumed_at
from evener.service.telemetry import metrics
from evener.service.tracing import ending

SEALED: Final = tag_of(SessionSealed).encode()

log = structlog.get_logger()
tracer = trace.get_tracer("evener.scheduler")


class NotServing(Recoverable):
    """The scheduler is starting or stopping. Try again in a moment."""


class TaskWriter:
    """Owns the tasks. Nothing else changes them, and no client sees a change before it is committed."""

    def __init__(self, config: Config, context: ServiceContext, took_over: Callable[[], None]) -> None:
        """`took_over` is called when this writer begins to serve."""
        self.tasks: dict[str, TaskState] = {}
        self.deleted: dict[str, DeletedTask] = {}
        self.watch = Watch()
        self.serving = False
        self.epoch = 0
        """The epoch of its producer, once it has one."""
        self._took_over = took_over
        self._config = config
        self._bus = context.bus
        self._events = EventLog(context.bus, context.waiting_blobs(), metrics(context.registry))
        self._metrics = metrics(context.registry)
        self.fleet = FleetReader(config, context)
        self.quarantine = Quarantine(losses=config.quarantine_losses, seconds=config.quarantine_seconds)
        self.backpressure = Backpressure(config.hold_behind_records, config.hold_behind_sessions, self._metrics)
        self._principals = context.secrets.principals
        self._spending = Spending()
        self._group = f"scheduler-{config.name}"
        self._inbox = Inbox()
        self._housekeeper = Housekeeper(
            config, context.bus, context.answering_blobs(), tell=self._inbox.put, tasks=self.tasks, deleted=self.deleted
        )
        self._open = OpenTasks()
        """The open tasks as the present draft leaves them: if its commit fails, this writer ends."""
        self._offsets: dict[tuple[str, int], Position] = {}
        """The positions that were read and are not committed yet."""

    async def ask(self, command: TaskCommand) -> TaskState | None:
        """Run a command on the next draft; return its answer after the commit. Raises what the command raises, NotServing and BusError."""
        asked = PendingCommand(command, asyncio.get_running_loop().create_future())
        if self.serving:
            await self._inbox.put(asked)
        if not self.serving:  # it stopped, perhaps while this waited for a slot
            msg = "the scheduler does not serve"
            raise NotServing(msg)
        return await asked.answer

    async def run(self) -> None:
        """Take over and serve until cancelled. Raises Fenced when another scheduler of this name takes over."""
        producer = await self._bus.producer(self._group)
        self.epoch = producer.epoch
        try:
            await self._take_over()
            async with Tasks() as tasks:
                tasks.create_task(self._write(producer))
                tasks.create_task(self._tick())
                tasks.create_task(self._housekeeper.run())
                tasks.create_task(self.fleet.follow(self._inbox.wake))
                for topic in INBOX_TOPICS:
                    for partition in range(self._bus.partitions_of(topic)):
                        tasks.create_task(follow(self._inbox, self._bus, self._events, group=self._group, topic=topic, partition=partition))
        finally:
            self.stop()
            hide_fleet(self._metrics)
            show_teams(self._metrics)
            await asyncio.shield(producer.aclose())

    def queued(self) -> tuple[QueuedSessions, ...]:
        """Return the head of the queue by kind of sandbox, for `fleet`. Empty: nothing waits, or nothing new starts."""
        return () if self.backpressure.reason else next_up(self._open, self.watch.refused)

    def stop(self) -> None:
        """Take no more commands, and end the watchers' streams."""
        self.serving = False
        self.watch.end()
        self._inbox.refuse(NotServing("the scheduler stopped before it could answer"))

    async def _take_over(self) -> None:
        """Rebuild everything from the log: the last writer may have been another process."""
        stored = (await self._bus.last_values(Topic.SCHEDULER_STATE, 0)).values()
        found = [await self._events.event(record) for record in stored]
        states = [state for state in found if isinstance(state, TaskState) and state.scheduler == self._config.name]
        states.sort(key=lambda state: (state.submitted.submitted_at, state.submitted.task_id))
        self.tasks.update({state.submitted.task_id: state for state in states})
        for state in states:
            self._spending.note(None, state)
        deleted = [task for task in found if isinstance(task, DeletedTask) and task.scheduler == self._config.name]
        self.deleted.update({task.task_id: task for task in deleted})
        self._open = OpenTasks(self.tasks.values())
        self.watch.reset(self.tasks)
        await self.fleet.start()
        await self._tell_owners(await self._not_sealed(self._given_up()))
        self.serving = True
        self._took_over()
        log.info("scheduler_took_over", name=self._config.name, tasks=len(self.tasks), open=len(self._open))

    async def _not_sealed(self, gone: Sequence[SessionGivenUp]) -> list[SessionGivenUp]:
        """Drop sessions whose seal is in records that were not read yet: an owner forgets old seals, and would seal again."""
        waiting = {event.session_id.encode(): event for event in gone}
        for partition in {self._bus.partition_of(Topic.SESSIONS, event.session_id) for event in gone}:
            start = await resumed_at(self._bus, self._group, Topic.SESSIONS, partition)
            async for record in self._bus.read(Topic.SESSIONS, partition, start):
                if header(record, HEADER_TYPE) == SEALED:
                    waiting.pop(header(record, HEADER_SESSION) or b"", None)
        return list(waiting.values())

    async def _tick(self) -> None:
        while True:
            await self._inbox.put(ClockTick())
            await asyncio.sleep(self._config.tick_seconds)

    async def _write(self, producer: Producer) -> None:
        while True:
            items = await self._inbox.take()
            try:
                await self._step(producer, items)
            except EvenerError as error:
                self._fail(items, error)
                raise
            finally:
                self._fail(items, NotServing("the scheduler stopped before it could answer"))

    async def _step(self, producer: Producer, items: Sequence[Item]) -> None:
        draft = Draft(self.tasks, now=time.time(), scheduler=self._config.name, deleted=self.deleted)
        answers = [(item, answer) for item in items if isinstance(item, PendingCommand) for answer in _run(item, draft)]
        for item in items:
            if isinstance(item, Batch):
                self._offsets[item.position.topic, item.position.partition] = item.position
                for event in item.events:
                    draft.read(event)
            elif isinstance(item, Chores):
                _do(item, draft)
        ticked = any(isinstance(item, ClockTick) for item in items)
        if ticked:
            await self._look_at_time(draft)
            show_fleet(self._metrics, self.fleet.fleet, partitions=self._bus.partitions_of(Topic.SESSIONS), now=time.monotonic())
        monotonic = time.monotonic()
        runners = self.fleet.fleet.runners(now=monotonic)
        self.quarantine.read(draft.ended, runners, now=monotonic)
        self._metrics.runners_quarantined.set(self.quarantine.count())
        self._admit(draft, self.quarantine.limited(runners, now=monotonic))
        if draft.changed or draft.deleted or draft.forgotten or (ticked and self._offsets):
            await self._commit(producer, draft)
        for asked, answer in answers:
            if not asked.answer.done():
                asked.answer.set_result(answer)
        await self._tell_owners(draft.given_up)

    async def _look_at_time(self, draft: Draft) -> None:
        for lost in await self.fleet.lost(self._open.held()):
            log.warning("attempt_lost", session_id=lost.session_id, attempt=lost.attempt)
            draft.lost(lost.session_id, lost.attempt)
        draft.deadlines(self._open)
        await self.fleet.forget_the_dead()

    def _admit(self, draft: Draft, runners: Sequence[Heartbeat]) -> None:
        self._open.update(draft.changed.values())
        if self.backpressure.look(self.fleet.fleet.all_living(now=time.monotonic())):
            self.watch.hold(self.backpressure.reason, self._open)
        now = time.time()
        refused = admit(
            draft,
            self._open,
            runners,
            running=self.fleet.running,
            now=now,
            lease_seconds=self._config.lease_seconds,
            only_begun=bool(self.backpressure.reason),
            quotas=self._principals.quotas,
            spent=self._spending.within_the_hour(now),
        )
        if refused is not None:
            self.watch.refuse(refused)

    async def _commit(self, producer: Producer, draft: Draft) -> None:
        """Commit outputs, states and offsets together. Only then does the draft become the truth."""
        spans = [_span(write) for write in draft.writes]
        with ending(spans):
            records = [
                await self._events.outgoing(write.topic, write.key, write.event, trace=trace.set_span_in_context(span))
                for write, span in zip(draft.writes, spans, strict=True)
            ]
            states: dict[str, TaskState | DeletedTask] = {**draft.changed, **draft.deleted}
            records += [await self._events.outgoing(Topic.SCHEDULER_STATE, task_id, state) for task_id, state in states.items()]
            records += [Outgoing(topic=Topic.SCHEDULER_STATE, key=task_id, value=None) for task_id in draft.forgotten]
            await producer.commit(records, [GroupOffset(self._group, position) for position in self._offsets.values()])
        for event in (write.event for write in draft.writes):
            await _pass(event)
        self._offsets = {}
        self._apply(draft)

    def _apply(self, draft: Draft) -> None:
        for task_id, state in draft.changed.items():
            sampled = self._spending.note(self.tasks.get(task_id), state)
            self._metrics.team_tokens_sampled.labels(state.submitted.team).inc(sampled)
        self.tasks.update(draft.changed)
        for task_id, deleted in draft.deleted.items():
            self.tasks.pop(task_id, None)
            self._open.forget(task_id, deleted.run_id)
        self.deleted.update(draft.deleted)
        for task_id in draft.forgotten:
            self.deleted.pop(task_id, None)
        self.watch.forget(draft.deleted)
        dispatched = [write.event for write in draft.writes if isinstance(write.event, SessionDispatched)]
        attempts = [Running(session_id=event.session_id, attempt=event.attempt) for event in dispatched]
        self.fleet.leases.sign(attempts, now=time.monotonic())
        self.watch.changed(draft.changed)
        self._count(draft)

    def _count(self, draft: Draft) -> None:
        for event in (write.event for write in draft.writes):
            if isinstance(event, TaskEnded):
                self._metrics.tasks_ended.labels(event.outcome).inc()
                log.info("task_ended", task_id=event.task_id, outcome=event.outcome, reason=event.reason)
            elif isinstance(event, SessionDispatched) and event.attempt == 1:
                self._metrics.queue_seconds.observe(event.dispatched_at - self.tasks[event.spec.task_id].submitted.submitted_at)
        for attempt in draft.ended:
            if attempt.lost:
                self._metrics.attempts_lost.labels(attempt.reason).inc()
        self._metrics.runs_waiting.set(self._open.waiting_runs)
        self._metrics.sessions_waiting.set(self._open.waiting_by_team.total())
        self._metrics.sessions_running.set(self._open.held_by_team.total())
        show_teams(self._metrics, waiting=self._open.waiting_by_team, running=self._open.held_by_team)

    async def _tell_owners(self, gone: Sequence[SessionGivenUp]) -> None:
        """Send SessionGivenUp to the owners that have to seal. If the scheduler dies before, its successor sends it when it takes over."""
        records = [
            await self._events.outgoing(
                Topic.SESSIONS, event.session_id, event, session_id=event.session_id, trace=_context(self.tasks[event.spec.task_id].trace)
            )
            for event in gone
        ]
        if records:
            await self._bus.send(records)

    def _given_up(self) -> list[SessionGivenUp]:
        """Return SessionGivenUp for sessions whose owners may not have received it."""
        states = [self.tasks[task_id] for task_id in self._open]
        found = [(state, index) for state in states for index, one in enumerate(state.sessions) if one.stage is Stage.GIVEN_UP]
        return [given_up(state, index, now=time.time()) for state, index in found]

    def _fail(self, items: Sequence[Item], error: Exception) -> None:
        for item in items:
            if isinstance(item, PendingCommand):
                fail(item, error)


def _run(asked: PendingCommand, draft: Draft) -> list[TaskState | None]:
    """Return the command's answer. Empty if it was refused."""
    try:
        return [asked.command(draft)]
    except CommandRefused as refused:
        fail(asked, refused)
        return []


def _do(chores: Chores, draft: Draft) -> None:
    """Write the housekeeper's changes."""
    for run_id in chores.old_runs:
        with suppress(RunIsOpen):  # a task was added meanwhile
            draft.delete(run_id)
    draft.swept(chores.swept)
    draft.forget(chores.forgotten)


def _context(headers: Mapping[str, str]) -> Context:
    """Return the trace context in a task's headers, apart from that of the current span."""
    return propagate.extract(headers, Context())


def _span(write: Write) -> Span:
    """Return the span that a record continues: of a dispatch a new one, of all others that of the task's submission."""
    parent = _context(write.trace)
    if not isinstance(write.event, SessionDispatched):
        return trace.NonRecordingSpan(trace.get_current_span(parent).get_span_context())
    event = write.event
    attributes: dict[str, str | int] = {
        "evener.task.id": event.spec.task_id,
        "evener.session.id": event.session_id,
        "evener.attempt": event.attempt,
        "evener.runner.id": event.runner_id,
    }
    return tracer.start_span("dispatch", context=parent, kind=SpanKind.PRODUCER, attributes=attributes)


async def _pass(event: object) -> None:
    """Pass the fault point of a committed event."""
    match event:
        case TaskSubmitted():
            await point("scheduler.submitted")
        case SessionDispatched():
            await point("scheduler.dispatched")
        case TaskEnded():
            await point("scheduler.task_ended")
        case _:
            pass
