"""Makes the root of a running container read-only, except for some folders.

It is done by the container's mounts, from outside. The daemon's own setting would take no files from the runner and list no changes, and
writable folders would have to be volumes, which no quota of the container's limits.
"""

import ctypes
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from evener.sandboxes.namespaces import Namespace, checked, inside

MS_RDONLY: Final = 0x1
MS_REMOUNT: Final = 0x20
MS_BIND: Final = 0x1000
MS_REC: Final = 0x4000
_libc: Final = ctypes.CDLL(None, use_errno=True)


def make_root_read_only(pid: int, writable: Iterable[str]) -> None:
    """Make the root of a process's mount namespace read-only, except for the folders `writable` that are there. Raises OSError. Blocks.

    PermissionError: this process may not enter the namespace (it lacks CAP_SYS_ADMIN).
    """

    def mount() -> None:
        for place in writable:
            path = str(Path(place).resolve())
            if Path(path).is_dir():
                checked(_libc.mount(path.encode(), path.encode(), None, MS_BIND | MS_REC, None))  # what is mounted below it stays seen
        checked(_libc.mount(None, b"/", None, MS_REMOUNT | MS_BIND | MS_RDONLY, None))

    inside(pid, Namespace.MNT, mount)
