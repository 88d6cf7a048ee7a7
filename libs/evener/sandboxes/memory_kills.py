"""Tells a program that the kernel killed, because memory had ended, from one that was killed by a signal of its agent's."""

import signal
from pathlib import Path
from typing import Final

from evener.sandboxes.port import SandboxLost

VMSTAT: Final = Path("/proc/vmstat")
COUNTER: Final = "oom_kill "


def memory_kills() -> int:
    """Return how many processes the kernel of this machine has killed for memory. 0: it does not count them."""
    try:
        lines = VMSTAT.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.removeprefix(COUNTER)) for line in lines if line.startswith(COUNTER)), 0)


def check_memory(code: int, kills_before: int) -> None:
    """Raise SandboxLost for a program that ended by SIGKILL on a machine that has killed for memory since it was started.

    Whose process that was is not told: to run a session again is better than to grade what the agent did not do.
    """
    if code == -signal.SIGKILL and memory_kills() > kills_before:
        msg = "its program was killed while the machine ended processes for memory"
        raise SandboxLost(msg)
