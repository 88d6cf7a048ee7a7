"""The watched `evener up` with a fault planted: `python planted.py STOPS up ...`. Tests of the tests: the suite must notice.

A request to a relay says in the header `x-misbehave` what is to go wrong.
"""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

from watched import watch_services  # type: ignore[import-not-found] # the program beside this one

from evener.cli.__main__ import main
from evener.sandbox_runner.relay import Relay

HEADER: Final = "x-misbehave"
STOP_SECONDS: Final = 0.4


async def misbehave(how: str | None) -> None:
    """Do what the header says."""
    match how:
        case "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "hang":
            await asyncio.Event().wait()
        case "stop":
            end = time.thread_time() + STOP_SECONDS
            while time.thread_time() < end:  # the fault; a thread that slept could be counted as one without a core
                pass
        case _:
            pass


def plant() -> None:
    """Have relays misbehave from now on."""
    handle = Relay.handle

    async def handled(self: Relay, request: Any) -> Any:
        await misbehave(request.headers.get(HEADER))
        return await handle(self, request)

    Relay.handle = handled  # type: ignore[method-assign]


if __name__ == "__main__":
    plant()
    watch_services(Path(sys.argv.pop(1)))
    main()
