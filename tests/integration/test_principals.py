"""Two teams on one deployment: each sees and ends what is its own, and its records say whose they are."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry
from tests.support.other_services import OtherServices
from tests.support.principals import principals_file
from tests.support.scheduler import scheduler as scheduler_at
from tests.support.service_context import OPERATOR, open_parts, running_service, serving
from tests.support.waiting import eventually, until

from evener.blobs.open import open_blobs
from evener.bus.open import open_bus
from evener.bus.port import Bus
from evener.client.client import Client
from evener.client.errors import NotAllowed, RequestRefused
from evener.client.session_views import RebuildRequest
from evener.client.views import EngineRequest, RecordingView
from evener.proto.framing import FrameReader
from evener.proto.ids import group_of, session_of
from evener.proto.reasons import TerminationReason
from evener.proto.sessions import SessionSealed, SessionStarted
from evener.proto.spec import GraderSpec, GroupOptions, HarnessSpec, Purpose
from evener.proto.state import GroupState, Stage
from evener.proto.tasks import TaskOptions, TaskSubmitted, session_spec
from evener.proto.topics import Topic
from evener.proto.trajectories import Accounting, GroupMerged, Member
from evener.reconstructor import service as reconstructor
from evener.reconstructor.config import Config as ReconstructorConfig
from evener.sandbox_runner.recordings import Recordings
from evener.scheduler import service as scheduler
from evener.scheduler.config import Config as SchedulerConfig
from evener.service.auth import load_secrets
from evener.service.context import Service, ServiceContext
from evener.service.events import EventLog
from evener.tokens.rows import digest
from evener.trainer_bridge import service as bridge
from evener.trainer_bridge.config import Config as BridgeConfig

RECORDING = TaskOptions(
    run_id="r", harness=HarnessSpec(name="mine", sandbox="none"), grader=GraderSpec(name="none"), purpose=Purpose.COLLECT
)


class Deployment:
    """A scheduler, a reconstructor and a bridge at one URL."""

    def __init__(self, url: str, context: ServiceContext) -> None:
        self.url = url
        self.bus = context.bus
        self.events = EventLog(context.bus, context.blobs)

    def client(self, token: str) -> Client:
        return Client(self.url, token)

    async def session(self, submitted: TaskSubmitted) -> SessionStarted:
        """Write the start and the seal of a task's session, as runner and gateway do."""
        spec = session_spec(submitted, group_of(submitted.task_id), 0)
        name, now = session_of(spec.group_id, 0), time.time()
        started = SessionStarted(session_id=name, attempt=1, start_id="s", runner_id="r", dispatched_at=now, started_at=now, spec=spec)
        await self.events.send(Topic.SESSIONS, name, started, session_id=name)
        sealed = SessionSealed(
            session_id=name,
            attempt=1,
            termination_reason=TerminationReason.FINISHED,
            rows_digest=digest(()),
            calls=0,
            sampled_tokens=0,
            sealed_at=now,
            spec=spec,
        )
        await self.events.send(Topic.SESSIONS, name, sealed, session_id=name)
        return started

    async def merged(self, group_id: str, team: str) -> None:
        """Write a group of a team, as the bridge does."""
        member = Member(session_id=f"{group_id}.0", attempt=1, termination_reason=TerminationReason.FINISHED, reward=1.0)
        event = GroupMerged(
            group_id=group_id,
            task_id=group_id,
            run_id="r",
            team=team,
            purpose=Purpose.TRAIN,
            policy="policy",
            size=1,
            members=(member,),
            accounting=Accounting(),
            merged_at=time.time(),
        )
        at = await self.events.send(Topic.MERGED, group_id, event, group_id=group_id)
        common = {name: getattr(event, name) for name in ("group_id", "task_id", "run_id", "team", "purpose", "policy", "size")}
        state = GroupState(**common, options=GroupOptions(), seen=(0,), ended_at=event.merged_at, offset=at.offset)
        await self.events.send(Topic.BRIDGE_STATE, group_id, state, group_id=group_id)


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Deployment]:
    everybody = ("ann search user", "amy search user", "bob core user", "vic core viewer", "tom core trainer")
    file = principals_file(tmp_path / "principals.toml", *everybody)
    async with AsyncExitStack() as stack:
        context = await stack.enter_async_context(open_parts(tmp_path, partitions=1))
        context = structs.replace(context, secrets=load_secrets(tmp_path, operator_token=OPERATOR, principals_file=file))
        services: list[Service] = [
            await stack.enter_async_context(scheduler.open_service(SchedulerConfig(state=str(tmp_path)), context)),
            await stack.enter_async_context(reconstructor.open_service(ReconstructorConfig(state=str(tmp_path)), context)),
            await stack.enter_async_context(bridge.open_service(BridgeConfig(state=str(tmp_path)), context)),
        ]
        for service in services:
            await stack.enter_async_context(running_service(service))
        await eventually(lambda: services[0].ready().get("active", False))
        yield Deployment(await stack.enter_async_context(serving([route for one in services for route in one.routes])), context)


async def submitted(at: Deployment, by: str, task_id: str) -> TaskSubmitted:
    async with at.client(by) as client:
        await client.submit(RECORDING, task_id=task_id)
    found = [await at.events.event(record) async for record in at.bus.read(Topic.TASKS, 0)]
    return next(event for event in found if isinstance(event, TaskSubmitted) and event.task_id == task_id)


async def test_task_is_its_principals_and_seen_by_its_team_alone(at: Deployment) -> None:
    """In lists, by name, in the stream of changes; an admin sees all."""
    event = await submitted(at, "ann", "hers")
    await submitted(at, "bob", "his")

    assert (event.principal, event.team) == ("ann", "search")
    for token, names in {"ann": {"hers"}, "amy": {"hers"}, "bob": {"his"}, "vic": {"his"}, OPERATOR: {"hers", "his"}}.items():
        async with at.client(token) as client:
            assert {view.task_id for view in await client.tasks("r")} == names
            changes = client.watch("r")
            assert {(await anext(changes)).task_id for _ in names} == names
            await changes.aclose()
            for name in {"hers", "his"} - names:
                with pytest.raises(RequestRefused, match=f"no task {name}"):
                    await client.task(name)


async def test_task_is_cancelled_by_its_team_alone(at: Deployment) -> None:
    """Another team's request changes nothing, and does not tell that there is such a task."""
    await submitted(at, "ann", "hers")
    async with at.client("bob") as bob, at.client("amy") as amy:
        with pytest.raises(RequestRefused, match="no task hers"):
            await bob.cancel("hers")
        assert (await amy.task("hers")).task.cancelled is None

        assert (await amy.cancel("hers")).task.cancelled is not None


async def test_id_of_another_teams_task_is_taken(at: Deployment) -> None:
    """A colleague's submission of the same task is the same; another team's, with the same content, is another task."""
    await submitted(at, "ann", "hers")
    await submitted(at, "amy", "hers")

    with pytest.raises(RequestRefused, match="hers is there already"):
        await submitted(at, "bob", "hers")


async def test_request_beyond_a_role_is_refused_with_the_role_that_it_needs(at: Deployment) -> None:
    """A viewer submits nothing, a user publishes nothing, a trainer joins no engine."""
    async with at.client("vic") as viewer, at.client("bob") as user, at.client("tom") as trainer:
        assert await viewer.fleet()
        with pytest.raises(NotAllowed, match="needs the role user, and vic of team core is viewer"):
            await viewer.submit(RECORDING)
        with pytest.raises(NotAllowed, match="needs the role trainer, and bob of team core is user"):
            await user._connection.data("POST", "/policies/policy/versions", body=b"{}")
        with pytest.raises(RequestRefused, match="missing required field"):
            await trainer._connection.data("POST", "/policies/policy/versions", body=b"{}")
        with pytest.raises(NotAllowed, match="needs the role admin"):
            await trainer.join_engine(EngineRequest(engine_id="e", kind="scripted", url="http://127.0.0.1:1"))


async def test_session_is_shown_and_rebuilt_for_its_team_alone(at: Deployment) -> None:
    """What its harness said to the model may be anything."""
    started = await at.session(await submitted(at, "ann", "hers"))

    assert started.spec.team == "search"
    for token, seen in {"ann": True, "vic": False, OPERATOR: True}.items():
        async with get(at, f"/sessions/{started.session_id}", token) as answer:
            assert answer.status == (200 if seen else 404)
    assert await rebuilt(at, "ann") == [started.session_id]
    assert await rebuilt(at, "bob") == []


async def test_groups_go_to_trainers_of_their_team_alone(at: Deployment) -> None:
    """As a stream from a position, as a list, and by name."""
    await at.merged("hers", "search")
    await at.merged("his", "core")

    for token, names in {"ann": {"hers"}, "tom": {"his"}, OPERATOR: {"hers", "his"}}.items():
        async with get(at, "/groups", token) as answer:
            lines = (await answer.read()).splitlines()
            assert {msgspec.json.decode(line)["group_id"] for line in lines} == names
        async with get(at, "/groups/follow?follow=false", token) as answer:
            assert {group["group_id"] async for group in followed(FrameReader(answer.content))} == names


async def test_score_is_told_to_its_team_alone(at: Deployment) -> None:
    """And neither whether there is one."""
    await at.merged("hers", "search")

    for token, seen in {"ann": True, "tom": False, OPERATOR: True}.items():
        async with get(at, "/scores/hers.0", token) as answer:
            assert ((await answer.json())["use"] is not None) is seen


async def test_key_of_a_recording_goes_to_its_team_alone(tmp_path: Path) -> None:
    """Whoever has it makes calls in that session."""
    file = principals_file(tmp_path / "principals.toml", "ann search user", "bob core user", "vic search viewer")
    recordings = Recordings(load_secrets(tmp_path, principals_file=file))
    with recordings.open("t.0", RecordingView(base_url="http://relay", key="hush", environment={}), "search"):
        async with serving(recordings.routes()) as url, aiohttp.ClientSession() as http:
            for token, status in {"ann": 200, "bob": 404, "vic": 403}.items():
                async with http.get(f"{url}/recordings/t.0", headers=bearer(token)) as answer:
                    assert answer.status == status
                    assert ("hush" in await answer.text()) is (status == 200)


async def followed(reader: FrameReader) -> AsyncIterator[dict[str, object]]:
    """Read groups as the stream has them: the place of each, then its parts."""
    async for place in aiter_of(reader):
        parts = [await reader.next() for _ in range(msgspec.msgpack.decode(place)["parts"])]
        group: dict[str, object] = msgspec.msgpack.decode(b"".join(part or b"" for part in parts))
        yield group


async def aiter_of(reader: FrameReader) -> AsyncIterator[bytes]:
    while (frame := await reader.next()) is not None:
        yield frame


async def rebuilt(at: Deployment, token: str) -> list[str]:
    body = msgspec.json.encode(RebuildRequest(run_id="r"))
    async with aiohttp.ClientSession() as http, http.post(f"{at.url}/rebuild", data=body, headers=bearer(token)) as answer:
        frames = [frame async for frame in aiter_of(FrameReader(answer.content)) if frame]
    return [msgspec.msgpack.decode(frame)["session_id"] for frame in frames]


@asynccontextmanager
async def get(at: Deployment, path: str, token: str) -> AsyncIterator[aiohttp.ClientResponse]:
    async with aiohttp.ClientSession(headers=bearer(token)) as http, http.get(at.url + path) as answer:
        yield answer


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_session_waits_for_its_quota_and_says_so(bus: Bus, tmp_path: Path) -> None:
    """From the file to the client: two of ann's four sessions run, the reason is in the task, and the team's series show both."""
    file = principals_file(tmp_path / "principals.toml", "ann search user { sessions = 2 }")
    registry, others = CollectorRegistry(), OtherServices(bus, open_blobs(str(tmp_path / "blobs")))
    options = structs.replace(RECORDING, samples=4)
    async with scheduler_at(bus, tmp_path, registry=registry, principals_file=file) as admin, Client(admin.url, "ann") as ann:
        async with others.beating(capacity=8):
            await ann.submit(options, task_id="hers")
            await others.dispatched(2)
            told = await until(lambda: ann.task("hers"), lambda detail: detail.task.held != "")
            assert told.task.held == "principal ann has 2 of 2 sessions running"
            assert told.task.stages == {Stage.DISPATCHED: 2, Stage.QUEUED: 2}
            assert registry.get_sample_value("evener_team_sessions", {"team": "search", "stage": "running"}) == 2
            assert registry.get_sample_value("evener_team_sessions", {"team": "search", "stage": "waiting"}) == 2

            await others.sealed("hers.0", sampled_tokens=30)
            await others.dispatched(3)

        assert registry.get_sample_value("evener_team_tokens_sampled_total", {"team": "search"}) == 30


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    async with open_bus(f"embedded:{tmp_path / 'other'}", partitions=1) as opened:
        yield opened
