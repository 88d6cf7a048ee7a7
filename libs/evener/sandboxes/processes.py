"""Processes of `local` sandboxes: started with a parent-death signal, found by a variable in their environment, and killed.

A process that leaves its group is still found; one that also overwrites its own environment is not: `local` is for trusted tasks.
"""

import asyncio
import contextlib
import os
import select
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from evener.sandboxes.port import ProgramMissing, SandboxError

MARKER: Final = "EVENER_SANDBOX"
"""Environment variable of everything that runs in a `local` sandbox: the sandbox's folder."""
LAUNCHER: Final = Path(__file__).with_name("launch.py")
OUTPUT_SECONDS: Final = 2.0
"""After a program's end its output is read for so long: a survivor may keep the pipe open."""
SWEEPS: Final = 20
"""Rounds of finding and killing: a process that forks while it is looked for is found in the next."""


class BoundedLog:
    """The first half of a limit from the start of a stream, the other half from its end."""

    def __init__(self, limit_bytes: int) -> None:
        self._half = limit_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
        """Take more of the stream."""
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        over = len(self._tail) - self._half
        if over > 0:
            del self._tail[:over]
            self._dropped += over

    def read(self) -> bytes:
        """Return what was kept, with a line that says what was not."""
        gap = f"\n[... {self._dropped} bytes left out ...]\n".encode() if self._dropped else b""
        return bytes(self._head) + gap + bytes(self._tail)


class LocalProcess:
    """A program of a `local` sandbox, leader of a process group of its own."""

    def __init__(self, process: asyncio.subprocess.Process, marker: str, log_bytes: int) -> None:
        self._process = process
        self._marker = marker
        self._log = BoundedLog(log_bytes)
        self._reading = asyncio.create_task(self._read())

    async def wait(self) -> int:
        code = await self._process.wait()
        await self._clear()
        return code

    async def end(self, grace_seconds: float = 2.0) -> int:
        self._signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_seconds):
                await self._process.wait()
        self._signal(signal.SIGKILL)
        return await self.wait()

    def log(self) -> bytes:
        return self._log.read()

    async def _read(self) -> None:
        stream = self._process.stdout
        while stream is not None and (data := await stream.read(1 << 16)):
            self._log.add(data)

    async def _clear(self) -> None:
        await asyncio.to_thread(kill_marked, lambda folder: folder == self._marker)
        await asyncio.wait([self._reading], timeout=OUTPUT_SECONDS)
        self._reading.cancel()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


async def start(argv: Sequence[str], *, environment: Mapping[str, str], folder: Path, marker: str, log_bytes: int) -> LocalProcess:
    """Start a program in `folder` with exactly this environment and the marker. Call it from a thread that lives as long as we do."""
    if shutil.which(argv[0] if "/" not in argv[0] else folder / argv[0], path=environment.get("PATH")) is None:
        msg = f"there is no program {argv[0]}"
        raise ProgramMissing(msg)
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(LAUNCHER),
            str(os.getpid()),
            *argv,
            cwd=folder,
            env={**environment, MARKER: marker},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as cause:
        msg = f"cannot start {argv[0]} in {folder}: {cause.strerror}"
        raise SandboxError(msg) from cause
    return LocalProcess(process, marker, log_bytes)


def kill_marked(ours: Callable[[str], bool]) -> int:
    """Kill every process whose marker `ours` accepts, and wait until none is left. Return how many there were. Blocks."""
    killed: set[int] = set()
    for _ in range(SWEEPS):
        found = [marked for pid in _pids() if (marked := _marked(pid, ours)) is not None]
        if not found:
            break
        for pid, descriptor in found:
            killed.add(pid)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            _wait_gone(descriptor)
    return len(killed)


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - a hundred times cheaper than Paths


def _marked(pid: int, ours: Callable[[str], bool]) -> tuple[int, int] | None:
    """Return (pid, open pidfd) if the marker is ours: read with the pidfd open, so that the number cannot be reused meanwhile."""
    if not _accepted(pid, ours):
        return None
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        return None
    if _accepted(pid, ours):
        return pid, descriptor
    os.close(descriptor)
    return None


def _accepted(pid: int, ours: Callable[[str], bool]) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # gone, or somebody else's; a zombie's is empty
        return False
    prefix = f"{MARKER}=".encode()
    return any(ours(os.fsdecode(entry.removeprefix(prefix))) for entry in environment.split(b"\0") if entry.startswith(prefix))


def _wait_gone(descriptor: int, seconds: float = 1.0) -> None:
    """Wait until the process behind a pidfd is dead (a dead one's descriptor is readable), and close the descriptor."""
    with contextlib.closing(select.epoll()) as poll:
        poll.register(descriptor, select.EPOLLIN)
        poll.poll(seconds)
    os.close(descriptor)
