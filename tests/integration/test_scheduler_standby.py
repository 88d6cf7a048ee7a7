"""Two schedulers of one name, as processes on real Kafka: one is active, the other stands by and takes over."""

import asyncio
import secrets
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import pytest
from tests.support.other_services import OtherServices
from tests.support.processes import Program
from tests.support.waiting import until

from evener.blobs.open import open_blobs
from evener.bus.open import open_bus
from evener.client.client import Client
from evener.client.views import ACTIVE_HEADER
from evener.proto.sessions import SessionDispatched
from evener.proto.spec import GraderSpec, HarnessSpec
from evener.proto.tasks import TaskOptions, TaskSubmitted
from evener.proto.topics import Topic
from evener.service.state_folder import TOKEN_FILE
from evener.tasks.directory import bundled, find
from evener.tasks.pack import pack

pytestmark = pytest.mark.kafka

SECONDS: Final = 120.0
"""What a test waits for anything."""
PARTITIONS: Final = 2
PACKED: Final = pack(find(bundled())[0])
MAX_TAKE_OVERS: Final = 3
"""The first, that of the other, and one back at most. More: they fence each other in a loop."""
ACTIVE: Final = {"running": True, "active": True}
STANDBY: Final = {"running": True, "standby": True}


class Pair:
    """Two schedulers of one name."""

    def __init__(self, folder: Path, others: OtherServices) -> None:
        words = ("-m", "evener.scheduler", "--config", str(folder / "evener.toml"))
        self.programs = [Program(f"scheduler-{name}", folder, (*words, "--instance", name)) for name in ("a", "b")]
        self.others = others
        self._token = folder / "state" / TOKEN_FILE

    async def start(self) -> None:
        """Start both; wait until one is active and the other stands by."""
        for program in self.programs:
            await program.start()
            async with asyncio.timeout(SECONDS):
                await program.listening()
        await self.settled()

    async def settled(self) -> tuple[Program, Program]:
        """Wait until one is active and the other stands by, and knows it; return them in this order."""
        async with aiohttp.ClientSession() as http:

            async def roles() -> tuple[Program, Program] | None:
                said = [await self._said(http, program) for program in self.programs]
                for (active, one), (standby, other) in zip(said, said[::-1], strict=True):
                    if (one, other) == (ACTIVE, STANDBY) and await self._names(http, standby) == active.url:
                        return active, standby
                return None

            settled = await until(roles, seconds=SECONDS)
            assert settled is not None
            return settled

    async def active(self, one: Program) -> None:
        """Wait until this one is active."""
        async with aiohttp.ClientSession() as http:
            await until(lambda: self._said(http, one), lambda said: said[1] == ACTIVE, seconds=SECONDS)

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """Yield a client that was told of both, the standby first."""
        _, standby = await self.settled()
        urls = sorted((program.url for program in self.programs), key=lambda url: url != standby.url)
        async with Client(",".join(urls), self.token) as client:
            yield client

    @property
    def token(self) -> str:
        """The operator's token."""
        return self._token.read_text().strip()

    async def _said(self, http: aiohttp.ClientSession, program: Program) -> tuple[Program, dict[str, bool]]:
        return program, (await program.readiness(http))[1].get("scheduler", {})

    async def _names(self, http: aiohttp.ClientSession, standby: Program) -> str:
        async with http.get(f"{standby.url}/tasks", headers={"authorization": f"Bearer {self.token}"}) as answer:
            return answer.headers.get(ACTIVE_HEADER, "")


@pytest.fixture
async def pair(kafka_servers: str, tmp_path: Path) -> AsyncIterator[Pair]:
    bus = f"kafka://{kafka_servers}?prefix=two{secrets.token_hex(4)}."
    (tmp_path / "evener.toml").write_text(f'bus = "{bus}"\nstate = "{tmp_path / "state"}"\npartitions = {PARTITIONS}\n')
    async with open_bus(bus, partitions=PARTITIONS) as opened:
        two = Pair(tmp_path, OtherServices(opened, open_blobs(str(tmp_path / "state" / "blobs"))))
        try:
            await two.start()
            yield two
        finally:
            for program in two.programs:
                program.tell(signal.SIGKILL)
            await asyncio.gather(*(program.ended() for program in two.programs))


async def submit(client: Client, task_id: str) -> None:
    """Submit a task with one session, as soon as a scheduler is active."""

    async def submitted() -> None:
        await client.put_blob(PACKED.data)
        options = TaskOptions(samples=1, harness=HarnessSpec(name="script"), grader=GraderSpec(name="none"))
        await client.submit(options, task=PACKED.ref, task_id=task_id)

    await client.patiently(submitted)


async def test_standby_names_the_active_scheduler_and_clients_follow(pair: Pair) -> None:
    """503 with the address in body and header; ready all the same. A client that knows the standby alone gets there."""
    active, standby = await pair.settled()
    async with aiohttp.ClientSession() as http:
        assert (await standby.readiness(http))[0] == 200
        async with http.get(f"{standby.url}/tasks", headers={"authorization": f"Bearer {pair.token}"}) as answer:
            assert (answer.status, answer.headers[ACTIVE_HEADER]) == (503, active.url)
            assert "retry-after" in answer.headers
            said = await answer.json()
            assert said["error"]["active"] == active.url
            assert said["error"]["message"] == f"this scheduler stands by; the active one is at {active.url}"
        async with http.get(f"{standby.url}/tasks") as answer:
            assert answer.status == 401
    async with Client(standby.url, pair.token) as client:
        await submit(client, "t")
        assert client.url == active.url
        shown = {one.address: one.active for one in (await client.fleet()).instances if one.service == "scheduler"}
        assert shown == {active.url: True, standby.url: False}


async def test_standby_takes_over_from_a_killed_scheduler(pair: Pair) -> None:
    """The client's next request goes to the other one, which knows the tasks and dispatches them."""
    async with pair.client() as client, pair.others.beating():
        await submit(client, "before")
        active, standby = await pair.settled()
        await pair.others.dispatched(1)
        active.tell(signal.SIGKILL)
        began = time.monotonic()
        await submit(client, "after")
        print(f"take-over after SIGKILL: {time.monotonic() - began:.1f} s")  # noqa: T201 - measured, not judged
        assert client.url == standby.url
        assert {view.task_id for view in await client.tasks()} == {"before", "after"}
        dispatched = await until(lambda: pair.others.read(Topic.DISPATCH, SessionDispatched), lambda found: len(found) >= 2)

    assert [event.session_id for event in dispatched] == ["before.0", "after.0"]
    assert len(await pair.others.read(Topic.TASKS, TaskSubmitted)) == 2


async def test_scheduler_that_is_stopped_hands_over(pair: Pair) -> None:
    """SIGTERM: it leaves the group in good order and exits 0. A watcher's stream goes on at the other one."""
    async with pair.client() as client:
        await submit(client, "before")
        active, standby = await pair.settled()
        watching = asyncio.ensure_future(_seen(client, "after"))
        began = time.monotonic()
        active.tell(signal.SIGTERM)
        await pair.active(standby)
        print(f"take-over after SIGTERM: {time.monotonic() - began:.1f} s")  # noqa: T201 - measured, not judged
        assert await active.ended() == 0
        await submit(client, "after")
        async with asyncio.timeout(SECONDS):
            await watching
        assert {view.task_id for view in await client.tasks()} == {"before", "after"}


async def test_scheduler_that_was_frozen_stands_by_when_it_wakes(pair: Pair) -> None:
    """Longer than the group waits: the other one takes over, and what the first is told as it wakes is written once, by the other."""
    async with pair.client() as client:
        await submit(client, "before")
        frozen, other = await pair.settled()
        frozen.tell(signal.SIGSTOP)
        await pair.active(other)
        frozen.tell(signal.SIGCONT)
        async with Client(frozen.url, pair.token) as zombies:
            await submit(zombies, "after")
        await pair.settled()
        assert {view.task_id for view in await client.tasks()} == {"before", "after"}

    assert len(await pair.others.read(Topic.TASKS, TaskSubmitted)) == 2
    assert "service_crashed" not in frozen.log + other.log
    assert sum(log.count("scheduler_took_over") for log in (frozen.log, other.log)) <= MAX_TAKE_OVERS


async def _seen(client: Client, task_id: str) -> None:
    async for view in client.watch():
        if view.task_id == task_id:
            return
