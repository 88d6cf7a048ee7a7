"""The program of a child process of `evener.runtime.children`: `python -m evener.runtime.child CHILD_BYTES`.

Jobs come by stdin, each with the name of a function, a limit in seconds, and what the function is given; what it returns goes to stdout.
The process ends when stdin ends, so that it does not outlive its parent. The kernel ends it when a job uses more CPU than it has seconds,
also if the parent was killed before it could.
"""

import importlib
import os
import resource
import struct
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

PIECE_COUNT: Final = struct.Struct("<I")
PIECE_SIZE: Final = struct.Struct("<Q")
IDLE_BYTES: Final = 256 << 20
"""A process that once had more memory than this takes no further job: Python hardly gives memory back."""

JOB_DONE: Final = b"answered"
JOB_DONE_LAST: Final = b"answered, and ended"
JOB_RAISED: Final = b"raised"


class Source(Protocol):
    """What bytes are read from."""

    def read(self, size: int, /) -> bytes:
        """Return so many bytes, fewer at its end."""


def main() -> None:
    """Serve until stdin ends."""
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    jobs, answers = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what a function prints is no answer
    state = JOB_DONE
    while state == JOB_DONE and (job := read(jobs)):
        state, answer = done(*job)
        for piece in framed([state, answer]):
            answers.write(piece)
        answers.flush()


def done(name: bytes, seconds: bytes, *given: bytes) -> tuple[bytes, bytes]:
    """Do a job; return how it ended, and what the function returned or the traceback of its error."""
    try:
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(used.ru_utime + used.ru_stime + float(seconds)) + 2
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        answer = function_named(name.decode())(*given)
    except BaseException:  # noqa: BLE001 - it is raised by the parent, whatever it is
        return JOB_RAISED, traceback.format_exc().encode(errors="backslashreplace")
    return (JOB_DONE_LAST if _peak_bytes() > IDLE_BYTES else JOB_DONE), answer


def _peak_bytes() -> int:
    """Return the most memory that this process has had. `ru_maxrss` would count that of the process that started it, too."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) << 10


def function_named(name: str) -> Callable[..., bytes]:
    """Return the function that is called `MODULE:NAME`."""
    module, _, attribute = name.partition(":")
    function: Callable[..., bytes] = getattr(importlib.import_module(module), attribute)
    return function


def framed(pieces: Sequence[bytes]) -> Iterator[bytes]:
    """Yield what is written so that `read` returns these pieces."""
    yield PIECE_COUNT.pack(len(pieces)) + b"".join([PIECE_SIZE.pack(len(piece)) for piece in pieces])
    yield from pieces


def read(file: Source) -> list[bytes]:
    """Return the next pieces. Empty: there are no more."""
    head = file.read(PIECE_COUNT.size)
    if len(head) < PIECE_COUNT.size:
        return []
    sizes = [size for (size,) in PIECE_SIZE.iter_unpack(file.read(PIECE_COUNT.unpack(head)[0] * PIECE_SIZE.size))]
    return [file.read(size) for size in sizes]


if __name__ == "__main__":
    main()
