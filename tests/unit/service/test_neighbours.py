"""Processes that do not fit together: the later one ends, and names the other; what runs goes on."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.support.waiting import until
from tests.unit.service.services import open_parts

from evener.blobs.open import open_blobs
from evener.blobs.port import NotRead, NotRemoved
from evener.bus.port import Bus, BusUnreachable
from evener.proto.blobs import BlobRef
from evener.proto.errors import EvenerError
from evener.proto.fleet import Heartbeat, PolicyFingerprint
from evener.proto.topics import Topic
from evener.service.auth import Secrets
from evener.service.config import ServiceConfig, host_name
from evener.service.context import ServiceContext
from evener.service.events import EventLog
from evener.service.neighbours import NameTaken, Neighbours, NotShared
from evener.service.store import Store

SOON = 60.0


@pytest.fixture
async def context(tmp_path: Path) -> AsyncIterator[ServiceContext]:
    async with open_parts(tmp_path) as context:
        yield context


class Process:
    """One process of a deployment, as far as the others see it."""

    def __init__(
        self,
        context: ServiceContext,
        boot_id: str,
        instance: str,
        store: Store,
        *,
        key: str = "key",
        sign_seconds: float = 1.0,
        service: str = "sandbox_runner",
    ) -> None:
        secrets = Secrets(operator_token="operator", capability_key=key.encode())
        self.name = f"{instance}-{service}"
        self._service = service
        self.neighbours = Neighbours(
            context.bus, context.fleet, secrets, store, boot_id=boot_id, names=[self.name], sign_seconds=sign_seconds, pause_seconds=0.01
        )
        self._boot_id = boot_id
        self._events = EventLog(context.bus, context.blobs)

    async def beat(self, marks: dict[str, Any] | None = None, **fields: Any) -> None:
        """Give a sign of life. `marks` replace what others compare."""
        beat = Heartbeat(
            instance_id=self.name,
            service=self._service,
            boot_id=self._boot_id,
            address=f"http://{self.name}",
            **({"at": time.time()} | fields),
        )
        await self._events.send(Topic.FLEET, self.name, structs.replace(self.neighbours.marked(beat), **marks or {}))

    async def ended_by(self, other: "Process", signs: int, within: float = SOON) -> EvenerError | None:
        """Start, then let another give so many signs of life; return what ends this process. None: nothing does within these seconds."""
        await self.neighbours.fit()
        watching = asyncio.create_task(self.neighbours.watch())
        for _ in range(signs):
            await other.beat()
        done, _ = await asyncio.wait([watching], timeout=within)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        error = watching.exception() if done else None
        assert error is None or isinstance(error, EvenerError)
        return error


async def store(folder: Path | str, boot_id: str) -> Store:
    """Open a blob store as a process does."""
    opened = Store(open_blobs(str(folder)), boot_id)
    await opened.look()
    assert opened.usable
    return opened


async def test_later_process_of_the_same_name_ends_and_names_the_other(context: ServiceContext, tmp_path: Path) -> None:
    earlier = Process(context, "b1", "local", await store(tmp_path / "blobs", "b1"))
    later = Process(context, "b2", "local", await store(tmp_path / "blobs", "b2"))
    error = await later.ended_by(earlier, 2)
    assert isinstance(error, NameTaken)
    assert "another process has this one's name: local-sandbox_runner at http://local-sandbox_runner. Give each process" in str(error)


async def test_services_of_one_host_share_its_name(context: ServiceContext, tmp_path: Path) -> None:
    """Six processes on one machine, none of which was given a name."""
    assert ServiceConfig().instance == ServiceConfig().instance == host_name()
    runner = Process(context, "b1", host_name(), await store(tmp_path / "blobs", "b1"))
    gateway = Process(context, "b2", host_name(), await store(tmp_path / "blobs", "b2"), service="provider_gateway")
    assert await gateway.ended_by(runner, 4, within=0.5) is None


async def test_earlier_process_of_the_same_name_continues(context: ServiceContext, tmp_path: Path) -> None:
    earlier = Process(context, "b1", "local", await store(tmp_path / "blobs", "b1"))
    later = Process(context, "b2", "local", await store(tmp_path / "blobs", "b2"))
    assert await earlier.ended_by(later, 4, within=0.5) is None


async def test_last_words_of_a_killed_process_of_the_same_name_stop_no_successor(context: ServiceContext, tmp_path: Path) -> None:
    """One heartbeat may have been on its way, and an old one stands in the topic."""
    killed = Process(context, "b1", "local", await store(tmp_path / "blobs", "b1"))
    await killed.beat()
    successor = Process(context, "b2", "local", await store(tmp_path / "blobs", "b2"))
    assert await successor.ended_by(killed, 1, within=0.3) is None


@pytest.mark.parametrize(("folder", "key", "what"), [("other", "key", "blob store"), ("blobs", "another", "capability_key")])
async def test_process_with_another_store_or_key_does_not_start_beside_a_living_one(
    context: ServiceContext, tmp_path: Path, folder: str, key: str, what: str
) -> None:
    """It opens nothing before it has waited for a sign of the other."""
    living = Process(context, "b1", "gw-1", await store(tmp_path / "blobs", "b1"))
    await living.beat()
    wrong = Process(context, "b2", "run-2", await store(tmp_path / folder, "b2"), key=key, sign_seconds=SOON)
    fitting = asyncio.create_task(wrong.neighbours.fit())
    await until(living.beat, lambda _: fitting.done())
    with pytest.raises(NotShared, match=f"another {what} than gw-1-sandbox_runner at http://gw-1-sandbox_runner"):
        await fitting


def policy(name: str = "policy", **parts: str) -> PolicyFingerprint:
    return PolicyFingerprint(policy=name, **{"tokenizer": "t", "template": "c", "settings": "s"} | parts)


@pytest.mark.parametrize(
    ("own", "theirs", "what"),
    [
        ([policy(template="x")], [policy()], "has another template for policy 'policy' than gw-1"),
        ([policy(tokenizer="x", settings="x")], [policy()], "has another tokenizer and settings for policy 'policy' than gw-1"),
        ([policy()], [policy(), policy("small")], "lacks the policy 'small' of gw-1"),
    ],
)
async def test_gateway_that_renders_otherwise_than_a_living_one_does_not_serve(
    context: ServiceContext, tmp_path: Path, own: list[PolicyFingerprint], theirs: list[PolicyFingerprint], what: str
) -> None:
    """It would give the engine other ids for the same conversation, and its tokens would be trained beside the others'."""
    living = Process(context, "b1", "gw-1", await store(tmp_path / "blobs", "b1"))
    await living.beat({"fingerprints": tuple(theirs)})
    wrong = Process(context, "b2", "gw-2", await store(tmp_path / "blobs", "b2"), sign_seconds=SOON)
    await wrong.neighbours.fit()
    agreeing = asyncio.create_task(wrong.neighbours.agree(own))
    while not agreeing.done():
        await living.beat({"fingerprints": tuple(theirs)})
        await asyncio.wait([agreeing], timeout=0.02)
    with pytest.raises(NotShared, match=f"this process {what}-sandbox_runner at http://gw-1"):
        await agreeing


async def test_gateway_with_one_policy_more_serves_beside_the_others(context: ServiceContext, tmp_path: Path) -> None:
    """That is how a policy is added. Those that run go on, although they lack it, and a service without policies compares none."""
    living = Process(context, "b1", "gw-1", await store(tmp_path / "blobs", "b1"))
    await living.beat({"fingerprints": (policy(),)})
    more = Process(context, "b2", "gw-2", await store(tmp_path / "blobs", "b2"), sign_seconds=3600.0)
    async with asyncio.timeout(SOON):
        await more.neighbours.agree([policy(), policy("small")])
        await Process(context, "b3", "run-1", await store(tmp_path / "blobs", "b3"), sign_seconds=3600.0).neighbours.agree([])
    await living.neighbours.agree([policy()])
    watching = asyncio.create_task(living.neighbours.watch())
    for _ in range(4):
        await more.beat({"fingerprints": (policy(), policy("small"))})
    done, _ = await asyncio.wait([watching], timeout=0.3)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)

    assert not done


async def test_process_that_counts_other_partitions_does_not_start(context: ServiceContext, tmp_path: Path) -> None:
    """It would look for a session's records where they are not."""
    living = Process(context, "b1", "gw-1", await store(tmp_path / "blobs", "b1"))
    await living.beat({"session_partitions": 64})
    wrong = Process(context, "b2", "gw-2", await store(tmp_path / "blobs", "b2"), sign_seconds=SOON)
    fitting = asyncio.create_task(wrong.neighbours.fit())
    while not fitting.done():
        await living.beat({"session_partitions": 64})
        await asyncio.wait([fitting], timeout=0.02)
    with pytest.raises(NotShared, match="counts 4 partitions of sessions, and not 64 as gw-1-sandbox_runner"):
        await fitting


async def test_process_with_another_store_starts_where_the_other_gives_no_sign(context: ServiceContext, tmp_path: Path) -> None:
    """It was killed a moment ago, and the store was changed."""
    killed = Process(context, "b1", "gw-1", await store(tmp_path / "blobs", "b1"))
    await killed.beat()
    await Process(context, "b2", "run-2", await store(tmp_path / "other", "b2")).neighbours.fit()


async def test_start_does_not_wait_where_all_fit(context: ServiceContext, tmp_path: Path) -> None:
    """Old heartbeats, those of who is leaving, and of who shares all."""
    await Process(context, "b1", "gw-1", await store(tmp_path / "blobs", "b1")).beat()
    await Process(context, "b0", "old", await store(tmp_path / "other", "b0")).beat(at=time.time() - 60)
    await Process(context, "b3", "leaving", await store(tmp_path / "other", "b3")).beat(stopping=True)
    async with asyncio.timeout(SOON):
        await Process(context, "b2", "run-2", await store(tmp_path / "blobs", "b2"), sign_seconds=3600.0).neighbours.fit()


class Away:
    """A blob store that does not answer."""

    async def put(self, data: bytes) -> BlobRef:
        raise NotRead(str(len(data)))

    async def get(self, ref: BlobRef) -> bytes:
        raise NotRead(ref.digest)

    async def has(self, ref: BlobRef) -> bool:
        raise NotRead(ref.digest)

    async def remove(self, digest: str, *, unused_seconds: float) -> bool:
        raise NotRemoved(digest, unused_seconds)


async def test_store_that_is_away_is_not_another_store(context: ServiceContext, tmp_path: Path) -> None:
    """That it cannot be used, /readyz says."""
    living = Process(context, "b1", "gw-1", await store(tmp_path / "blobs", "b1"))
    await living.beat()
    away = Store(Away(), "b2")
    await away.look()
    assert (away.usable, away.probe) == (False, None)
    async with asyncio.timeout(SOON):
        await Process(context, "b2", "run-2", away).neighbours.fit()


async def test_store_is_looked_at_again(tmp_path: Path) -> None:
    """A folder that is gone, as a mount is, cannot be used; once it is back it can."""
    folder = tmp_path / "blobs"
    opened = await store(folder, "b1")
    folder.rename(tmp_path / "elsewhere")
    await opened.look()
    assert not opened.usable
    (tmp_path / "elsewhere").rename(folder)
    await opened.look()
    assert opened.usable


class Interrupted:
    """A bus that is away for the first time that each thing is asked of it."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._asked = {"partitions_of"}  # which asks nobody

    def __getattr__(self, name: str) -> Any:
        if name not in self._asked:
            self._asked.add(name)
            msg = name
            raise BusUnreachable(msg)
        return getattr(self._bus, name)


async def test_log_that_is_away_ends_no_process(context: ServiceContext, tmp_path: Path) -> None:
    """Not at the start, and not later; once it is back, what does not fit is found."""
    earlier = Process(context, "b1", "local", await store(tmp_path / "blobs", "b1"))
    bus: Any = Interrupted(context.bus)
    later = Process(structs.replace(context, bus=bus), "b2", "local", await store(tmp_path / "blobs", "b2"))
    await later.neighbours.fit()
    watching = asyncio.create_task(later.neighbours.watch())
    await until(earlier.beat, lambda _: watching.done())
    assert isinstance(watching.exception(), NameTaken)
