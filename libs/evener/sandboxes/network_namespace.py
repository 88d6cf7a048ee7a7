"""Listens on the loopback of another network namespace, such as a container's, in which nothing else listens."""

import ctypes
import os
import socket
import threading
from typing import Final

from evener.sandboxes.port import LOOPBACK

_CLONE_NEWNET: Final = 0x40000000
_libc: Final = ctypes.CDLL(None, use_errno=True)


def listen_in(pid: int) -> socket.socket:
    """Return a socket that listens on the loopback of a process's network namespace. Raises OSError. Blocks.

    PermissionError: this process may not enter the namespace (it lacks CAP_SYS_ADMIN).
    """
    listening: list[socket.socket] = []
    failed: list[OSError] = []

    def listen() -> None:
        try:
            namespace = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if _libc.setns(namespace, _CLONE_NEWNET):
                    number = ctypes.get_errno()
                    raise OSError(number, os.strerror(number))
            finally:
                os.close(namespace)
            listening.append(socket.create_server((LOOPBACK, 0), backlog=128))
        except OSError as cause:
            failed.append(cause)

    thread = threading.Thread(target=listen, name="namespace")  # its own: a thread that entered a namespace is not used again
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return listening[0]
