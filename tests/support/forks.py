"""Evener's programs in forks of one process that has imported what they need: 50 ms of CPU for a start instead of a second.

Each is a process of its own: with its signals, streams and exit code. That programs start on their own is shown elsewhere: by
`test_six_processes.py` for services, by `test_usage.py` for commands.
"""

import asyncio
import atexit
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Final

from tests.support.waiting import eventually

SERVER: Final = Path(__file__).with_name("fork_server.py")
ENDED_SECONDS: Final = 600.0
LONGEST_SECONDS: Final = 3600.0
"""The limit of a wait that has a limit of its own where it is needed."""
ASKING: Final = threading.Lock()


@cache
def _server() -> socket.socket:
    """Start the process that is forked. It ends when this process does."""
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        command = [sys.executable, str(SERVER), str(its.fileno())]
        # Elsewhere than where pip put what it compiled, all would be compiled again.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPYCACHEPREFIX"}
        server = subprocess.Popen(command, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=environment)

    def end() -> None:
        ours.close()
        server.wait()

    atexit.register(end)
    return ours


class Forked:
    """A program that runs or has ended, with the interface of a process of asyncio."""

    def __init__(self, pid: int, report: IO[bytes]) -> None:
        self.pid: Final = pid
        self._report: Final = report
        self._code: int | None = None

    @property
    def returncode(self) -> int | None:
        """The exit code; negative: the signal that ended it. None: it runs."""
        if self._code is None and _readable(self._report, 0):
            self._code = int(self._report.readline())
            self._report.close()
        return self._code

    def send_signal(self, number: int) -> None:
        """Send it a signal if it runs."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    async def wait(self) -> int:
        """Wait for its end; return the exit code."""
        await eventually(lambda: self.returncode is not None, seconds=LONGEST_SECONDS)
        assert self._code is not None
        return self._code

    def join(self, seconds: float = ENDED_SECONDS) -> int:
        """The same for those without a loop. Raises TimeoutError."""
        if self._code is None and not _readable(self._report, seconds):
            msg = f"process {self.pid} has not ended after {seconds} s"
            raise TimeoutError(msg)
        assert self.returncode is not None
        return self.returncode


class Command:
    """A forked command whose output is read."""

    def __init__(self, *words: str, environment: Mapping[str, str]) -> None:
        """Start `python WORDS`."""
        (out, its_out), (errors, its_errors) = os.pipe(), os.pipe()
        self.stdout: Final = os.fdopen(out, encoding="utf-8")
        self.stderr: Final = os.fdopen(errors, encoding="utf-8")
        try:
            self.process: Final = fork(words, stdout=its_out, stderr=its_errors, environment=environment)
        finally:
            os.close(its_out)
            os.close(its_errors)

    @property
    def returncode(self) -> int | None:
        """The exit code. None: it runs."""
        return self.process.returncode

    def send_signal(self, number: int) -> None:
        """Send it a signal if it runs."""
        self.process.send_signal(number)

    def communicate(self, seconds: float = ENDED_SECONDS) -> tuple[str, str]:
        """Wait for its end, and return what it wrote that was not read yet."""
        said = ["", ""]

        def read(number: int, stream: IO[str]) -> None:
            if not stream.closed:
                with stream:
                    said[number] = stream.read()

        readers = [threading.Thread(target=read, args=each, daemon=True) for each in enumerate((self.stdout, self.stderr))]
        for reader in readers:
            reader.start()
        self.process.join(seconds)
        for reader in readers:
            reader.join(seconds)
        return said[0], said[1]


def fork(words: Sequence[str], *, stdout: int, stderr: int, environment: Mapping[str, str]) -> Forked:
    """Start `python WORDS`: `-m MODULE ...` or `FILE ...`."""
    report, its_report = os.pipe()
    request = {"words": list(words), "environment": dict(environment), "folder": str(Path.cwd())}
    with Path(os.devnull).open("rb") as nothing, ASKING:
        socket.send_fds(_server(), [json.dumps(request).encode()], [nothing.fileno(), stdout, stderr, its_report])
    os.close(its_report)
    reading = os.fdopen(report, "rb")
    return Forked(int(reading.readline()), reading)


async def start(words: Sequence[str], log: IO[bytes], environment: Mapping[str, str], *, alone: bool = False) -> Process | Forked:
    """Start `python WORDS`, which writes to a log: in tests in a fork, unless `alone`; outside of tests always on its own."""
    if "PYTEST_VERSION" in os.environ and not alone:
        return await asyncio.to_thread(fork, words, stdout=log.fileno(), stderr=log.fileno(), environment=environment)
    return await asyncio.create_subprocess_exec(sys.executable, *words, stdin=DEVNULL, stdout=log, stderr=log, env=environment)


def _readable(stream: IO[bytes], seconds: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return bool(selector.select(seconds))
