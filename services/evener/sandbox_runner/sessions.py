"""Runs one attempt of a session: prepares it, starts it, watches it, collects its changes and reports its exit."""

import asyncio
import json
import socket
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final, TypeVar

import structlog
from msgspec import Struct, structs
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, StatusCode
from structlog.contextvars import bound_contextvars

from evener.blobs.port import BlobError
from evener.bus.port import Position
from evener.client.views import RecordingView
from evener.dialects.registry import variables
from evener.harnesses.port import ExitMeaning, Harness, HarnessMissing, LaunchContext
from evener.proto.ids import new_nonce, new_start_id
from evener.proto.reasons import NOT_BY_ITSELF, CallFailure, ExitCause
from evener.proto.sessions import Artifact, Event, Failures, HarnessExited, SessionDispatched, SessionStarted
from evener.proto.topics import Topic
from evener.runtime.faults import point
from evener.runtime.open_files import lacked_files
from evener.sandbox_runner.clock import AgentClock
from evener.sandbox_runner.context import RunnerContext
from evener.sandbox_runner.core import NoStart, one_line, told_excluded
from evener.sandbox_runner.preparation import PreparedLaunch, chosen, declared, prepare
from evener.sandbox_runner.relay import Opening, Report, open_relay
from evener.sandboxes.port import HOME, LOOPBACK, ChangesTooLarge, Program, Sandbox, SandboxError, SandboxRemoved, Unstartable
from evener.sandboxes.staging import StepUnready, stage
from evener.service.auth import Capability, seal_capability
from evener.service.tracing import carrier, nanoseconds
from evener.tasks.directory import STEP_FILES, Task
from evener.tokens.session import NO_SANDBOX

TICK_SECONDS: Final = 0.05
"""The least time between two looks at the agent's clock."""
SEND_SECONDS: Final = 600.0
"""How long a bus that is away is waited for. Then the attempt ends, by its own report or by its lease."""

T = TypeVar("T")
log = structlog.get_logger()
tracer = trace.get_tracer("evener.sandbox_runner")


class Exit(Struct, kw_only=True):
    """How an attempt ended, as far as it is known: fields of HarnessExited."""

    cause: ExitCause
    exit_code: int | None = None
    detail: str = ""
    agent_seconds: float = 0.0
    artifacts: tuple[Artifact, ...] = ()
    reward: float | None = None
    unanswered: CallFailure | None = None
    later_requests: tuple[str, ...] = ()
    failures: tuple[Failures, ...] = ()

    def tell(self, report: Report) -> None:
        """Take over the relay's counts. Requests that a harness left because the runner ended it do not count."""
        self.failures = report.failures
        unserved = report.unanswered or (report.left_in_vain if self.cause is ExitCause.EXITED else None)
        if unserved is not None:
            self.unanswered, self.later_requests = unserved.reason, tuple(unserved.later_requests)

    @property
    def well(self) -> bool:
        """Whether the harness ended by itself, and said that it succeeded."""
        return self.cause is ExitCause.EXITED and self.exit_code in {0, None}


class AttemptRun:
    """One attempt, from its dispatch to its HarnessExited. Its relay is open while its harness runs."""

    def __init__(self, event: SessionDispatched, recorded_at: float, context: RunnerContext, trace_context: Context) -> None:
        """`recorded_at`: when the log took the dispatch, by the log's clock, in Unix seconds."""
        self._event = event
        self._recorded_at = recorded_at
        self._spec = event.spec
        self._context = context
        self._trace_context = trace_context
        self._start_id = new_start_id()
        self._nonce = new_nonce()
        self._ending: asyncio.Future[ExitCause] = asyncio.get_running_loop().create_future()
        self._arrived = time.monotonic()
        self._running_since: float | None = None

    def end(self, ending: ExitCause) -> None:
        """Ask the attempt to end its harness. The first reason counts."""
        if not self._ending.done():
            self._ending.set_result(ending)

    async def run(self) -> None:
        """Run the attempt to its end. Raises what no event can report; then the lease ends the attempt."""
        began = nanoseconds(self._event.dispatched_at)
        with (
            bound_contextvars(session_id=self._event.session_id, attempt=self._event.attempt),
            tracer.start_as_current_span("attempt", context=self._trace_context, kind=SpanKind.CONSUMER, start_time=began) as span,
        ):
            span.set_attribute("evener.session.id", self._event.session_id)
            span.set_attribute("evener.attempt", self._event.attempt)
            span.set_attribute("evener.harness", self._spec.harness.name)
            await self._attempt(span)

    async def _attempt(self, span: Span) -> None:
        await point("runner.dispatched")
        async with AsyncExitStack() as stack:
            with tracer.start_as_current_span("prepare"):
                prepared, harness, failed = await self._prepare(stack)
            if time.monotonic() - self._arrived > self._context.timings.start_limit_seconds:
                log.warning("start_too_late", session_id=self._event.session_id, attempt=self._event.attempt)
                return  # it would be void; its lease has ended it, or will
            position = await self._send(self._started(harness))
            await point("runner.started")
            found = failed or await self._live(prepared, position)
            await self._send(self._exited(found))
            if not found.well:
                span.set_status(StatusCode.ERROR, f"{found.cause} {found.detail}".strip())
        await point("runner.exited")
        self._context.metrics.harness_exits.labels(found.cause).inc()
        log.info("harness_exited", session_id=self._event.session_id, cause=found.cause, exit_code=found.exit_code, detail=found.detail)

    async def _prepare(self, stack: AsyncExitStack) -> tuple[PreparedLaunch | None, Harness | None, Exit | None]:
        """Return what was prepared (None: a recording), the harness if it is known, and the exit if the attempt cannot start."""
        context, harness = self._context, None
        if self._ending.done():  # before it began: it needs no sandbox
            return None, None, Exit(cause=self._ending.result())
        if self._spec.harness.sandbox == NO_SANDBOX:
            return None, None, None
        name = f"{self._event.session_id}-{self._event.attempt}-{self._start_id}"
        try:
            harness = chosen(self._spec, trust_local=context.config.trust_local)
            return await prepare(stack, self._spec, name, harness, context), harness, None
        except NoStart as reason:
            return None, harness, Exit(cause=ExitCause.NO_START, detail=one_line(str(reason)))
        except (BlobError, HarnessMissing, SandboxError, OSError) as lost:
            return None, harness, Exit(cause=_cause_of(lost), detail=one_line(str(lost)))

    async def _live(self, prepared: PreparedLaunch | None, position: Position) -> Exit:
        """Run the harness, or keep the recording open, behind an open relay."""
        clock, report = AgentClock(time.monotonic), Report()
        try:
            steps = (None,) if prepared is None else prepared.task.steps or (prepared.task,)
            found = Exit(cause=ExitCause.EXITED)
            for step in steps:
                try:
                    found = await self._step(prepared, step, position, clock, report=report, earlier=found)
                except StepUnready as reason:  # of what the agent did before: that counts
                    if not found.artifacts:
                        raise
                    self._say(found, f"the further steps were left out: {reason.args[0]}")
                    break
                if not found.well:
                    break
        except Unstartable as missing:
            return Exit(cause=ExitCause.NO_START, detail=one_line(str(missing)))
        except (BlobError, SandboxError, OSError) as lost:
            return Exit(cause=_cause_of(lost), detail=one_line(str(lost)), agent_seconds=clock.seconds())
        return found

    async def _step(
        self, prepared: PreparedLaunch | None, step: Task | None, position: Position, clock: AgentClock, *, report: Report, earlier: Exit
    ) -> Exit:
        """Run the harness on a step of its task, or keep the recording open; return the exit with what all steps so far left."""
        if prepared is not None and prepared.task.steps and step is not None:
            if not earlier.artifacts:
                await prepared.sandbox.settle()  # what a step brings is part of what was changed
            await stage(prepared.sandbox, step)
        with tracer.start_as_current_span("harness"):
            found, output = await self._behind_relay(prepared, step, position, clock, report)
        found.agent_seconds = clock.seconds()
        found.tell(report)
        if prepared is not None and step is not None:
            if found.cause not in NOT_BY_ITSELF:
                await prepared.sandbox.check_room()  # on a full disk, what the agent did is not its doing
            with tracer.start_as_current_span("collect"):
                await self._gather(found, prepared.sandbox, output, STEP_FILES.format(step.name) if prepared.task.steps else "")
        found.artifacts = (*earlier.artifacts, *found.artifacts)
        return found

    async def _behind_relay(
        self, prepared: PreparedLaunch | None, step: Task | None, position: Position, clock: AgentClock, report: Report
    ) -> tuple[Exit, bytes]:
        """Run the harness, or wait for the end of the recording; return its exit, and what it printed."""
        context, spec = self._context, self._spec
        listening = socket.create_server((LOOPBACK, 0)) if prepared is None else await prepared.sandbox.listen()
        opening = Opening(
            session_id=self._event.session_id,
            nonce=self._nonce,
            capability=self._capability(position),
            partition=position.partition,
            models=(spec.policy, *(name for name in spec.models if name not in {spec.policy, "*"})),
            retry_header=declared(spec.harness, prepared.harness if prepared else None).retry_header,
            trace=carrier(),
            step=_number(step, () if prepared is None else prepared.task.steps),
            listening=listening,
        )
        async with open_relay(opening, context.client, clock, context.limits, metrics=context.metrics, report=report) as base_url:
            if self._running_since is None:
                self._running_since = time.monotonic()
                context.metrics.prepare_seconds.observe(self._running_since - self._arrived)
            with context.metrics.harnesses_running.track_inprogress():
                if prepared is None or step is None:
                    return await self._record(base_url, clock)
                return await self._harness(prepared, step, base_url, clock)

    async def _harness(self, prepared: PreparedLaunch, step: Task, base_url: str, clock: AgentClock) -> tuple[Exit, bytes]:
        sandbox, task = prepared.sandbox, prepared.task
        context = LaunchContext(
            instruction=step.instruction,
            base_url=base_url,
            key=self._nonce,
            model=self._spec.policy,
            answer_tokens=self._spec.sampling.max_tokens,
            workdir=sandbox.inside(sandbox.workdir),
            home=sandbox.inside(HOME),
            options=self._spec.harness.options,
            mcp_servers=task.mcp_servers,
        )
        launch = prepared.harness.launch(context, prepared.bundle)
        await sandbox.write(launch.files)
        if not task.steps:
            await sandbox.settle()
        environment = {**task.env, **launch.environment}
        await sandbox.check_room()
        began = clock.seconds()
        process = await sandbox.start(Program(argv=launch.argv, environment=environment, log_bytes=self._context.config.log_bytes))
        try:
            limit = _limit(self._spec.budgets.agent_seconds, step.agent_seconds, began if task.steps else None)
            code, cause = await self._watch(process.wait(), clock, limit)
            if code is None:
                return Exit(cause=cause, exit_code=await process.end()), process.log()
        except asyncio.CancelledError:
            await asyncio.shield(process.end(grace_seconds=0))
            raise
        meaning = await self._exit_meaning(prepared.harness, code, process.log())
        return Exit(cause=cause, exit_code=meaning.exit_code, detail=one_line(meaning.detail)), process.log()

    async def _exit_meaning(self, harness: Harness, code: int, output: bytes) -> ExitMeaning:
        """Return what an exit means.

        Runs in a thread, because the agent may have printed a lot; the exit is reported whatever was printed.
        """
        try:
            return await asyncio.to_thread(harness.exit_meaning, code, output)
        except Exception as bug:  # an adapter that fails on the agent's output must not cost the session
            log.exception("exit_not_judged", session_id=self._event.session_id, attempt=self._event.attempt)
            return ExitMeaning(exit_code=code or 1, detail=f"what it printed could not be read ({type(bug).__name__}: {bug})")

    async def _record(self, base_url: str, clock: AgentClock) -> tuple[Exit, bytes]:
        environment = variables(base_url, self._nonce, self._spec.policy)
        opened = RecordingView(base_url=base_url, key=self._nonce, environment=environment)
        with self._context.recordings.open(self._event.session_id, opened, self._spec.team) as recording:
            waiting = recording.wait(self._context.config.recording_seconds)
            exited, cause = await self._watch(waiting, clock, self._spec.budgets.agent_seconds)
        if exited is None:
            return Exit(cause=cause), b""
        return Exit(cause=cause, exit_code=exited.exit_code, reward=exited.reward), b""

    async def _watch(self, exiting: Coroutine[Any, Any, T], clock: AgentClock, limit: float | None) -> tuple[T | None, ExitCause]:
        """Wait for the exit, or return None and what ended the attempt before it."""
        exited = asyncio.create_task(exiting)
        limits = {asyncio.create_task(_spent(clock, limit)): ExitCause.AGENT_TIME, asyncio.create_task(self._over()): ExitCause.WALL_TIME}
        watched: set[asyncio.Future[Any]] = {exited, *limits, self._ending}
        try:
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            if exited.done():
                return exited.result(), ExitCause.EXITED
            if self._ending.done():
                return None, self._ending.result()
            return None, next(cause for timer, cause in limits.items() if timer.done())
        finally:
            for task in (exited, *limits):
                task.cancel()
            await asyncio.gather(exited, *limits, return_exceptions=True)

    async def _over(self) -> None:
        """Wait until the attempt has taken as long as it may, since its harness was started first."""
        if (limit := self._spec.budgets.wall_seconds) is None or self._running_since is None:
            await asyncio.Event().wait()
        else:
            await asyncio.sleep(self._running_since + limit - time.monotonic())

    async def _gather(self, found: Exit, sandbox: Sandbox, output: bytes, prefix: str) -> None:
        """Keep what the harness left. Raises BlobError, and SandboxError if the sandbox cannot be read: another attempt may keep its work.

        What cannot be kept is the agent's doing: its exit stands, with the reason.
        """
        kept = {"harness.log": output}
        try:
            changes = await sandbox.changes(self._context.limits_of_changes)
            kept |= {"changes.tar": changes.archive, "removed.json": json.dumps(changes.removed).encode()}
            if changes.replaced:
                kept["replaced.json"] = json.dumps(changes.replaced).encode()
            if changes.excluded_count:
                kept["excluded.json"] = json.dumps(changes.excluded).encode()
                self._say(found, told_excluded(changes))
        except (ChangesTooLarge, SandboxRemoved) as reason:
            self._say(found, f"changed files were not kept: {reason}")
        except (BlobError, SandboxError):
            raise
        except Exception as bug:  # code that fails on the agent's files must not cost the session
            log.exception("changes_not_read", session_id=self._event.session_id, attempt=self._event.attempt)
            self._say(found, f"changed files were not kept: they could not be read ({type(bug).__name__}: {bug})")
        blobs = self._context.blobs
        found.artifacts = tuple([Artifact(name=f"{prefix}{name}", blob=await blobs.put(data)) for name, data in kept.items()])

    def _say(self, found: Exit, what: str) -> None:
        """Add to the exit's detail, and to the log."""
        log.warning("work_left_out", session_id=self._event.session_id, attempt=self._event.attempt, reason=what)
        found.detail = one_line(f"{found.detail} {what}")

    def _capability(self, position: Position) -> str:
        capability = Capability(
            session_id=self._event.session_id,
            attempt=self._event.attempt,
            start_id=self._start_id,
            partition=position.partition,
            offset=position.offset,
            expires_at=time.time() + self._context.config.session_seconds,
        )
        return seal_capability(self._context.secrets, capability)

    def _started(self, harness: Harness | None) -> SessionStarted:
        return SessionStarted(
            session_id=self._event.session_id,
            attempt=self._event.attempt,
            start_id=self._start_id,
            runner_id=self._context.runner_id,
            dispatched_at=self._event.dispatched_at,
            started_at=time.time(),
            dispatch_recorded_at=self._recorded_at,
            harness_version=None if harness is None else harness.version,
            quirks=declared(self._spec.harness, harness),
            spec=self._spec,
        )

    def _exited(self, found: Exit) -> HarnessExited:
        now, began = time.monotonic(), self._running_since
        return HarnessExited(
            session_id=self._event.session_id,
            attempt=self._event.attempt,
            start_id=self._start_id,
            wall_seconds=0.0 if began is None else now - began,
            prepare_seconds=(began or now) - self._arrived,
            exited_at=time.time(),
            **structs.asdict(found),
        )

    async def _send(self, event: Event) -> Position:
        session_id = self._event.session_id
        send = partial(self._context.events.send, Topic.SESSIONS, session_id, event, session_id=session_id)
        return await self._context.bus.ask(send, SEND_SECONDS)


def _number(step: Task | None, steps: tuple[Task, ...]) -> int:
    """Return the number of a step of a task, from 1. 0: the task has no steps."""
    return next((number for number, one in enumerate(steps, 1) if one is step), 0)


def _limit(whole: float | None, own: float | None, began: float | None) -> float | None:
    """Return where the agent's clock ends a harness: at the session's limit, or at that of its task or step. None: nowhere.

    `began`: the clock's reading at the beginning of a step. None: there are no steps, and the session's limit replaces the task's.
    """
    if began is None:
        return whole or own
    limits = [limit for limit in (whole, None if own is None else began + own) if limit is not None]
    return min(limits, default=None)


async def _spent(clock: AgentClock, limit: float | None) -> None:
    """Wait until the agent's clock has reached the limit."""
    if limit is None:
        await asyncio.get_running_loop().create_future()
        return
    left = limit
    while left > 0:
        await asyncio.sleep(max(left, TICK_SECONDS))
        left = limit - clock.seconds()


def _cause_of(lost: Exception) -> ExitCause:
    """Return why an attempt ended. One for which no file could be opened is handed back, and counts as none."""
    return ExitCause.STOPPED if lacked_files(lost) else ExitCause.SANDBOX_LOST
