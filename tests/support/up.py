"""`evener up` as a process that is killed and started again on the same folder and port."""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
from tests.support.forks import Forked, start
from tests.support.waiting import until

EVENER: Final = ("-m", "evener.cli")
READY_SECONDS: Final = 120.0
STRIKE_SECONDS: Final = 180.0
DRAIN_SECONDS: Final = 60.0
STOP_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.05
LOG: Final = "up.log"


class Up:
    """An `evener up` that can be started again. It has at most one process at a time."""

    def __init__(self, state: Path, port: int, options: Mapping[str, str | float], program: Sequence[str]) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._state = state
        self._command = [*program, "up", "--trust-local", "--state", str(state), "--port", str(port)]
        self._command += [word for name, value in {"stop-seconds": DRAIN_SECONDS, **options}.items() for word in (f"--{name}", str(value))]
        self._process: Process | Forked | None = None

    @property
    def log(self) -> str:
        """What all the processes wrote."""
        return (self._state / LOG).read_text()

    @property
    def pid(self) -> int:
        """The last process."""
        assert self._process is not None
        return self._process.pid

    @property
    def ended(self) -> int | None:
        """How the last process ended. None: it runs."""
        assert self._process is not None
        return self._process.returncode

    async def start(self, faults: str = "") -> None:
        """Start it, with faults for this process alone."""
        self._state.mkdir(parents=True, exist_ok=True)
        with (self._state / LOG).open("ab") as log:
            log.write(f"=== {faults or 'no faults'}\n".encode())
            log.flush()
            environment = {**os.environ, "EVENER_FAULTS": faults}
            self._process = await start(self._command, log, environment)

    async def ready(self) -> None:
        """Wait until it says so."""
        async with aiohttp.ClientSession() as http:

            async def is_ready() -> bool:
                self.runs()
                return await _answers(http, f"{self.url}/readyz")

            await until(is_ready, seconds=READY_SECONDS)

    def runs(self) -> None:
        """Fail unless it runs."""
        assert self._process is not None
        assert self._process.returncode is None, f"it ended by itself:\n{self.log[-4000:]}"

    async def struck(self, fault: str) -> None:
        """Wait until a planned fault has killed it."""
        code = await self._ended(STRIKE_SECONDS, f"{fault} never struck")
        assert code == -signal.SIGKILL, f"ended with {code}:\n{self.log[-4000:]}"

    async def kill(self) -> None:
        """Kill it now."""
        assert self._process is not None
        self._process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        """Stop it in the ordinary way."""
        assert self._process is not None
        self._process.terminate()
        code = await self._ended(STOP_SECONDS, "it does not stop")
        assert code == 0, f"stopped with {code}:\n{self.log[-4000:]}"

    async def aclose(self) -> None:
        """End what still runs."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _ended(self, seconds: float, otherwise: str) -> int:
        assert self._process is not None
        try:
            async with asyncio.timeout(seconds):
                return await self._process.wait()
        except TimeoutError:
            msg = f"{otherwise}:\n{self.log[-4000:]}"
            raise AssertionError(msg) from None


@asynccontextmanager
async def up(state: Path, port: int, options: Mapping[str, str | float], program: Sequence[str] = EVENER) -> AsyncIterator[Up]:
    """Yield what can be started; nothing of it runs on after the block. `program`: the words between Python and `up`."""
    process = Up(state, port, options, program)
    try:
        yield process
    finally:
        await process.aclose()


async def _answers(http: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with http.get(url) as answer:
            return answer.ok
    except aiohttp.ClientError:
        return False
