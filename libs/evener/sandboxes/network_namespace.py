"""Listens on the loopback of another network namespace, such as a container's, in which nothing else listens."""

import socket

from evener.sandboxes.namespaces import Namespace, inside
from evener.sandboxes.port import LOOPBACK


def listen_in(pid: int) -> socket.socket:
    """Return a socket that listens on the loopback of a process's network namespace. Raises OSError. Blocks.

    PermissionError: this process may not enter the namespace (it lacks CAP_SYS_ADMIN).
    """
    return inside(pid, Namespace.NET, lambda: socket.create_server((LOOPBACK, 0), backlog=128))
