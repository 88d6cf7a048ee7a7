"""Keeps the program of a `local` sandbox: `python keeper.py PROGRAM ARGUMENT...`, with a pipe of the runner as stdin.

The keeper starts the program in a session of its own and adopts every process that the program leaves behind (PR_SET_CHILD_SUBREAPER): a
process that leaves its group, session, parent and environment is still a descendant of the keeper. When the program ends, the keeper kills
all of them and then ends as the program did. The byte `t` in the pipe asks the program to end; `k`, or the end of the pipe, kills it: the
kernel closes the pipe when the runner dies, however it dies. The keeper is a program of its own because code between fork and exec of a
threaded process can deadlock.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
KILL_SECONDS = 10.0
"""Descendants that are not dead after this time (stuck in the kernel, or another user's) are left to the runner."""
FREEZE_SECONDS = 1.0
"""How long descendants are stopped before they are killed. A killed process makes room for another one, a stopped one does not."""


def main(argv: list[str]) -> None:
    """Run the program, and end as it ends."""
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    me = os.getpid()
    started, starting = os.pipe()  # closed by exec
    program = os.fork()
    if program == 0:
        become(argv, prctl, me)
    os.close(starting)
    os.read(started, 1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)  # or the program's output would not end before this process
    os.dup2(nothing, 2)
    status = watch(program, woken)
    kill_descendants(program)
    end_like(status)


def become(argv: list[str], prctl: Callable[[int, int], int], parent: int) -> None:
    """Become the program. This runs in the child and never returns."""
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before that took effect
        os._exit(1)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - no shell is wanted
    except OSError as cause:
        os.write(2, f"{argv[0]}: {cause.strerror}\n".encode(errors="surrogateescape"))
    os._exit(1)


def watch(program: int, woken: int) -> int | None:
    """Wait for the program's end and obey the pipe; return its wait status. None: it was told to be killed, or does not react."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(woken, select.POLLIN)
    while True:
        ready = dict(poll.poll())
        if woken in ready:
            os.read(woken, 4096)
            if (status := reap(program)) is not None:
                return status
        if 0 in ready:
            asked = os.read(0, 1)
            if asked != b"t":
                return kill(program)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program, signal.SIGTERM)


def kill(program: int) -> int | None:
    """Kill the program and its group; return its wait status. None: it does not die."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(program, signal.SIGKILL)
    end = time.monotonic() + KILL_SECONDS
    while time.monotonic() < end:
        if (status := reap(program)) is not None:
            return status
        time.sleep(0.005)
    return None


def reap(program: int) -> int | None:
    """Reap all dead children, including adopted ones; return the program's wait status if it was among them."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return found
            if pid == program:
                found = status
    return found


def kill_descendants(program: int) -> None:
    """Kill all processes that the program left, until none is left or it takes too long. All of them descend from this process."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(program, signal.SIGKILL)  # one step for the whole group, so that no process forks away
    began = time.monotonic()
    while time.monotonic() < began + KILL_SECONDS:
        reap(0)
        found = descendants()
        if not found:
            return
        if time.monotonic() < began + FREEZE_SECONDS:
            freeze(found, began + FREEZE_SECONDS)
        for pid in descendants():
            send(pid, signal.SIGKILL)
        time.sleep(0.001)


def freeze(found: set[int], end: float) -> None:
    """Stop descendants until no new one appears."""
    stopped: set[int] = set()
    while found - stopped and time.monotonic() < end:
        for pid in found - stopped:
            send(pid, signal.SIGSTOP)
        stopped |= found
        found = descendants()


def send(pid: int, number: int) -> None:
    """Signal a descendant and its whole group at once, so that no process of the group forks away."""
    with contextlib.suppress(OSError):
        group = os.getpgid(pid)
        if group != os.getpgid(0):
            os.killpg(group, number)
            return
    with contextlib.suppress(OSError):
        os.kill(pid, number)


def descendants() -> set[int]:
    """Return the ids of all living processes below this one."""
    found: set[int] = set()
    below = children(os.getpid())
    while below:
        pid = below.pop()
        if pid not in found:
            found.add(pid)
            below += children(pid)
    return found


def children(pid: int) -> list[int]:
    """Return the ids of a process's children."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - without pathlib this program starts in half the time
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:  # noqa: PTH123
                found += map(int, file.read().split())
    return found


def end_like(status: int | None) -> None:
    """End with the program's exit code, or by its signal."""
    code = -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main(sys.argv[1:])
