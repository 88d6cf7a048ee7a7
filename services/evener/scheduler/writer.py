"""The one writer: takes over, folds what its inbox brings into a draft, and commits each draft in one transaction."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import structlog

from evener.blobs.waited import Waited
from evener.bus.port import GroupOffset, Position, Producer
from evener.proto.codec import tag_of
from evener.proto.errors import EvenerError, Recoverable
from evener.proto.fleet import Running
from evener.proto.sessions import SessionDispatched, SessionGivenUp, SessionSealed
from evener.proto.state import Stage, TaskState
from evener.proto.tasks import TaskEnded, TaskSubmitted
from evener.proto.topics import HEADER_SESSION, HEADER_TYPE, Topic
from evener.scheduler.admission import admit
from evener.scheduler.config import Config
from evener.scheduler.core import HELD, Draft, TaskDiffers, given_up, is_open
from evener.scheduler.fleet_reader import FleetReader
from evener.scheduler.inbox import TOPICS, Asked, Batch, Command, Inbox, Item, Tick, fail, follow
from evener.scheduler.watch import Watch
from evener.service.events import EventLog, header
from evener.service.faults import point
from evener.service.parts import Parts
from evener.service.telemetry import metrics

SEALED: Final = tag_of(SessionSealed).encode()

log = structlog.get_logger()


class NotServing(Recoverable):
    """The scheduler is starting or stopping. Try again in a moment."""


class Writer:
    """Owns the tasks. Nothing else changes them, and nobody hears of a change before it is committed."""

    def __init__(self, config: Config, parts: Parts) -> None:
        self.tasks: dict[str, TaskState] = {}
        self.watch = Watch()
        self.serving = False
        self._config = config
        self._bus = parts.bus
        self._boot_id = parts.boot_id
        self._events = EventLog(parts.bus, Waited(parts.blobs))
        self._metrics = metrics(parts.registry)
        self.fleet = self._fleet_reader()
        self._group = f"scheduler-{config.name}"
        self._inbox = Inbox()
        self._open: dict[str, None] = {}
        """Ids of the tasks to which something can still happen, in the order of their submission."""
        self._offsets: dict[tuple[str, int], Position] = {}
        """Read, and not committed yet."""

    async def ask(self, command: Command) -> TaskState | None:
        """Run a command on the next draft; return its answer after the commit. Raises what it raises, NotServing and BusError."""
        inbox, asked = self._inbox, Asked(command, asyncio.get_running_loop().create_future())
        if self.serving:
            await inbox.put(asked)
        if not self.serving or inbox is not self._inbox:  # it stopped, perhaps while this waited for a place
            msg = "the scheduler does not serve"
            raise NotServing(msg)
        return await asked.answer

    async def run(self) -> None:
        """Take over and serve until cancelled. Raises Fenced when another scheduler of this name takes over."""
        producer = await self._bus.producer(self._group)
        try:
            await self._take_over()
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._write(producer))
                tasks.create_task(self._tick())
                tasks.create_task(self.fleet.follow(self._inbox.wake))
                for topic in TOPICS:
                    for partition in range(self._bus.partitions_of(topic)):
                        tasks.create_task(follow(self._inbox, self._bus, self._events, group=self._group, topic=topic, partition=partition))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            self.stop()
            await asyncio.shield(producer.aclose())

    def stop(self) -> None:
        """Take no more commands, and let watchers go."""
        self.serving = False
        self.watch.end()
        self._inbox.refuse(NotServing("the scheduler stopped before it could answer"))

    async def _take_over(self) -> None:
        """Rebuild everything from the log: the last writer may have been another process."""
        stored = (await self._bus.last_values(Topic.SCHEDULER_STATE, 0)).values()
        states = [state for record in stored if isinstance(state := await self._events.event(record), TaskState)]
        states.sort(key=lambda state: (state.submitted.submitted_at, state.submitted.task_id))
        self.tasks = {state.submitted.task_id: state for state in states if state.scheduler == self._config.name}
        self._open = {task_id: None for task_id, state in self.tasks.items() if is_open(state)}
        self._offsets = {}
        self._inbox = Inbox()
        self.watch.reset(self.tasks)
        self.fleet = self._fleet_reader()
        await self.fleet.start()
        await self._tell_owners(await self._not_sealed([given_up(*found, now=time.time()) for found in self._in_stage(Stage.GIVEN_UP)]))
        self.serving = True
        log.info("scheduler_took_over", name=self._config.name, tasks=len(self.tasks), open=len(self._open))

    async def _not_sealed(self, gone: Sequence[SessionGivenUp]) -> list[SessionGivenUp]:
        """Leave out those whose seal stands in what was not read yet: an owner forgets old seals, and would seal again."""
        waiting = {event.session_id.encode(): event for event in gone}
        for partition in {self._bus.partition_of(Topic.SESSIONS, event.session_id) for event in gone}:
            committed = await self._bus.committed(self._group, Topic.SESSIONS, partition)
            start = max(committed or 0, await self._bus.beginning(Topic.SESSIONS, partition))
            async for record in self._bus.read(Topic.SESSIONS, partition, start):
                if header(record, HEADER_TYPE) == SEALED:
                    waiting.pop(header(record, HEADER_SESSION) or b"", None)
        return list(waiting.values())

    async def _tick(self) -> None:
        while True:
            await self._inbox.put(Tick())
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
        draft = Draft(self.tasks, now=time.time(), scheduler=self._config.name)
        answers = [(item, answer) for item in items if isinstance(item, Asked) for answer in _run(item, draft)]
        for item in items:
            if isinstance(item, Batch):
                self._offsets[item.position.topic, item.position.partition] = item.position
                for event in item.events:
                    draft.read(event)
        ticked = any(isinstance(item, Tick) for item in items)
        if ticked:
            await self._look_at_time(draft)
        self._admit(draft)
        if draft.changed or (ticked and self._offsets):
            await self._commit(producer, draft)
        for asked, answer in answers:
            if not asked.answer.done():
                asked.answer.set_result(answer)
        await self._tell_owners(draft.given_up)

    async def _look_at_time(self, draft: Draft) -> None:
        held = [
            Running(session_id=state.sessions[index].session_id, attempt=state.sessions[index].attempt)
            for stage in HELD
            for state, index in self._in_stage(stage)
        ]
        for lost in await self.fleet.lost(held):
            log.warning("attempt_lost", session_id=lost.session_id, attempt=lost.attempt)
            draft.lost(lost.session_id, lost.attempt)
        draft.deadlines(self._open)

    def _admit(self, draft: Draft) -> None:
        lease_seconds = self._config.lease_seconds
        runners = self.fleet.fleet.runners(now=time.monotonic(), lease_seconds=lease_seconds)
        admit(draft, {**self._open, **dict.fromkeys(draft.changed)}, runners, now=time.time(), lease_seconds=lease_seconds)

    async def _commit(self, producer: Producer, draft: Draft) -> None:
        """Commit outputs, states and offsets together; then, and only then, take the draft for the truth."""
        records = [await self._events.outgoing(write.topic, write.key, write.event) for write in draft.writes]
        records += [await self._events.outgoing(Topic.SCHEDULER_STATE, task_id, state) for task_id, state in draft.changed.items()]
        await producer.commit(records, [GroupOffset(self._group, position) for position in self._offsets.values()])
        for event in (write.event for write in draft.writes):
            await _pass(event)
        self._offsets = {}
        self._apply(draft)

    def _apply(self, draft: Draft) -> None:
        self.tasks.update(draft.changed)
        for task_id, state in draft.changed.items():
            if is_open(state):
                self._open.setdefault(task_id)
            else:
                self._open.pop(task_id, None)
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
        self._metrics.sessions_waiting.set(sum(1 for _ in self._in_stage(Stage.QUEUED)))
        self._metrics.sessions_running.set(sum(1 for stage in HELD for _ in self._in_stage(stage)))

    async def _tell_owners(self, gone: Sequence[SessionGivenUp]) -> None:
        """Send what the owners are to seal. A scheduler that dies before this sends it again when it takes over."""
        records = [await self._events.outgoing(Topic.SESSIONS, event.session_id, event, session_id=event.session_id) for event in gone]
        if records:
            await self._bus.send(records)

    def _in_stage(self, stage: Stage) -> list[tuple[TaskState, int]]:
        """Return the sessions of a stage, each as its task and its index."""
        states = [self.tasks[task_id] for task_id in self._open]
        return [(state, index) for state in states for index, session in enumerate(state.sessions) if session.stage is stage]

    def _fail(self, items: Sequence[Item], error: Exception) -> None:
        for item in items:
            if isinstance(item, Asked):
                fail(item, error)

    def _fleet_reader(self) -> FleetReader:
        config = self._config
        return FleetReader(self._bus, boot_id=self._boot_id, lease_seconds=config.lease_seconds, tick_seconds=config.tick_seconds)


def _run(asked: Asked, draft: Draft) -> list[TaskState | None]:
    """Return the command's answer; none where it was refused."""
    try:
        return [asked.command(draft)]
    except TaskDiffers as differs:
        fail(asked, differs)
        return []


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
