"""Holds the network namespace of a `bubblewrap` sandbox: `python holder.py`, with a Unix socket of the runner as stdin.

A user who is not root makes a user namespace around it, in which programs of this user may enter the network. For each byte in the socket,
a socket that listens on the namespace's loopback is sent back. The holder ends, and with it the namespace, when the runner closes the
socket or dies. It is a program of its own because a process with threads cannot enter a user namespace.
"""

import array
import ctypes
import fcntl
import os
import socket
import struct

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS = 0x8914
IFF_UP_RUNNING = 0x1 | 0x40


def main() -> None:
    """Make the namespace, say so, and serve."""
    uid, gid = os.geteuid(), os.getegid()
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET | (CLONE_NEWUSER if uid else 0)):
        raise SystemExit(os.strerror(ctypes.get_errno()))
    if uid:
        for name, content in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - without pathlib this program starts in half the time
                file.write(content)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh", b"lo", IFF_UP_RUNNING))
    with socket.socket(fileno=0) as runner:
        runner.sendall(b"r")
        while runner.recv(1):
            with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
                passed = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listening.fileno()]))
                runner.sendmsg([b"l"], [passed])


if __name__ == "__main__":
    main()
