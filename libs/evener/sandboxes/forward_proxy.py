"""The way out of a sandbox whose task declares a network: a proxy on the sandbox's loopback, for the hosts that the task may reach.

Programs find it by the usual variables. Names are resolved here, and an address that is not public is refused, so that no name leads into
the network of this machine. A program that does not use the proxy reaches nothing.
"""

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

import structlog

from evener.proto.sandbox import Network, NetworkMode
from evener.runtime.tasks import Tasks

PROXY_HEAD_BYTES: Final = 64 << 10
HEAD_SECONDS: Final = 30.0
PROXY_CONNECT_SECONDS: Final = 15.0
MAX_CONNECTIONS: Final = 128
"""The connections of one sandbox at a time. Further ones wait."""
PROXY_BLOCK_BYTES: Final = 1 << 16
WEB_PORT: Final = 80
HOP: Final = (b"proxy-connection:", b"proxy-authorization:", b"connection:", b"keep-alive:")
"""Headers that are not passed on."""
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
log = structlog.get_logger()


class Refused(Exception):
    """The host may not be reached; the text says why."""


def variables(url: str) -> dict[str, str]:
    """Return the variables by which programs find a proxy."""
    names = ("http_proxy", "https_proxy", "all_proxy")
    proxies = {name: url for low in names for name in (low, low.upper())}
    return proxies | dict.fromkeys(("no_proxy", "NO_PROXY"), "localhost,127.0.0.1,::1") | {"NODE_USE_ENV_PROXY": "1"}


def allows(network: Network, host: str) -> bool:
    """Return whether a policy lets a host name or address through, wherever it leads."""
    if network.mode is not NetworkMode.ALLOWLIST:
        return network.mode is NetworkMode.PUBLIC
    host = host.rstrip(".").lower()
    address = _address(host)
    return any(_matches(entry.lower(), host, address) for entry in network.hosts)


def reachable(address: Address, private: Sequence[str]) -> bool:
    """Return whether an address is public, or in one of the private ranges that may be reached."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    is_private = any(address in ipaddress.ip_network(each) for each in private)
    return is_private or (address.is_global and not address.is_multicast)


class ForwardProxy:
    """The proxy of one sandbox, for CONNECT and for plain HTTP."""

    def __init__(self, network: Network, private: Sequence[str] = ()) -> None:
        """`private`: ranges of addresses that are not public and may be reached nonetheless."""
        self._network = network
        self._private = private
        self._room = asyncio.Semaphore(MAX_CONNECTIONS)
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def serve(self, listening: socket.socket) -> str:
        """Serve until closed; return the proxy's URL."""
        host, port = listening.getsockname()
        self._server = await asyncio.start_server(self._begin, sock=listening, limit=PROXY_HEAD_BYTES)
        return f"http://{host}:{port}"

    async def aclose(self) -> None:
        """End all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._served(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _served(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with self._room:
                await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, ValueError):
            pass  # the client has left, or sent nonsense
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(HEAD_SECONDS):
            head = await reader.readuntil(b"\r\n\r\n")
        method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
        try:
            there, first = await self._connected(method, target, head)
        except Refused as reason:
            log.info("host_refused", target=target[:200], reason=str(reason))
            said = f"{reason}\n".encode()
            writer.write(b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(said), said))
            await writer.drain()
            return
        except OSError as cause:
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            log.info("host_not_reached", target=target[:200], error=str(cause))
            return
        (from_there, to_there) = there
        try:
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            to_there.write(first)
            async with Tasks() as tasks:
                tasks.create_task(_pass_on(reader, to_there))
                tasks.create_task(_pass_on(from_there, writer))
        finally:
            to_there.close()

    async def _connected(self, method: str, target: str, head: bytes) -> tuple[tuple[asyncio.StreamReader, asyncio.StreamWriter], bytes]:
        """Return a connection to the target, and what is sent to it first. Raises Refused, OSError."""
        if method == "CONNECT":
            parts, first = urlsplit(f"//{target}"), b""
        else:
            parts = urlsplit(target)
            line, headers = head.split(b"\r\n", 1)
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            kept = [each for each in headers.split(b"\r\n") if each and not each.lower().startswith(HOP)]
            version = line.rsplit(b" ", 1)[1]
            first = b"\r\n".join([f"{method} {path} ".encode("latin-1") + version, *kept, b"Connection: close", b"", b""])
        host, port = parts.hostname, parts.port or WEB_PORT
        if host is None or (method != "CONNECT" and parts.scheme != "http"):
            msg = f"{target[:200]} is not asked of a proxy"
            raise Refused(msg)
        address = await self._resolved(host, port)
        async with asyncio.timeout(PROXY_CONNECT_SECONDS):
            return await asyncio.open_connection(str(address), port, limit=PROXY_BLOCK_BYTES), first

    async def _resolved(self, host: str, port: int) -> Address:
        if not allows(self._network, host):
            msg = f"{host} is not among the hosts that this task may reach"
            raise Refused(msg)
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        addresses = [ipaddress.ip_address(each[4][0]) for each in found]
        if not (public := [each for each in addresses if reachable(each, self._private)]):
            msg = f"{host} is not a public address"
            raise Refused(msg)
        return public[0]


def _address(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _matches(entry: str, host: str, address: Address | None) -> bool:
    if address is None:
        return host == entry or (entry.startswith("*.") and host.endswith(entry[1:]))
    try:
        return address in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(PROXY_BLOCK_BYTES):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        if writer.can_write_eof():
            writer.write_eof()
