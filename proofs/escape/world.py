"""What attempts are made at: services, files and processes of this machine, and what an attempt's program knows of them."""

import asyncio
import secrets
import shutil
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final, cast

from aiohttp import web
from msgspec import Struct
from proofs.escape import far
from proofs.runner_packages import copy_runner

PRELUDE: Final = """
import ctypes, os, socket, subprocess, sys, urllib.request
TMP = os.environ["TMPDIR"]
def escaped(did=True):
    print("ESCAPED" if did else "no")
def write(path, text, mode=0o644):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path + "~", "w") as file:
        file.write(text)
    os.chmod(path + "~", mode)
    os.replace(path + "~", path)
def connect(host, port):
    socket.create_connection((host, int(port)), timeout=5).close()
def datagram(host, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(3); s.sendto(b"x", (host, int(port))); s.recv(9)
def through_proxy(url):
    for name in ("no_proxy", "NO_PROXY"):
        os.environ.pop(name, None)
    return urllib.request.build_opener(urllib.request.ProxyHandler({"http": os.environ["http_proxy"]})).open(url, timeout=10).read()
def proxy_connect(host, port):
    place = os.environ["http_proxy"].rpartition("//")[2].strip("/").split(":")
    with socket.create_connection((place[0], int(place[1])), timeout=5) as s:
        s.sendall(f"CONNECT {host}:{port} HTTP/1.1\\r\\nHost: {host}\\r\\n\\r\\n".encode()); return s.recv(64)
def call(name, *args):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*args) < 0:
        raise OSError(ctypes.get_errno(), name)
"""


class World(Struct, frozen=True, kw_only=True):
    """What there is to be reached."""

    folder: Path
    """A folder of this machine with the file `secret`, and the folder `bundle`, which sandboxes can read: a test runner, a set-uid `id`."""
    docker: str
    """The socket of the Docker daemon."""
    facts: dict[str, str]
    """What programs are told, by name."""

    def program(self, code: str, **more: str) -> str:
        """Return the Python program of an attempt."""
        told = "".join(f"{name} = {value!r}\n" for name, value in (self.facts | more).items())
        return f"{PRELUDE}{told}{code}\n"


class _Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        cast("asyncio.DatagramTransport", self._transport).sendto(data, addr)


@asynccontextmanager
async def open_world(folder: Path, docker_host: str) -> AsyncIterator[World]:
    """Serve on all addresses of this machine, run a process, leave a file in `folder`, which must be there."""
    await asyncio.to_thread(_files, folder)
    docker = docker_host.removeprefix("unix://")
    async with AsyncExitStack() as stack:
        port = await _serve(stack)
        udp, _ = await asyncio.get_running_loop().create_datagram_endpoint(_Echo, local_addr=("0.0.0.0", 0))  # noqa: S104
        stack.callback(udp.close)
        abstract = f"evener-{secrets.token_hex(4)}"
        if far.is_own():
            await _serve_far(stack)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(f"\0{abstract}")
            listening.listen()
            victim = await asyncio.create_subprocess_exec("sleep", "3600", env={"SECRET": "1"})
            try:
                yield World(
                    folder=folder,
                    docker=docker,
                    facts={
                        "HOST_PORT": str(port),
                        "HOST_ADDRESS": _address(),
                        "UDP_PORT": str(udp.get_extra_info("sockname")[1]),
                        "ABSTRACT": abstract,
                        "HOST_PID": str(victim.pid),
                        "SECRET": str(folder / "secret"),
                        "DOCKER_SOCKET": docker,
                        "INTERNET": far.INTERNET,
                        "METADATA": far.METADATA,
                    },
                )
            finally:
                victim.kill()
                await victim.wait()


async def _serve_far(stack: AsyncExitStack) -> None:
    """Serve as the internet and as a cloud's metadata."""
    for port in (53, 80, 443):
        await _serve(stack, port)
    resolver, _ = await asyncio.get_running_loop().create_datagram_endpoint(_Echo, local_addr=(far.INTERNET, 53))
    stack.callback(resolver.close)


async def _serve(stack: AsyncExitStack, port: int = 0) -> int:
    application = web.Application()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="reached")

    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    await web.TCPSite(runner, "0.0.0.0", port).start()  # noqa: S104 - all addresses are to be tried
    return int(runner.addresses[0][1])


def _files(folder: Path) -> None:
    for place in (folder, folder / "bundle"):
        place.mkdir(exist_ok=True)
        place.chmod(0o777)
    (folder / "secret").write_text("secret")
    copy_runner(folder / "bundle" / "site")
    shutil.copy("/usr/bin/id", folder / "bundle" / "id")
    (folder / "bundle" / "id").chmod(0o4755)


def _address() -> str:
    """Return this machine's own address, as far as it has one besides loopback. Nothing is sent."""
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect(("192.0.2.1", 9))
        return str(asking.getsockname()[0])
    return "127.0.0.1"
