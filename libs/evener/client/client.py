"""A client of a running Evener: submit, watch, export, publish. It needs no tokenizer."""

import asyncio
import hashlib
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from itertools import islice
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import structs

from evener.client.connection import Connection
from evener.client.errors import ClientError, Elsewhere, RequestRefused, Unavailable, Unreachable
from evener.client.session_views import RebuildRequest, Rebuilt, ScoreView, SessionView
from evener.client.views import (
    EngineRequest,
    FleetView,
    PolicyList,
    PolicyView,
    Publish,
    PublishAnswer,
    RecordingView,
    RunDeleted,
    ServedEngine,
    ServedEngines,
    Submission,
    TaskDetail,
    TaskList,
    TaskView,
    TokenPieces,
)
from evener.proto.blobs import BlobRef
from evener.proto.codec import decode
from evener.proto.delivered import Delivered, GroupPosition
from evener.proto.fleet import Canary
from evener.proto.framing import MSGPACK, FrameReader, StreamCut
from evener.proto.letters import LetterQuery, Letters, ReplayRequest, Replays
from evener.proto.spec import Purpose, Strategy, TaskRef
from evener.proto.tasks import TaskOptions
from evener.proto.trajectories import GroupOutcome
from evener.runtime.backoff import Backoff

REOPENING: Final = Backoff(0.25, 2.0)
"""The pauses before a request or a stream that broke is begun again."""
MAX_REOPENINGS: Final = 18
"""The number of consecutive attempts, which take half a minute."""
TASK_POLL_SECONDS: Final = 0.2

T = TypeVar("T")

_ref: Final = msgspec.json.Decoder(BlobRef)
_view: Final = msgspec.json.Decoder(TaskView)
_task: Final = msgspec.json.Decoder(TaskDetail)
_tasks: Final = msgspec.json.Decoder(TaskList)
_run_deleted: Final = msgspec.json.Decoder(RunDeleted)
_fleet: Final = msgspec.json.Decoder(FleetView)
_engines: Final = msgspec.json.Decoder(ServedEngines)
_score: Final = msgspec.json.Decoder(ScoreView)
_session: Final = msgspec.json.Decoder(SessionView)
_policies: Final = msgspec.json.Decoder(PolicyList)
_policy: Final = msgspec.json.Decoder(PolicyView)
_letters: Final = msgspec.json.Decoder(Letters)
_replays: Final = msgspec.json.Decoder(Replays)
_pieces: Final = msgspec.json.Decoder(TokenPieces)
_published: Final = msgspec.json.Decoder(PublishAnswer)
_recording: Final = msgspec.json.Decoder(RecordingView)
_rebuilt: Final = msgspec.msgpack.Decoder(Rebuilt)
_position: Final = msgspec.msgpack.Decoder(GroupPosition)


class Client:
    """A client of the scheduler at `url`, which finds the other services in its fleet. All methods raise ClientError.

    Use it as an async context manager, or call `aclose`.
    """

    def __init__(self, url: str, token: str, *, ca_file: str | None = None, reopening: Backoff = REOPENING) -> None:
        """`ca_file`: the PEM file of the authorities that sign the deployment's certificates; None: those of the system.

        `reopening`: the pauses before a request or a stream that broke is begun again. Raises ConfigError for an unusable file.
        """
        self._connection = Connection(url, token, ca_file)
        self.reopening: Final = reopening

    @property
    def url(self) -> str:
        """The scheduler's base URL."""
        return self._connection.url

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections."""
        await self._connection.aclose()

    async def put_blob(self, data: bytes) -> BlobRef:
        """Store bytes and return their reference."""
        digest = hashlib.sha256(data).hexdigest()
        answer = await self._connection.data("PUT", f"/blobs/{digest}", body=data)
        return _ref.decode(answer)

    async def get_blob(self, ref: BlobRef) -> bytes:
        """Return the bytes of a reference."""
        return await self._connection.data("GET", f"/blobs/{ref.digest}", query={"size": ref.size})

    async def submit(self, options: TaskOptions, *, task: TaskRef | None = None, task_id: str | None = None) -> TaskDetail:
        """Submit a task whose archive is in the blob store. With the same `task_id`, repeated calls submit one task."""
        submission = Submission(task_id=task_id, task=task, options=options)
        return await self._connection.call("POST", "/tasks", _task, body=submission)

    async def tasks(self, run_id: str | None = None) -> tuple[TaskView, ...]:
        """Return the tasks of a run. None: of all runs."""
        return (await self._connection.call("GET", "/tasks", _tasks, query={"run_id": run_id})).tasks

    async def task(self, task_id: str) -> TaskDetail:
        """Return a task with its sessions."""
        return await self._connection.call("GET", f"/tasks/{task_id}", _task)

    async def cancel(self, task_id: str, reason: str | None = None) -> TaskDetail:
        """Cancel a task. A task that has ended does not change."""
        return await self._connection.call("DELETE", f"/tasks/{task_id}", _task, query={"reason": reason})

    async def delete_run(self, run_id: str) -> RunDeleted:
        """Delete a run whose sessions have all ended. Its blobs are removed later. Raises RequestRefused with status 409, 404."""
        return await self._connection.call("DELETE", f"/runs/{quote(run_id, safe='')}", _run_deleted)

    async def watch(self, run_id: str | None = None, *, after: int = 0) -> AsyncGenerator[TaskView, None]:
        """Yield tasks whenever they change, for ever. Reconnects when the connection breaks or the scheduler restarts."""
        failures = 0
        while True:
            try:
                async with self._connection.answer("GET", "/events", query={"run_id": run_id, "after": after}) as response:
                    async for line in response.content:
                        failures = 0
                        if line.strip():
                            view = _view.decode(line)
                            after = view.cursor
                            yield view
            except (Unreachable, Unavailable):
                failures += 1
                if failures > MAX_REOPENINGS:
                    raise
            await asyncio.sleep(self.reopening.seconds(max(failures, 1)))

    async def fleet(self) -> FleetView:
        """Return the instances and engines."""
        return await self._connection.call("GET", "/fleet", _fleet)

    async def served_engines(self) -> tuple[ServedEngine, ...]:
        """Return the engines that a gateway has checked, with their capabilities."""
        return (await self._ask("provider_gateway", "GET", "/engines", _engines)).engines

    async def join_engine(self, engine: EngineRequest) -> FleetView:
        """Register an engine."""
        return await self._connection.call("POST", "/engines", _fleet, body=engine)

    async def drain_engine(self, engine_id: str) -> FleetView:
        """Let an engine finish its calls and give it no more."""
        return await self._connection.call("POST", f"/engines/{engine_id}/drain", _fleet)

    async def remove_engine(self, engine_id: str) -> FleetView:
        """Remove an engine."""
        return await self._connection.call("DELETE", f"/engines/{engine_id}", _fleet)

    async def recording(self, session_id: str, *, timeout: float = 30.0) -> RecordingView:
        """Wait until a runner holds the recording; return where its harness finds its model."""
        try:
            async with asyncio.timeout(timeout):
                while True:
                    address = await self._runner_of(session_id)
                    if address is not None:
                        found = await self._recording_at(address, session_id)
                        if found is not None:
                            return found
                    await asyncio.sleep(TASK_POLL_SECONDS)
        except TimeoutError as cause:
            msg = f"no runner took the recording {session_id} within {timeout:g} s"
            raise Unavailable(msg) from cause

    async def recording_heartbeat(self, session_id: str) -> None:
        """Tell the runner that the recorded program still runs."""
        await self._tell_runner(session_id, "heartbeat", {})

    async def recording_exited(self, session_id: str, *, exit_code: int | None, reward: float | None = None) -> None:
        """Tell the runner that the recorded program exited, with the reward given by hand, if any."""
        await self._tell_runner(session_id, "exited", {"exit_code": exit_code, "reward": reward})

    async def session(self, session_id: str, *, strategy: Strategy = Strategy.TREE) -> SessionView:
        """Return a session, rebuilt from the log: its calls, its rows, and the messages of each row."""
        return await self._ask("reconstructor", "GET", f"/sessions/{session_id}", _session, query={"strategy": strategy})

    async def score(self, session_id: str) -> ScoreView:
        """Return a session's score, what its grader left, and what became of the session in its group."""
        return await self._ask("trainer_bridge", "GET", f"/scores/{session_id}", _score)

    async def rebuild(self, request: RebuildRequest) -> AsyncIterator[Rebuilt]:
        """Rebuild stored sessions; yield each when it is done."""
        async with aclosing(self._frames("reconstructor", "POST", "/rebuild", body=msgspec.json.encode(request))) as frames:
            async for frame in frames:
                yield _rebuilt.decode(frame)

    async def groups(
        self, run_id: str | None = None, *, purpose: Purpose | None = None, after: float | None = None
    ) -> AsyncIterator[GroupOutcome]:
        """Yield the groups that have ended (`after` this time, in Unix seconds) with their blobs, then stop."""
        query = {"run_id": run_id, "purpose": purpose, "after": after}
        async with aclosing(self._frames("trainer_bridge", "GET", "/groups", query=query)) as frames:
            async for frame in frames:
                yield _group(frame)

    async def delivered(self, at: Mapping[int, int], *, follow: bool = True) -> AsyncGenerator[Delivered, None]:
        """Yield records of `trajectories.merged` from a position on (partition to offset); `evener.client.groups` makes groups of them.

        `follow`: continue for ever, otherwise stop at the end of the log. Raises RequestRefused with status 409 for a position that the log
        does not have.
        """
        query = {"at": ",".join(f"{partition}:{offset}" for partition, offset in at.items()), "follow": str(follow).lower()}
        async with aclosing(self._frames("trainer_bridge", "GET", "/groups/follow", query=query)) as frames:
            async for frame in frames:
                position = _position.decode(frame)
                parts = [await anext(frames, b"") for _ in range(position.parts)]
                if not all(parts):
                    msg = "the stream ended within a group"
                    raise Unavailable(msg)
                yield Delivered(position=position, group=_group(b"".join(parts)) if parts else None)

    async def publish(
        self, policy: str, version: int, path: str, *, digest: str | None = None, canary: Canary | None = None
    ) -> PublishAnswer:
        """Load a folder of weights into the policy's engines as this version; return when the engines sample from it.

        Every bridge is asked, because one of them owns the policy. All are asked again if a connection breaks or no engine answers; a
        version that was published meanwhile is not published twice. Raises RequestRefused with status 422 if the weights are wrong and the
        engines have the previous version again, 409 if the number is taken or an engine takes no weights, and 404 for an unknown policy.
        """
        body = Publish(path=path, version=version, digest=digest, canary=canary)
        return await self.patiently(lambda: self._publish(policy, body))

    async def policies(self) -> tuple[PolicyView, ...]:
        """Return all policies with a published version."""
        return (await self._ask("trainer_bridge", "GET", "/policies", _policies)).policies

    async def policy(self, name: str) -> PolicyView:
        """Return one policy, with its versions and engines."""
        return await self._ask("trainer_bridge", "GET", f"/policies/{name}", _policy)

    async def dead_letters(self, query: LetterQuery) -> Letters:
        """Return the dead letters of a query."""
        asked = {name: value for name, value in structs.asdict(query).items() if name != "replayed"}
        return await self._connection.call("GET", "/dead-letters", _letters, query=asked | {"replayed": str(query.replayed).lower()})

    async def replay(self, positions: Sequence[str] = (), query: LetterQuery | None = None) -> Replays:
        """Append the records at these positions, and those of a query's open letters, to their partitions again: each once, ever."""
        body = ReplayRequest(positions=tuple(positions), query=query)
        return await self._connection.call("POST", "/dead-letters/replay", _replays, body=body)

    async def pieces(self, policy: str, ids: Sequence[int]) -> list[bytes]:
        """Return the bytes behind each token id of a policy."""
        answer = await self._ask("provider_gateway", "POST", "/tokens/pieces", _pieces, body={"policy": policy, "ids": list(ids)})
        return [b64decode(piece) for piece in answer.pieces]

    async def patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """Return what `ask` returns, repeating it while no service answers."""
        for pause in islice(self.reopening, MAX_REOPENINGS):
            try:
                return await ask()
            except (Unreachable, Unavailable):
                await asyncio.sleep(pause)
        return await ask()

    async def _publish(self, policy: str, body: Publish) -> PublishAnswer:
        """Ask each bridge once. Raises the refusal of one of them, otherwise the failure of the one that owns the policy."""
        told: list[ClientError] = []
        for at in await self._instances("trainer_bridge"):
            try:
                return await self._connection.call("POST", f"/policies/{policy}/versions", _published, body=body, at=at)
            except (Unreachable, Unavailable) as failed:
                told.append(failed)
        none = Unavailable("no trainer_bridge is running")
        raise next((each for each in told if not isinstance(each, Elsewhere)), told[-1] if told else none)

    async def _ask(self, service: str, method: str, path: str, answer: msgspec.json.Decoder[T], **request: Any) -> T:
        """Return the answer of a living instance of a service; `request` as for `Connection.call`."""
        return await self._connection.call(method, path, answer, at=await self._instance(service), **request)

    async def _frames(self, service: str, method: str, path: str, **request: Any) -> AsyncGenerator[bytes, None]:
        """Yield the messages of a stream by a living instance of a service, without those that only keep the connection open."""
        at = await self._instance(service)
        async with self._connection.answer(method, path, at=at, accept=MSGPACK, **request) as response:
            reader = FrameReader(response.content)
            try:
                while (frame := await reader.next()) is not None:
                    if frame:
                        yield frame
            except StreamCut as cause:
                raise Unavailable(cause.args[0]) from cause

    async def _instance(self, service: str) -> str:
        """Return the base URL of a living instance of a service."""
        if addresses := await self._instances(service):
            return addresses[0]
        msg = f"no {service} is running"
        raise Unavailable(msg)

    async def _instances(self, service: str) -> list[str]:
        """Return the base URLs of all living instances of a service."""
        instances = (await self.fleet()).instances
        return [one.address for one in instances if one.service == service and one.alive and one.address]

    async def _runner_of(self, session_id: str) -> str | None:
        """Return the base URL of the runner that holds a session. None: no runner holds it yet."""
        detail = await self.task(session_id.rpartition(".")[0])
        runner_id = next((session.runner_id for session in detail.sessions if session.session_id == session_id), None)
        instances = (await self.fleet()).instances
        return next((instance.address for instance in instances if instance.instance_id == runner_id), None)

    async def _recording_at(self, address: str, session_id: str) -> RecordingView | None:
        try:
            return await self._connection.call("GET", f"/recordings/{session_id}", _recording, at=address)
        except RequestRefused as refused:
            if refused.status == 404:  # noqa: PLR2004 - HTTP
                return None  # dispatched, and not started yet
            raise

    async def _tell_runner(self, session_id: str, what: str, body: dict[str, Any]) -> None:
        address = await self._runner_of(session_id)
        if address is None:
            msg = f"no runner holds {session_id}"
            raise Unavailable(msg)
        await self._connection.data("POST", f"/recordings/{session_id}/{what}", body=msgspec.json.encode(body), at=address)


def _group(frame: bytes) -> GroupOutcome:
    """Return the group in a message of the stream of groups."""
    event = decode(frame)
    if not isinstance(event, GroupOutcome):
        msg = f"the stream of groups holds a {type(event).__name__}"
        raise ClientError(msg)
    return event
