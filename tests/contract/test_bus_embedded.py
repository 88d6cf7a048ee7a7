"""What only the embedded bus promises: one process, one file, and what happens when the process or the disk gives out."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from evener.bus.embedded import EmbeddedBus, open_embedded
from evener.bus.port import BusError, BusHeld, NotCommitted, Outgoing
from evener.proto.topics import TOPICS, Topic

CALLS = Topic.SESSIONS
FEW = {name: TOPICS[name] for name in (Topic.SESSIONS, Topic.FLEET)}
DISK_BYTES = 8 * 1024 * 1024

DIES_IN_A_FORK = """
import os, sys
from pathlib import Path
from evener.bus.embedded_lock import hold

with hold(Path(sys.argv[1])):
    if os.fork() == 0:
        print("forked", flush=True)
    sys.stdin.read()
"""
COMMITS = """
import asyncio, sys
from pathlib import Path
from evener.bus.embedded import open_embedded
from evener.bus.port import Outgoing

async def lane(producer, name):
    for number in range(1_000_000):
        value = f"{name}.{number}"
        await producer.commit([Outgoing(topic="sessions", key="s", value=value.encode(), partition=part) for part in (0, 1)])
        print(value, flush=True)

async def main():
    async with open_embedded(Path(sys.argv[1])) as bus:
        producer = await bus.producer("gateway-0")
        print("open", flush=True)
        if len(sys.argv) > 2:
            await asyncio.gather(*(lane(producer, name) for name in range(16)))
        await asyncio.Event().wait()

asyncio.run(main())
"""


def record(value: bytes, *, key: str = "s1", topic: Topic = CALLS) -> Outgoing:
    return Outgoing(topic=topic, key=key, value=value, partition=0)


async def values(bus: EmbeddedBus, partition: int = 0) -> list[bytes | None]:
    return [found.value async for found in bus.read(CALLS, partition)]


@contextmanager
def another_process(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", COMMITS, str(folder), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "open\n"
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def small_files(limit: int) -> Iterator[None]:
    """While the block runs, no file of this process grows beyond `limit` bytes: what a full disk does, for any user."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of 8 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount; the limit on file sizes stands in for the full disk (next test)")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


async def fill(bus: EmbeddedBus) -> list[bytes]:
    """Commit until the disk is full; return the records whose commits returned."""
    producer = await bus.producer("gateway-0")
    awaited: list[bytes] = []
    for number in range(1000):
        value = b"%d." % number + bytes(100_000)
        try:
            await producer.commit([record(value)])
        except NotCommitted as error:
            assert "free space" in str(error)  # noqa: PT017 - the fill ends here
            return awaited
        awaited.append(value)
    pytest.fail("the disk was never full")


def test_second_process_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    """Two writers would lose records: the error of the second names the process to stop."""

    async def second() -> None:
        async with open_embedded(tmp_path):
            pass

    with another_process(tmp_path) as first, pytest.raises(BusHeld, match=f"held by process {first.pid}"):
        asyncio.run(second())
    asyncio.run(second())


async def test_second_opener_in_the_same_process_is_refused(tmp_path: Path) -> None:
    """A mistake in wiring is as deadly as a second process."""
    async with open_embedded(tmp_path, FEW):
        with pytest.raises(BusHeld, match=f"process {os.getpid()}"):
            async with open_embedded(tmp_path, FEW):
                pass


def test_lock_of_a_dead_process_is_awaited_while_a_program_that_it_was_starting_still_has_its_files(tmp_path: Path) -> None:
    """Killed between fork and exec of a harness: the child has the lock too, for a moment, and nobody is to be refused for that."""
    program = [sys.executable, "-c", DIES_IN_A_FORK, str(tmp_path)]
    with (
        subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder,
        ThreadPoolExecutor(1) as pool,
    ):
        assert holder.stdin
        assert holder.stdout
        assert holder.stdout.readline() == "forked\n"
        holder.kill()
        holder.wait()
        opening = pool.submit(asyncio.run, opened(tmp_path))
        with pytest.raises(TimeoutError):
            opening.result(0.5)
        holder.stdin.close()  # the child ends
        opening.result()


async def opened(folder: Path) -> None:
    """Open the bus and close it."""
    async with open_embedded(folder, FEW):
        pass


async def test_killed_process_loses_nothing_that_was_awaited(tmp_path: Path) -> None:
    """kill -9 in the middle of commits: every commit that returned is there whole, and no commit is there in part."""
    with another_process(tmp_path, "commit") as process:
        assert process.stdout
        awaited = {process.stdout.readline().strip().encode() for _ in range(300)}
        process.send_signal(signal.SIGKILL)
        awaited |= {line.strip().encode() for line in process.stdout if line.endswith("\n")}

    async with open_embedded(tmp_path) as bus:
        first, second = await values(bus), await values(bus, 1)
        assert first == second
        assert awaited <= set(first)
        await bus.send([record(b"goes on")])


async def test_full_disk_refuses_commits_and_loses_none(small_disk: Path) -> None:
    """Nothing that was awaited is lost, and the bus goes on when there is space again."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(DISK_BYTES // 4))
    async with open_embedded(small_disk / "bus", FEW) as bus:
        awaited = await fill(bus)
        assert awaited
        with pytest.raises(NotCommitted):
            await (await bus.producer("gateway-1")).commit([record(bytes(500_000))])
        assert await values(bus) == awaited

        ballast.unlink()
        await bus.check()
        await bus.send([record(b"after")])
        assert await values(bus) == [*awaited, b"after"]
    async with open_embedded(small_disk / "bus", FEW) as bus:
        assert await values(bus) == [*awaited, b"after"]


async def test_file_that_may_not_grow_refuses_commits_and_loses_none(tmp_path: Path) -> None:
    """The same by a limit on the size of files."""
    async with open_embedded(tmp_path, FEW) as bus:
        with small_files(2 * 1024 * 1024):
            awaited = await fill(bus)
        await bus.send([record(b"after")])
        assert await values(bus) == [*awaited, b"after"]


@pytest.mark.parametrize("free", [0, 8192, 16384, 32768, 65536])
async def test_disk_without_space_is_reported_when_it_is_opened(small_disk: Path, free: int) -> None:
    """In words: SQLite's are `disk I/O error` for some of these."""
    with pytest.raises(OSError, match="No space"):
        (small_disk / "ballast").write_bytes(bytes(2 * DISK_BYTES))
    os.truncate(small_disk / "ballast", (small_disk / "ballast").stat().st_size - free)
    with pytest.raises(BusError, match=r"cannot be opened: the disk of .* is full"):
        async with open_embedded(small_disk / "bus", FEW):
            pass


async def test_foreign_file_is_refused(tmp_path: Path) -> None:
    """Somebody else's file is not overwritten."""
    (tmp_path / "bus.sqlite").write_bytes(b"not a bus at all" * 100)
    with pytest.raises(BusError, match=r"bus\.sqlite is not a bus"):
        async with open_embedded(tmp_path, FEW):
            pass


async def test_compacted_topic_does_not_grow_for_ever(tmp_path: Path) -> None:
    """Heartbeats come every two seconds: opening drops those that a later one replaced, and offsets go on."""
    async with open_embedded(tmp_path, FEW) as bus:
        await bus.send([record(b"%d" % number, key=f"instance-{number % 3}", topic=Topic.FLEET) for number in range(300)])
        before = await bus.last_values(Topic.FLEET, 0)
    async with open_embedded(tmp_path, FEW) as bus:
        assert [found.offset async for found in bus.read(Topic.FLEET, 0)] == [297, 298, 299]
        assert await bus.last_values(Topic.FLEET, 0) == before
        (position,) = await bus.send([record(b"next", key="instance-0", topic=Topic.FLEET)])
        assert position.offset == 300


async def test_second_member_of_a_group_is_refused(tmp_path: Path) -> None:
    """It is not a small Kafka: one member a group."""
    async with open_embedded(tmp_path, FEW) as bus, bus.join("gateways", CALLS, "a"):
        with pytest.raises(BusError, match="has a member already"):
            async with bus.join("gateways", CALLS, "a"):
                pass


async def test_closed_bus_refuses_instead_of_hanging(tmp_path: Path) -> None:
    """A service that is late at stopping gets an error, not a wait for ever."""
    async with open_embedded(tmp_path, FEW) as bus:
        producer = await bus.producer("gateway-0")
        await producer.aclose()
        with pytest.raises(NotCommitted, match="is closed"):
            await producer.commit([record(b"late")])
    with pytest.raises(NotCommitted, match="closed"):
        await bus.send([record(b"later")])
