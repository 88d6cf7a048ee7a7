"""Work for child processes, which import this module by its name."""

import os
import re
import sys
from pathlib import Path

HELD = re.compile(rb"(a*)*b")


def turned(given: bytes) -> bytes:
    """Return it from its end to its beginning."""
    return given[::-1]


def told_pid() -> bytes:
    """Return the id of the process, after some words that are no answer."""
    sys.stdout.write("no answer\n")
    return str(os.getpid()).encode()


def held_lock(file: bytes) -> bytes:
    """Write the id of the process to a file, and hold the interpreter's lock for centuries."""
    path = Path(os.fsdecode(file))
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)
    return HELD.sub(b"", b"a" * 60)


def filled_memory(size: bytes) -> bytes:
    """Take so many bytes."""
    return bytes(int(size))[:1]


def ended() -> bytes:
    """End the process."""
    os._exit(3)


def unanswered() -> bytes:
    """Raise an error."""
    msg = "a parser met \udcff"
    raise ValueError(msg)
