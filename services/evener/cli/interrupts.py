"""Handles Ctrl-C, SIGTERM and SIGHUP (the end of the terminal).

While a command waits for the services, the first ends the wait, the second ends the command.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, cast

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
BY_SIGNAL: Final = 128
"""The exit code of a process that a signal ended is this plus the signal's number."""


class Leaving:
    """Whether a signal asked the command to end."""

    def __init__(self) -> None:
        self.number: signal.Signals | None = None
        """The first signal. None: there was none."""

    def taken_back(self) -> int:
        """Return the exit code, and undo the cancellation so that the command can end normally."""
        cast("asyncio.Task[object]", asyncio.current_task()).uncancel()
        return BY_SIGNAL + (self.number or 0)


@contextmanager
def leaving() -> Iterator[Leaving]:
    """Cancel this task at the first signal inside this block, and end the process at the second."""
    asked = Leaving()
    task = cast("asyncio.Task[object]", asyncio.current_task())

    def heard(number: signal.Signals) -> None:
        if asked.number is not None:
            os._exit(BY_SIGNAL + number)  # children die with this process
        asked.number = number
        task.cancel()

    with on_signals(heard):
        yield asked


@contextmanager
def on_signals(act: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Call `act` on Ctrl-C (which child programs get too), SIGTERM and SIGHUP inside this block, instead of ending the process.

    A signal that whoever started the process ignores, as `nohup` does, stays ignored.
    """
    loop = asyncio.get_running_loop()
    before = {number: handler for number in SIGNALS if (handler := signal.getsignal(number)) is not signal.SIG_IGN}
    for number in before:
        loop.add_signal_handler(number, act, number)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
