"""The scheduler's HTTP endpoints: blobs, tasks, progress, the fleet and its engines."""

import asyncio
import hashlib
import re
import time
from collections.abc import AsyncIterator, Sequence
from typing import Final

import msgspec
from msgspec import structs
from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from evener.blobs.port import BlobError, Blobs
from evener.bus.port import BusError
from evener.client.views import (
    ACTIVE_HEADER,
    EngineRequest,
    EngineView,
    FleetView,
    InstanceView,
    Problem,
    ProblemAnswer,
    RunDeleted,
    Submission,
    TaskList,
)
from evener.proto.blobs import BlobRef
from evener.proto.errors import EvenerError
from evener.proto.fields import shared_fields
from evener.proto.fleet import EngineDraining, EngineJoined, EngineLeft, Running
from evener.proto.ids import new_id
from evener.proto.prepared import Converter
from evener.proto.state import TaskState
from evener.proto.tasks import TaskSubmitted
from evener.proto.topics import Topic
from evener.scheduler.core import Draft, RunIsOpen, TaskDiffers, TaskWasDeleted
from evener.scheduler.membership import NotActive, Scheduler
from evener.scheduler.submission import (
    SubmissionRefused,
    TaskNeeds,
    check,
    check_archive,
    check_graders,
    check_policies,
    check_sandbox,
    needs_of_recording,
    parse,
)
from evener.scheduler.writer import NotServing, TaskWriter
from evener.service.auth import Handler, Secrets, control_route, principal_of
from evener.service.events import EventLog
from evener.service.http import RETRY_LATER, body_of, error_response, json_response
from evener.service.principals import Role
from evener.service.tracing import carrier
from evener.tasks.directory import MAX_BYTES

MAX_BLOB_BYTES: Final = 2 * MAX_BYTES
"""The limit of a packed task: its files, and what tar adds."""
MAX_BODY_BYTES: Final = 256 * 1024
"""The limit of a submission."""
BLOB: Final = "/blobs/{digest}"
DIGEST: Final = re.compile(r"[0-9a-f]{64}")
NUMBER: Final = re.compile(r"[0-9]{1,18}")

tracer = trace.get_tracer("evener.scheduler")

_submissions: Final = Converter(Submission)
_engine_requests: Final = Converter(EngineRequest)


class SchedulerEndpoints:
    """The handlers of the routes."""

    def __init__(self, scheduler: Scheduler, blobs: Blobs, events: EventLog) -> None:
        self._scheduler = scheduler
        self._blobs = blobs
        self._events = events

    @property
    def _writer(self) -> TaskWriter:
        """The writer of the tasks. Raises NotActive unless this scheduler is the active one."""
        return self._scheduler.writer

    def routes(self, secrets: Secrets) -> Sequence[BaseRoute]:
        """Return all routes, each with the role that it needs. A principal gets the tasks of its team."""
        table: list[tuple[str, str, Role, Handler]] = [
            ("PUT", BLOB, Role.USER, self.put_blob),
            ("GET", BLOB, Role.VIEWER, self.get_blob),
            ("POST", "/tasks", Role.USER, self.submit),
            ("GET", "/tasks", Role.VIEWER, self.tasks),
            ("GET", "/tasks/{task_id}", Role.VIEWER, self.task),
            ("DELETE", "/tasks/{task_id}", Role.USER, self.cancel),
            ("DELETE", "/runs/{run_id:path}", Role.USER, self.delete_run),
            ("GET", "/events", Role.VIEWER, self.progress),
            ("GET", "/fleet", Role.VIEWER, self.fleet),
            ("POST", "/engines", Role.ADMIN, self.join_engine),
            ("POST", "/engines/{engine_id}/drain", Role.ADMIN, self.drain_engine),
            ("DELETE", "/engines/{engine_id}", Role.ADMIN, self.remove_engine),
        ]
        return [
            Route(path, control_route(secrets, _answered(handler), role, quiet=path == BLOB), methods=[method])
            for method, path, role, handler in table
        ]

    async def put_blob(self, request: Request) -> Response:
        """Store the body under its digest."""
        digest = _digest(request)
        data = await body_of(request, MAX_BLOB_BYTES)
        if await asyncio.to_thread(_sha256, data) != digest:
            msg = "the digest in the path is not the SHA-256 of the body"
            raise SubmissionRefused(msg, "digest")
        return json_response(await self._blobs.put(data))

    async def get_blob(self, request: Request) -> Response:
        """Answer with the object. `?size=` is its length in bytes, which readers verify."""
        ref = BlobRef(digest=_digest(request), size=_number(request, "size"))
        if not await self._blobs.has(ref):
            return error_response(404, f"no object {ref.digest}", "digest")
        return Response(await self._blobs.get(ref), media_type="application/octet-stream")

    async def submit(self, request: Request) -> Response:
        """Accept a task. Answers 200 after the commit, also for the same task again, and 409 if another task has its id."""
        submission = await asyncio.to_thread(_checked, await body_of(request, MAX_BODY_BYTES))
        check_policies(submission.options, self._writer.fleet.fleet.living("provider_gateway", now=time.monotonic()))
        needs = await self._check_archive(submission)
        check_sandbox(submission.options.harness.sandbox, self._writer.fleet.fleet.runners(now=time.monotonic()))
        check_graders(needs.graders, self._writer.fleet.fleet.living("evaluator", now=time.monotonic()))
        now, options = time.time(), submission.options
        task_id = submission.task_id or new_id("t", now=now)
        who = principal_of(request)
        submitted = TaskSubmitted(
            task_id=task_id,
            task=submission.task,
            options=options,
            sandbox_digest=needs.sandbox_digest,
            principal=who.name,
            team=who.team,
            submitted_at=now,
        )
        attributes = {"evener.task.id": task_id, "evener.run.id": options.run_id, "evener.harness": options.harness.name}
        parent = propagate.extract(request.headers)
        try:
            with tracer.start_as_current_span("submit", context=parent, kind=SpanKind.SERVER, attributes=attributes):
                trace_headers = carrier()
                await self._writer.ask(lambda draft: draft.submit(submitted, trace_headers))
        except TaskDiffers:
            return error_response(
                409, f"task {submitted.task_id} is there already, with other content: give it, or its run, another id", "task_id"
            )
        except TaskWasDeleted:
            return error_response(409, f"task {submitted.task_id} was deleted with its run: give it, or its run, another id", "task_id")
        return self._detail(request, submitted.task_id)

    async def tasks(self, request: Request) -> Response:
        """Answer with the tasks of a run."""
        views = self._writer.watch.views(request.query_params.get("run_id"), sees=principal_of(request).sees)
        return json_response(TaskList(tasks=tuple(sorted(views, key=lambda view: (view.submitted_at, view.task_id)))))

    async def task(self, request: Request) -> Response:
        """Answer with a task and its sessions."""
        return self._detail(request, request.path_params["task_id"])

    async def cancel(self, request: Request) -> Response:
        """Cancel a task. A task that has ended does not change."""
        task_id, reason = request.path_params["task_id"], request.query_params.get("reason", "cancelled by its user")
        sees = principal_of(request).sees

        def cancel(draft: Draft) -> TaskState | None:
            task = draft.task(task_id)
            return draft.cancel(task_id, reason) if task is not None and sees(task.submitted.team) else None

        await self._writer.ask(cancel)
        return self._detail(request, task_id)

    async def delete_run(self, request: Request) -> Response:
        """Delete the ended tasks of a run, as far as the principal sees them. 409 while one of them is open."""
        run_id, sees = request.path_params["run_id"], principal_of(request).sees
        tasks = self._writer.watch.views(run_id, sees=sees)
        if not tasks:
            msg = f"no run {run_id}"
            raise NotFound(msg)
        try:
            await self._writer.ask(lambda draft: draft.delete(run_id, sees))
        except RunIsOpen:
            return error_response(
                409, f"run {run_id} has not ended: cancel it first, or wait until all of its sessions have ended", "run_id"
            )
        return json_response(RunDeleted(run_id=run_id, tasks=len(tasks)))

    async def progress(self, request: Request) -> Response:
        """Stream changed tasks as lines of JSON, from `after` on, until this scheduler stops. Idle streams get empty lines."""
        after = _number(request, "after", 0)
        views = self._writer.watch.follow(request.query_params.get("run_id"), after, principal_of(request).sees)

        async def lines() -> AsyncIterator[bytes]:
            async for view in views:
                yield b"\n" if view is None else msgspec.json.encode(view) + b"\n"

        return StreamingResponse(lines(), media_type="application/x-ndjson")

    async def fleet(self, request: Request) -> Response:
        """Answer with the instances and engines. Of what runs, a principal sees the sessions of its team."""
        writer, sees = self._writer, principal_of(request).sees
        view = fleet_view(writer, now=time.monotonic())

        def is_seen(running: Running) -> bool:
            task = writer.tasks.get(running.session_id.rpartition(".")[0])
            return sees("" if task is None else task.submitted.team)

        instances = (structs.replace(one, running=tuple(filter(is_seen, one.running))) for one in view.instances)
        return json_response(structs.replace(view, instances=tuple(instances)))

    async def join_engine(self, request: Request) -> Response:
        """Register an engine."""
        wanted = parse(await body_of(request, MAX_BODY_BYTES), _engine_requests)
        joined = EngineJoined(**structs.asdict(wanted), joined_at=time.time())
        return await self._tell(joined)

    async def drain_engine(self, request: Request) -> Response:
        """Let an engine finish its calls and give it no more."""
        return await self._tell(EngineDraining(engine_id=self._known_engine(request), draining_at=time.time()))

    async def remove_engine(self, request: Request) -> Response:
        """Remove an engine."""
        return await self._tell(EngineLeft(engine_id=self._known_engine(request), left_at=time.time()))

    async def _check_archive(self, submission: Submission) -> TaskNeeds:
        """Return what the task needs. Raises SubmissionRefused."""
        if submission.task is None:
            return needs_of_recording(submission.options)
        archive = submission.task.archive
        if archive.size > MAX_BLOB_BYTES or not await self._blobs.has(archive):
            msg = f"the archive is not there: PUT it to /blobs/{archive.digest} first"
            raise SubmissionRefused(msg, "task.archive")
        return await asyncio.to_thread(check_archive, await self._blobs.get(archive), submission.options)

    async def _tell(self, event: EngineJoined | EngineDraining | EngineLeft) -> Response:
        writer = self._writer
        await self._events.send(Topic.FLEET, event.engine_id, event)
        now = time.monotonic()
        writer.fleet.fleet.read(event, now=now)
        return json_response(fleet_view(writer, now=now))

    def _known_engine(self, request: Request) -> str:
        engine_id: str = request.path_params["engine_id"]
        if engine_id not in self._writer.fleet.fleet.engines:
            msg = f"no engine {engine_id}"
            raise NotFound(msg)
        return engine_id

    def _detail(self, request: Request, task_id: str) -> Response:
        detail = self._writer.watch.detail(task_id, principal_of(request).sees)
        if detail is None:
            msg = f"no task {task_id}"
            raise NotFound(msg)
        return json_response(detail)


class NotFound(EvenerError):
    """GET /tasks and GET /fleet list tasks and instances."""


def fleet_view(writer: TaskWriter, *, now: float) -> FleetView:
    """Return the fleet as clients see it."""
    fleet = writer.fleet.fleet
    return FleetView(
        instances=tuple(
            InstanceView(
                **shared_fields(beat, InstanceView),
                running=writer.fleet.running.get(instance_id, ()),
                alive=fleet.alive(instance_id, now=now),
                active=fleet.is_active(beat),
                quarantined_seconds=writer.quarantine.seconds_left(instance_id, now=now),
            )
            for instance_id, beat in sorted(fleet.heartbeats.items())
        ),
        engines=tuple(_engine(event) for _, event in sorted(fleet.engines.items())),
        held=writer.backpressure.reason,
    )


def _engine(event: EngineJoined | EngineDraining) -> EngineView:
    joined = event if isinstance(event, EngineJoined) else None
    return EngineView(
        engine_id=event.engine_id,
        draining=joined is None,
        kind=joined.kind if joined else None,
        url=joined.url if joined else None,
        policy=joined.policy if joined else None,
    )


def _answered(handler: Handler) -> Handler:
    """Answer an error that a handler raises on purpose with its status."""

    async def endpoint(request: Request) -> Response:
        try:
            return await handler(request)
        except SubmissionRefused as refused:
            return error_response(400, str(refused.args[0]), refused.field)
        except NotFound as missing:
            return error_response(404, str(missing.args[0]))
        except NotActive as elsewhere:
            return _elsewhere(elsewhere)
        except NotServing as error:
            return error_response(503, str(error.args[0]), headers=RETRY_LATER)
        except (BusError, BlobError) as error:
            return error_response(503, str(error), headers=RETRY_LATER)

    return endpoint


def _elsewhere(error: NotActive) -> Response:
    """Return the answer of a scheduler that is not the active one: the address of that one in the body and in a header."""
    body = ProblemAnswer(error=Problem(message=str(error.args[0]), active=error.address))
    return json_response(body, 503, headers={**RETRY_LATER, ACTIVE_HEADER: error.address or ""})


def _checked(body: bytes) -> Submission:
    """Return what a body submits. Raises SubmissionRefused. Call it in a thread: it compiles patterns."""
    submission = parse(body, _submissions)
    check(submission)
    return submission


def _sha256(data: bytes) -> str:
    """Return the digest of a body. Call it in a thread: a task may have many MB."""
    return hashlib.sha256(data).hexdigest()


def _digest(request: Request) -> str:
    """Return the digest in the path, checked: any other text could lead elsewhere in the store."""
    digest: str = request.path_params["digest"]
    if not DIGEST.fullmatch(digest):
        msg = "a digest is a SHA-256: 64 hexadecimal digits in lower case"
        raise SubmissionRefused(msg, "digest")
    return digest


def _number(request: Request, name: str, default: int | None = None) -> int:
    given = request.query_params.get(name)
    if given is None and default is not None:
        return default
    if given is None or not NUMBER.fullmatch(given):
        msg = f"the query parameter {name} is a whole number of at most 18 digits"
        raise SubmissionRefused(msg, name)
    return int(given)
