"""Ctrl-C and SIGTERM under a command that waits for work of the services: the first ends the waiting, the second the command, at once."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, cast

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
BY_SIGNAL: Final = 128
"""Added to a signal's number: the exit code of what it ended."""


class Leaving:
    """Whether somebody asked to leave, and how."""

    def __init__(self) -> None:
        self.number: signal.Signals | None = None
        """The first signal. None: nobody asked."""

    @property
    def code(self) -> int:
        """The exit code of a command that was left."""
        return BY_SIGNAL + (self.number or 0)

    def taken_back(self) -> int:
        """Return the exit code, and let the command end in its own way: it is no longer cancelled."""
        cast("asyncio.Task[object]", asyncio.current_task()).uncancel()
        return self.code


@contextmanager
def leaving() -> Iterator[Leaving]:
    """Cancel this task at the first signal inside this block, and end the process at the second."""
    asked = Leaving()
    loop, task = asyncio.get_running_loop(), cast("asyncio.Task[object]", asyncio.current_task())

    def heard(number: signal.Signals) -> None:
        if asked.number is not None:
            os._exit(BY_SIGNAL + number)  # children die with this process
        asked.number = number
        task.cancel()

    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        loop.add_signal_handler(number, heard, number)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
