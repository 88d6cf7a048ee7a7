"""Starts programs without blocking the event loop.

A fork copies the page tables of the whole process, which takes 100 ms and more at 1 GB, and the event loop itself forks on its own thread.
Therefore one other thread starts all programs, by `vfork` where Python can.
"""

import asyncio
import os
import subprocess
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Final

from evener.runtime.threads import Threads

SPAWNING: Final = Threads("spawn", 1)


class Child:
    """A program that `spawn` started."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._descriptor = os.pidfd_open(process.pid)
        self._loop.add_reader(self._descriptor, self._reap)  # readable when it is dead

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self._ended.done()

    async def wait(self) -> int:
        """Return the exit code, -N for signal N."""
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        """Send SIGKILL unless the program has ended."""
        self._process.kill()

    def _reap(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._ended.set_result(self._process.wait())


async def spawn(
    argv: Sequence[str], *, folder: Path, environment: Mapping[str, str], stdin: FileIO, output: FileIO, passed: Sequence[int] = ()
) -> Child:
    """Start a program in a session of its own, with stdout and stderr to `output`. Raises OSError, ValueError.

    `passed`: further descriptors that it has, under their numbers.
    """
    begun: list[subprocess.Popen[bytes]] = []

    def begin() -> None:
        begun.append(
            subprocess.Popen(
                argv, cwd=folder, env=environment, stdin=stdin, stdout=output, stderr=output, start_new_session=True, pass_fds=passed
            )
        )

    try:
        await SPAWNING.run(begin)
    except asyncio.CancelledError:
        for process in begun:
            process.kill()
            process.wait()
        raise
    return Child(begun[0])
