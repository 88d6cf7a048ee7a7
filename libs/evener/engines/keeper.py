"""Runs a program in its own process group, and ends the whole group on request, when the program ends, or when the parent dies.

`python keeper.py PARENT_PID PROGRAM ARGUMENT...`. It is a process of its own because an engine's workers outlive a killed engine, and a
parent killed by SIGKILL cannot end anything: the kernel notifies this process.
"""

import ctypes
import os
import signal
import subprocess
import sys
from contextlib import suppress

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GROUP_STOP_SECONDS = 15.0
"""The time within which the process group must end by itself. Then it is killed."""


def main() -> int:
    """Return the program's exit code, 128 + N if signal N ended it."""
    parent, *argv = sys.argv[1:]
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group: the parent stops this one
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it died before that took effect
        return 1
    try:
        process = subprocess.Popen(argv, process_group=0, preexec_fn=_die_with_parent)  # noqa: PLW1509 (one thread)
    except OSError as cause:
        sys.stderr.write(f"{argv[0]}: {cause.strerror}\n")
        return 127
    try:
        code = process.wait()
        return code if code >= 0 else 128 - code
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _end(process)


def _die_with_parent() -> None:
    """Let the program die with this keeper. Its workers are then its own responsibility."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the group, by force if it does not react."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GROUP_STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


if __name__ == "__main__":
    sys.exit(main())
