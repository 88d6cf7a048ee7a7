"""Work in threads of its own."""

import asyncio
import threading

import pytest

from evener.runtime.threads import Threads, to_its_end


async def test_loop_goes_on_while_a_thread_works() -> None:
    """The work is done elsewhere, and its result comes back."""
    threads, go_on = Threads("test", 1), threading.Event()

    def work(number: int) -> tuple[int, str]:
        assert go_on.wait(60)
        return number, threading.current_thread().name

    working = asyncio.create_task(threads.run(work, 7))
    await asyncio.sleep(0)
    assert not working.done()
    go_on.set()

    number, name = await working
    assert number == 7
    assert name.startswith("test")


async def test_what_a_thread_raises_is_raised() -> None:
    """With its own type."""
    with pytest.raises(ZeroDivisionError):
        await Threads("test", 1).run(lambda: 1 // 0)


async def test_cancelled_caller_leaves_only_when_its_thread_has_ended() -> None:
    """Or it would let go of a lock while the thread still looks at what the lock guards."""
    threads, go_on, done = Threads("test", 1), threading.Event(), threading.Event()

    def work() -> None:
        assert go_on.wait(60)
        done.set()

    working = asyncio.create_task(threads.run(work))
    await asyncio.sleep(0)
    for _ in range(2):
        working.cancel()
        await asyncio.sleep(0)
    assert not working.done()
    go_on.set()

    with pytest.raises(asyncio.CancelledError):
        await working
    assert done.is_set()


async def test_work_of_a_cancelled_caller_that_has_no_thread_yet_is_not_begun() -> None:
    """Or the end of a session would wait for a prompt that nobody wants any more."""
    threads, go_on, begun = Threads("test", 1), threading.Event(), threading.Event()
    first = asyncio.create_task(threads.run(go_on.wait, 60))
    second = asyncio.create_task(threads.run(begun.set))
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    go_on.set()

    assert await first
    assert not begun.is_set()


async def test_error_behind_a_cancelled_caller_is_not_complained_of() -> None:
    """Nobody waits for it any more."""
    go_on = asyncio.Event()

    async def fail() -> None:
        await go_on.wait()
        raise LookupError

    failing = asyncio.create_task(to_its_end(fail()))
    await asyncio.sleep(0)
    failing.cancel()
    go_on.set()

    with pytest.raises(asyncio.CancelledError):
        await failing
