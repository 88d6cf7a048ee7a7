"""`evener up` under watch: `python watched.py STOPS up ...`. Each stop of its event loop is a line of JSON in the file STOPS.

A task wakes every few milliseconds; how late it wakes is how long nothing else of the loop ran. Linux tells how long the loop's
thread was ready and had no core: that part is the machine's, not ours, and stands apart. What the thread was doing meanwhile is
looked up by another thread. Nothing else differs from `evener up`.
"""

import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from evener.cli.__main__ import main
from evener.service import host

TICK_SECONDS: Final = 0.004
NOTED_SECONDS: Final = 0.02
"""Shorter stops are not written down."""
LOOK_SECONDS: Final = 0.01
SLOW_SECONDS: Final = 0.03
"""A loop that has not ticked for so long is looked at."""
FRAMES: Final = 4
NANOSECONDS: Final = 1e9


class Watch:
    """Watches the thread in which it was made."""

    def __init__(self, stops: Path) -> None:
        self._file = os.open(stops, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._statistics = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self._thread = threading.get_ident()
        self._ticked = time.monotonic()
        self._seen = ""
        self._over = threading.Event()

    async def tick(self) -> None:
        """Take down every stop, for ever."""
        waited, cpu, process = self._waited(), time.thread_time(), time.process_time()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            late = now - self._ticked - TICK_SECONDS
            if late > NOTED_SECONDS:
                self._note(
                    at=now,
                    ms=1000 * late,
                    starved_ms=1000 * (self._waited() - waited),
                    loop_cpu_ms=1000 * (time.thread_time() - cpu),
                    process_cpu_ms=1000 * (time.process_time() - process),
                    where=self._seen,
                )
            waited, cpu, process = self._waited(), time.thread_time(), time.process_time()
            self._seen, self._ticked = "", time.monotonic()

    def look(self) -> None:
        """Find out what a loop does that has not ticked for a while, until closed. For a thread."""
        while not self._over.wait(LOOK_SECONDS):
            if not self._seen and time.monotonic() - self._ticked > SLOW_SECONDS:
                self._seen = " < ".join(_places(sys._current_frames().get(self._thread)))

    def close(self) -> None:
        """Make `look` return."""
        self._over.set()

    def _waited(self) -> float:
        return int(os.pread(self._statistics, 100, 0).split()[1]) / NANOSECONDS

    def _note(self, **stop: float | str) -> None:
        os.write(self._file, json.dumps(stop).encode() + b"\n")


def _places(frame: FrameType | None) -> Iterator[str]:
    """Yield the innermost function, and the innermost ones of Evener around it."""
    stack = []
    while frame is not None:
        stack.append(frame.f_code)
        frame = frame.f_back
    ours = stack[:1] + [code for code in stack[1:] if "/evener/" in code.co_filename]
    yield from (f"{Path(code.co_filename).parent.name}/{Path(code.co_filename).name}:{code.co_qualname}" for code in ours[:FRAMES])


@contextmanager
def _looking(watch: Watch) -> Iterator[None]:
    thread = threading.Thread(target=watch.look, name="hostile watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        watch.close()
        thread.join()


def watch_services(stops: Path) -> None:
    """Have whatever this process runs as services watched from now on."""
    run = host.run_services

    async def watched(*given: Any, **named: Any) -> None:
        watch = Watch(stops)
        with _looking(watch):
            ticking = asyncio.create_task(watch.tick(), name="hostile watch")
            try:
                await run(*given, **named)
            finally:
                ticking.cancel()

    host.run_services = watched


if __name__ == "__main__":
    watch_services(Path(sys.argv.pop(1)))
    main()
