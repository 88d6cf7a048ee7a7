"""Work in threads of its own."""

import asyncio
import gc
import threading
import weakref
from typing import Any

import pytest

from evener.runtime.threads import LeftBehindThreads, Threads, to_its_end


async def test_loop_continues_while_a_thread_works() -> None:
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


async def test_error_behind_a_caller_who_was_cancelled_twice_is_not_complained_of() -> None:
    """A harness hangs up while its gateway stops."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, complaint: complaints.append(complaint))
    threads, go_on = Threads("test", 1), threading.Event()

    def work() -> None:
        assert go_on.wait(60)
        raise LookupError

    working = asyncio.create_task(threads.run(work))
    await asyncio.sleep(0)
    for _ in range(2):
        working.cancel()
        await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await working
    del working
    await asyncio.sleep(0)  # the loop lets go of the cancellation, and of what it was raised through
    gc.collect()

    assert complaints == []


class Large:
    """Something whose memory matters."""


async def test_work_that_was_cancelled_while_all_threads_hang_is_held_no_longer() -> None:
    """What is put into a store that hangs, and given up, would fill the memory. What waits behind it has its turn."""
    threads, go_on = LeftBehindThreads("test", 1), threading.Event()
    hanging = threads.begin(go_on.wait, 60)
    large = Large()
    held = weakref.ref(large)
    waiting, after = threads.begin(id, large), threads.begin(len, "four")
    del large
    assert held() is not None
    assert waiting.cancel()
    assert held() is None
    go_on.set()

    assert (await asyncio.wrap_future(hanging), await asyncio.wrap_future(after)) == (True, 4)


async def test_work_begins_at_once_while_there_are_threads_to_come() -> None:
    """One piece of work needs another to end."""
    threads, meeting = LeftBehindThreads("test", 3), threading.Barrier(3)
    for _ in range(3):
        await asyncio.gather(*(asyncio.wrap_future(threads.begin(meeting.wait, 60)) for _ in range(3)))


async def test_threads_end_with_whoever_had_them() -> None:
    """Each store that a test opens would leave its own."""
    threads = LeftBehindThreads("ends with its owner", 2)
    worker = await asyncio.wrap_future(threads.begin(threading.current_thread))
    del threads
    await asyncio.to_thread(worker.join, 60)
    assert not worker.is_alive()
