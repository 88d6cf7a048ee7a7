"""The processes of `local` sandboxes. Each program runs under a keeper (`keeper.py`), which adopts and kills everything that it starts.

A marker in the environment finds processes without a keeper: those whose keeper was killed, by the program or together with the runner. A
process that clears its environment and loses its keeper is not found: `local` is for trusted tasks.
"""

import asyncio
import contextlib
import errno
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import Final

from evener.sandboxes.memory_kills import check_memory, memory_kills
from evener.sandboxes.output_log import BoundedLog
from evener.sandboxes.port import ProgramMissing, SandboxError, Unstartable
from evener.sandboxes.spawn import Child, spawn

MARKER: Final = "EVENER_SANDBOX"
"""The environment variable of every process in a `local` sandbox. Its value is the sandbox's folder."""
KEEPER: Final = Path(__file__).with_name("keeper.py")
OUTPUT_SECONDS: Final = 2.0
"""How long a program's output is read after its end: a survivor may keep the pipe open."""
SWEEP_SECONDS: Final = 10.0
"""How long marked processes are searched and killed. A process that forks during a search is found in the next round."""
BATCH: Final = 200
"""The number of processes that are held open at a time while they are killed."""

Sweep = Callable[[], Awaitable[object]]
"""Kills every process that has a sandbox's marker."""


class LocalProcess:
    """A program of a `local` sandbox under its keeper, started by `start`."""

    def __init__(
        self, keeper: Child, control: FileIO, reading: asyncio.Task[None], log: BoundedLog, sweep: Sweep, *, keeper_seconds: float
    ) -> None:
        self._keeper = keeper
        self._control = control
        self._reading = reading
        self._log = log
        self._sweep = sweep
        self._keeper_seconds = keeper_seconds
        self._kills = memory_kills()
        self._is_asked_to_end = False

    @property
    def ended(self) -> bool:
        """Whether `wait` or `end` has seen its end."""
        return self._control.closed

    async def wait(self) -> int:
        code = await self._keeper.wait()
        self._control.close()
        await self._sweep()
        await asyncio.wait([self._reading], timeout=OUTPUT_SECONDS)
        self._reading.cancel()
        if not self._is_asked_to_end:
            check_memory(code, self._kills)
        return code

    async def end(self, grace_seconds: float = 2.0) -> int:
        self._is_asked_to_end = True
        self._ask(b"t")
        if not await self._ended(grace_seconds):
            self._ask(b"k")
            if not await self._ended(self._keeper_seconds):
                self._keeper.kill()
        return await self.wait()

    def log(self) -> bytes:
        return self._log.read()

    def _ask(self, what: bytes) -> None:
        if not self._control.closed:
            with contextlib.suppress(OSError):  # the keeper has just ended
                self._control.write(what)

    async def _ended(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._keeper.wait()
        except TimeoutError:
            return False
        return True


async def start(
    argv: Sequence[str], *, environment: Mapping[str, str], folder: Path, marker: str, log_bytes: int, sweep: Sweep, keeper_seconds: float
) -> LocalProcess:
    """Start a program in `folder` with exactly this environment and the marker. `sweep` kills whatever else has the marker.

    `keeper_seconds`: a keeper that was told to kill its program and has not ended after this time is killed itself.
    """
    program = folder / argv[0] if "/" in argv[0] else argv[0]
    if shutil.which(program, path=environment.get("PATH")) is None:
        msg = f"{argv[0]} is not executable" if isinstance(program, Path) and program.is_file() else f"there is no program {argv[0]}"
        raise ProgramMissing(msg)
    with ExitStack() as ours, ExitStack() as theirs:
        control, asking = pipe(theirs, ours)
        output, printing = pipe(ours, theirs)
        with starting(argv, folder):
            keeper = await spawn(
                [sys.executable, "-I", "-S", str(KEEPER), *argv],
                folder=folder,
                environment={**environment, MARKER: marker},
                stdin=control,
                output=printing,
            )
        ours.pop_all()
    log = BoundedLog(log_bytes)
    return LocalProcess(keeper, asking, asyncio.create_task(read_output(output, log)), log, sweep, keeper_seconds=keeper_seconds)


@contextmanager
def starting(argv: Sequence[str], folder: Path) -> Iterator[None]:
    """Raise what the system says against a program's start as Unstartable, if another attempt would meet it again, or as SandboxError."""
    try:
        yield
    except ValueError as cause:  # a NUL in them
        msg = f"cannot start {argv[0]!r}: {cause}"
        raise Unstartable(msg) from cause
    except OSError as cause:
        if cause.errno == errno.E2BIG:  # an argument of 128 KB, or all of them together
            msg = f"cannot start {argv[0]!r}: its arguments and variables are longer than the system takes ({_longest(argv)})"
            raise Unstartable(msg) from cause
        msg = f"cannot start {argv[0]} in {folder}: {cause}"
        raise SandboxError(msg) from cause


def _longest(argv: Sequence[str]) -> str:
    number, longest = max(enumerate(argv), key=lambda one: len(one[1]))
    return f"the longest is argument {number} with {len(longest)} characters; give a long instruction in a file"


def pipe(reader: ExitStack, writer: ExitStack) -> tuple[FileIO, FileIO]:
    """Return the ends of a pipe, each closed by its stack."""
    receiving, sending = os.pipe()
    return reader.enter_context(FileIO(receiving, "rb")), writer.enter_context(FileIO(sending, "wb"))


async def read_output(output: FileIO, log: BoundedLog) -> None:
    """Keep a program's output, until every process that may print has ended."""
    stream = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), output)
    try:
        while data := await stream.read(1 << 16):
            log.add(data)
    finally:
        transport.close()


def kill_marked(ours: Callable[[str], bool]) -> int:
    """Kill every process whose marker `ours` accepts, until none is left or it takes too long. Return their number. Blocks."""
    killed: set[int] = set()
    end = time.monotonic() + SWEEP_SECONDS
    while time.monotonic() < end:
        found = list(islice((marked for pid in _pids() if (marked := _marked(pid, ours)) is not None), BATCH))
        if not found:
            break
        for number in (signal.SIGSTOP, signal.SIGKILL):  # a stopped process makes no further one, nor room for it
            for _, descriptor in found:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(descriptor, number)
        for pid, descriptor in found:
            killed.add(pid)
            _wait_gone(descriptor)
    return len(killed)


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 - a hundred times cheaper than Paths


def _marked(pid: int, ours: Callable[[str], bool]) -> tuple[int, int] | None:
    """Return (pid, open pidfd) if the marker is ours. It is read with the pidfd open, so that the pid cannot be reused meanwhile."""
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
    """Wait until the process behind a pidfd is dead (the descriptor is then readable), and close the descriptor."""
    with contextlib.closing(select.epoll()) as poll:
        poll.register(descriptor, select.EPOLLIN)
        poll.poll(seconds)
    os.close(descriptor)
