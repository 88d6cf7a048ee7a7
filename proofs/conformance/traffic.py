"""Whom a CLI's processes talk to: every address that the kernel is asked to connect or to send to, as strace sees it."""

import asyncio
import re
import shutil
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Final

STRACE: Final = "strace"
OPTIONS: Final = ("-f", "-qq", "--seccomp-bpf", "-s", "0", "-e", "trace=connect,sendto,sendmsg,sendmmsg", "-e", "signal=none")
ADDRESS: Final = re.compile(r'sin6?_port=htons\((?P<port>\d+)\)[^"]*(?:inet_pton\(AF_INET6, )?"(?P<address>[0-9a-fA-F:.]+)"')
DNS_PORT: Final = 53
RESOLVER: Final = "systemd/resolve"
"""A part of the path of the socket by which names can be looked up, too."""


class NotCheckedError(Exception):
    """What was to be watched was not: the cell has failed."""


def possible() -> None:
    """Raise NotCheckedError where this machine cannot watch a process."""
    if shutil.which(STRACE) is None:
        msg = f"not checked: {STRACE} is missing (Debian, Ubuntu: apt install {STRACE})"
        raise NotCheckedError(msg)


def watched(argv: Sequence[str], sandbox: str) -> tuple[str, ...]:
    """Return the program that runs this one and writes down its traffic, and that of all it starts, beside the sandbox's folder."""
    return (STRACE, *OPTIONS, "-o", f"{sandbox}.{STRACE}", "--", *argv)


async def beyond_loopback(sandboxes: Path, task_id: str) -> list[str]:
    """Return what is wrong with the traffic of a task whose processes are gone. Raises NotCheckedError."""
    return wrong_with(await asyncio.to_thread(_traces, sandboxes, task_id))


def wrong_with(trace: str) -> list[str]:
    """Return whom the processes of a trace talk to beyond loopback. Raises NotCheckedError if not even the calls to the relay show."""
    places = {(ip_address(found["address"]), int(found["port"])) for found in ADDRESS.finditer(trace)}
    near = {(address, port) for address, port in places if _is_loopback(address) and port != DNS_PORT}
    if not near:
        msg = f"not checked: {STRACE} shows not even the calls to the relay"
        raise NotCheckedError(msg)
    looked_up = ["it looks names up by a socket of systemd's"] if RESOLVER in trace else []
    return [*(f"it talks to {address} port {port}" for address, port in sorted(places - near, key=str)), *looked_up]


def _traces(sandboxes: Path, task_id: str) -> str:
    return "".join(path.read_text(errors="replace") for path in sandboxes.glob(f"{task_id}*.{STRACE}"))


def _is_loopback(address: IPv4Address | IPv6Address) -> bool:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback
