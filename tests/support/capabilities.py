"""What this process may do, as root of a real machine or of a restricted one."""

from pathlib import Path
from typing import Final

CAP_SYS_RESOURCE: Final = 24


def has_capability(number: int) -> bool:
    """Return whether this process has a capability."""
    (effective,) = [line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff:")]
    return bool(int(effective, 16) >> number & 1)
