"""Works in namespaces of another process, such as a container's."""

import ctypes
import os
import threading
from collections.abc import Callable
from enum import IntEnum
from typing import Final, TypeVar

CLONE_FS: Final = 0x200
_libc: Final = ctypes.CDLL(None, use_errno=True)
ResultT = TypeVar("ResultT")


class Namespace(IntEnum):
    """A kind of namespace, by its bit for `setns`."""

    MNT = 0x00020000
    NET = 0x40000000


def inside(pid: int, kind: Namespace, work: Callable[[], ResultT]) -> ResultT:
    """Return what `work` returns in a namespace of a process. Raises what it raises, and OSError. Blocks.

    PermissionError: this process may not enter the namespace (it lacks CAP_SYS_ADMIN). In a mount namespace, paths are those of its root.
    """
    returned: list[ResultT] = []
    failed: list[Exception] = []

    def enter() -> None:
        try:
            namespace = os.open(f"/proc/{pid}/ns/{kind.name.lower()}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if kind is Namespace.MNT:  # a thread that shares its root and working directory may not enter another one
                    checked(_libc.unshare(CLONE_FS))
                checked(_libc.setns(namespace, kind))
            finally:
                os.close(namespace)
            returned.append(work())
        except Exception as cause:  # noqa: BLE001 - it is raised again where it was asked for
            failed.append(cause)

    thread = threading.Thread(target=enter, name="namespace")  # its own: a thread that entered a namespace is not used again
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return returned[0]


def checked(code: int) -> None:
    """Raise OSError if a function of libc failed."""
    if code:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
