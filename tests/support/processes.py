"""The six services as six processes that share a configuration file and a state folder."""

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec
import pytest
from tests.support.forks import Forked, start
from tests.support.waiting import eventually, until

from evener.client.client import Client
from evener.service.state_folder import TOKEN_FILE

SERVICES: Final = ("scheduler", "sandbox_runner", "provider_gateway", "reconstructor", "evaluator", "trainer_bridge")
START_SECONDS: Final = 120.0
DRAIN_SECONDS: Final = 60.0
STOP_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.1


class Program:
    """One service, as a process that can be started again.

    `words`: what Python is told. `alone`: its first process is no fork, also in tests.
    """

    def __init__(self, name: str, folder: Path, words: Sequence[str], *, alone: bool = False) -> None:
        self.name = name
        self.url = ""
        self._folder = folder
        self._words = words
        self._alone = alone
        self._starts = 0
        self._process: Process | Forked | None = None

    @property
    def log(self) -> str:
        """What the last process wrote."""
        return self._log.read_text()

    @property
    def pid(self) -> int:
        """The process id of the last process."""
        assert self._process is not None
        return self._process.pid

    @property
    def _log(self) -> Path:
        return self._folder / f"{self.name}.{self._starts}.log"

    async def start(self) -> None:
        """Start it, on any free port."""
        self._starts += 1
        self.url = ""
        with self._log.open("wb") as log:
            self._process = await start(self._words, log, os.environ, alone=self._alone and self._starts == 1)

    async def listening(self) -> None:
        """Wait until it says where it listens."""

        def told() -> list[str]:
            self.assert_running()
            return [line for line in self.log.splitlines() if '"listening"' in line]

        await eventually(told, seconds=START_SECONDS)
        self.url = msgspec.json.decode(told()[0])["url"]

    async def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        self.tell(signal.SIGTERM)
        assert self._process is not None
        try:
            async with asyncio.timeout(STOP_SECONDS):
                return await self._process.wait()
        except TimeoutError:
            msg = f"{self.name} did not stop within {STOP_SECONDS} s:\n{self.log[-4000:]}"
            raise AssertionError(msg) from None

    async def ended(self) -> int:
        """Wait for its end; return the exit code."""
        assert self._process is not None
        return await self._process.wait()

    async def kill(self) -> None:
        """End it at once, if it was started, and wait until it is gone."""
        self.tell(signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()

    async def readiness(self, http: aiohttp.ClientSession) -> tuple[int, dict[str, dict[str, bool]]]:
        """Return what /readyz says: the status, and the named conditions by service."""
        self.assert_running()
        async with http.get(f"{self.url}/readyz") as answer:
            said: dict[str, Any] = await answer.json()
            return answer.status, said["services"]

    def assert_running(self) -> None:
        """Fail with its last words if it has ended."""
        assert self._process is not None
        assert self._process.returncode is None, f"{self.name} ended with {self._process.returncode}:\n{self.log[-4000:]}"

    def tell(self, number: signal.Signals) -> None:
        """Send it a signal, if it still runs."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)


class Deployment:
    """All six."""

    def __init__(self, folder: Path, *, alone: bool) -> None:
        words = ("--config", str(folder / "evener.toml"), "--instance")
        self.programs = {name: Program(name, folder, ("-m", f"evener.{name}", *words, f"of-{name}"), alone=alone) for name in SERVICES}
        self._token = folder / "state" / TOKEN_FILE

    async def start(self) -> None:
        """Start all at once, and wait until they listen."""
        for program in self.programs.values():
            await program.start()
        async with asyncio.timeout(START_SECONDS):
            await asyncio.gather(*(program.listening() for program in self.programs.values()))

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """Yield an operator's client of the scheduler."""
        async with Client(self.programs["scheduler"].url, self._token.read_text().strip()) as client:
            yield client

    async def ready(self, *names: str) -> None:
        """Wait until /readyz of these services (none: of all) answers 200, and the one scheduler knows that it is the active one."""
        async with aiohttp.ClientSession() as http:
            said: dict[str, Any] = {}

            async def is_ready(name: str) -> bool:
                status, said[name] = await self.programs[name].readiness(http)
                return status == 200 and "standby" not in said[name].get(name, {})

            try:
                await asyncio.gather(*(until(partial(is_ready, name), seconds=START_SECONDS) for name in names or SERVICES))
            except TimeoutError:
                pytest.fail(f"not ready: {said}\n{self.last_words()}")

    async def stop(self) -> dict[str, int]:
        """Send SIGTERM to all at once; return their exit codes."""
        codes = await asyncio.gather(*(program.stop() for program in self.programs.values()))
        return dict(zip(self.programs, codes, strict=True))

    def last_words(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(f"--- {name}\n{program.log[-1500:]}" for name, program in self.programs.items())


@asynccontextmanager
async def deployment(
    folder: Path, bus: str, *, partitions: int, policies: str, trust_local: bool = False, alone: bool = False
) -> AsyncIterator[Deployment]:
    """Yield what can be started; nothing of it runs on after the block. `policies`: of the gateway, as TOML. `alone`: as for programs."""
    shared = f'bus = "{bus}"\nstate = "{folder / "state"}"\npartitions = {partitions}\n'
    shared += f"stop_seconds = {DRAIN_SECONDS}\n"
    services = f"[provider_gateway]\npolicies = {policies}\n[sandbox_runner]\ntrust_local = {str(trust_local).lower()}\n"
    (folder / "evener.toml").write_text(f"{shared}\n{services}")
    six = Deployment(folder, alone=alone)
    try:
        yield six
    finally:
        await asyncio.gather(*(program.kill() for program in six.programs.values()))
