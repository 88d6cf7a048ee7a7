"""Work in child processes: with limits, and without a trace in this one."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from tests.support import child_work
from tests.support.waiting import block_until, eventually

from evener.runtime import child
from evener.runtime.children import CHILD_BYTES, Children, WorkFailed, WorkTooLong

ROOT = Path(__file__).parents[3]
LONG = 600.0
"""A limit that no test waits for."""


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Iterator[Children]:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    children = Children("test", 1)
    yield children
    children.end_idle()


def is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


async def pid_of(children: Children) -> int:
    return int(await children.run(child_work.told_pid, seconds=LONG))


async def test_what_the_work_returns_comes_back_whole(children: Children) -> None:
    """Also what fills a pipe many times; what the work prints is no part of it."""
    given = os.urandom(1 << 16) * 100
    assert await children.run(child_work.turned, given, seconds=LONG) == given[::-1]
    assert await children.run(child_work.turned, b"", seconds=LONG) == b""
    assert await pid_of(children) != os.getpid()


async def test_work_that_holds_the_interpreters_lock_stops_nobody_and_is_ended(children: Children, tmp_path: Path) -> None:
    """In a thread it would stop this test for ever."""
    working = asyncio.create_task(children.run(child_work.held_lock, os.fsencode(tmp_path / "pid"), seconds=3))
    looks = count()
    await eventually(lambda: (next(looks), working.done())[1])

    with pytest.raises(WorkTooLong):
        await working
    assert next(looks) > 10
    assert not is_alive(int((tmp_path / "pid").read_text()))


async def test_work_of_a_cancelled_caller_is_ended(children: Children, tmp_path: Path) -> None:
    """And the next caller has a process of its own."""
    working = asyncio.create_task(children.run(child_work.held_lock, os.fsencode(tmp_path / "pid"), seconds=LONG))
    await eventually((tmp_path / "pid").exists)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working

    assert not is_alive(int((tmp_path / "pid").read_text()))
    assert is_alive(await pid_of(children))


async def test_process_is_kept_for_the_next_job_and_replaced_when_it_died(children: Children) -> None:
    """A start takes a quarter of a second of CPU. What the service itself has of memory says nothing of its children."""
    of_the_service = bytearray(child.IDLE_BYTES + (16 << 20))
    of_the_service[:: 1 << 12] = bytes(len(range(0, len(of_the_service), 1 << 12)))
    first = await pid_of(children)
    assert await pid_of(children) == first
    os.kill(first, signal.SIGKILL)
    block_until(lambda: not is_alive(first))
    assert await pid_of(children) != first


async def test_error_of_the_work_is_told_with_its_traceback(children: Children) -> None:
    """Whatever is in it."""
    with pytest.raises(WorkFailed, match=r"^ValueError: a parser met \\udcff") as failed:
        await children.run(child_work.unanswered, seconds=LONG)
    assert "in unanswered" in failed.value.__notes__[0]
    with pytest.raises(WorkFailed, match="ended with 3"):
        await children.run(child_work.ended, seconds=LONG)


async def test_memory_is_limited_and_much_of_it_not_kept(children: Children) -> None:
    """Python hardly gives memory back."""
    with pytest.raises(WorkFailed, match="MemoryError"):
        await children.run(child_work.filled_memory, str(2 * CHILD_BYTES).encode(), seconds=LONG)
    before = await pid_of(children)
    await children.run(child_work.turned, bytes(child.IDLE_BYTES // 2), seconds=LONG)
    assert await pid_of(children) != before


def test_work_that_its_parent_can_no_longer_end_is_ended_by_the_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It counts the CPU of the work. Without work a process ends with its parent."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    argv = [sys.executable, "-m", child.__name__, str(CHILD_BYTES)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as working:
        assert working.stdin is not None
        job = [b"tests.support.child_work:held_lock", b"0", os.fsencode(tmp_path / "pid")]
        working.stdin.write(b"".join(child.framed(job)))
        working.stdin.flush()
        assert working.wait() == -signal.SIGXCPU
    assert subprocess.run(argv, stdin=subprocess.DEVNULL, check=False).returncode == 0
