"""HTTP as no client should speak it, to the relay (whose peer is the agent) and to the control endpoints."""

import asyncio
import json
import re
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, suppress
from functools import partial
from typing import Any, Final

from proofs.hostile.dialect import CHAT
from proofs.hostile.input import Input, Kind, Unexpected
from proofs.hostile.running import Session, Site

from evener.proto.reasons import TerminationReason
from evener.runtime.open_files import allow_open_files

MIB: Final = 1 << 20
CONNECTIONS: Final = 500
MANY_CONNECTIONS: Final = 1200
IDLE_READERS: Final = 300
PAUSE_SECONDS: Final = 0.2
CANARY_SECONDS: Final = 60.0
QUIET_SECONDS: Final = 4.0
"""A server that says nothing for so long waits for more: the suite leaves."""
BODY: Final = json.dumps(CHAT.text("hi")).encode()
SERVER_ERROR: Final = re.compile(rb"HTTP/1\.[01] 5\d\d ")
Piece = bytes | float
"""What is sent, or a pause in seconds. @HEAD@ stands for the request's first lines, with the right key."""


def request(headers: str = "", body: bytes = BODY, *, length: int | str | None = None) -> bytes:
    """Return a request; `length`: what it says instead of its body's. Empty: nothing."""
    said = len(body) if length is None else length
    counted = f"content-length: {said}\r\n" if said != "" else ""
    return b"@HEAD@" + f"{headers}{counted}\r\n".encode() + body


async def exchange(address: tuple[str, int], pieces: Sequence[Piece], *, close: bool = True) -> tuple[bytes, bool]:
    """Send pieces; return all that comes back until the server closes or is quiet, and whether it closed."""
    reader, writer = await asyncio.open_connection(*address)
    said, closed = b"", False
    try:
        with suppress(ConnectionError):
            for piece in pieces:
                if isinstance(piece, bytes):
                    writer.write(piece)
                    await asyncio.wait_for(writer.drain(), QUIET_SECONDS)
                else:
                    await asyncio.sleep(piece)
            if close:
                with suppress(OSError):  # the server has closed
                    writer.write_eof()
        while data := await asyncio.wait_for(reader.read(1 << 16), QUIET_SECONDS):
            said += data
        closed = True
    except ConnectionError:
        closed = True
    except TimeoutError:
        pass  # it reads no more of this, or waits for more: fair
    finally:
        writer.close()
    return said, closed


async def send(address: tuple[str, int], pieces: Sequence[Piece], *, close: bool = True) -> bytes:
    """Send pieces and return all that comes back until the server closes, or is quiet."""
    return (await exchange(address, pieces, close=close))[0]


def check(said: bytes) -> None:
    """Raise Unexpected for a fault of ours. Silence and a closed connection are answers enough to no HTTP."""
    if SERVER_ERROR.search(said):
        msg = f"a fault of ours: {said[:300]!r}"
        raise Unexpected(msg)


async def stay(address: tuple[str, int], pieces: Sequence[Piece]) -> bytes:
    """Send pieces and keep the connection; return what comes back until the server closes. Raises Unexpected if nothing comes at all."""
    said, closed = await exchange(address, pieces, close=False)
    if not said and not closed:
        msg = f"it says nothing, and keeps the connection for {QUIET_SECONDS:g} s"
        raise Unexpected(msg)
    return said


def head(session: Session, path: str = CHAT.path) -> bytes:
    """Return the first lines of a model call."""
    return f"POST {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {session.key}\r\n".encode()


def wire(name: str, pieces: Sequence[Piece], **given: Any) -> tuple[Input, Input]:
    """Return two inputs: to a relay, whose session goes on afterwards, and to the control endpoints."""

    def filled(first: bytes) -> list[Piece]:
        return [piece.replace(b"@HEAD@", first) if isinstance(piece, bytes) else piece for piece in pieces]

    async def to_relay(site: Site) -> None:
        async with site.session() as session:
            check(await send(session.address, filled(head(session))))
            CHAT.check(await session.post(CHAT.path, BODY), refused=False)

    async def to_control(site: Site) -> None:
        first = f"POST /tasks HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {site.token}\r\n".encode()
        check(await send(_address(site), filled(first)))

    return (
        Input(kind=Kind.HTTP, name=f"relay: {name}", act=to_relay, **given),
        Input(kind=Kind.HTTP, name=f"control: {name}", act=to_control, **given),
    )


def broken(name: str, pieces: Sequence[Piece]) -> tuple[Input, Input]:
    """Return two inputs whose client stays: a body that begins well, and goes on with what no server can read."""
    begun = request("transfer-encoding: chunked\r\n", b"5\r\nhello\r\n", length="")

    async def to_relay(site: Site) -> None:
        async with site.session() as session:
            check(await stay(session.address, [begun.replace(b"@HEAD@", head(session)), PAUSE_SECONDS, *pieces]))
            CHAT.check(await session.post(CHAT.path, BODY), refused=False)

    async def to_control(site: Site) -> None:
        first = f"POST /tasks HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {site.token}\r\n".encode()
        check(await stay(_address(site), [begun.replace(b"@HEAD@", first), PAUSE_SECONDS, *pieces]))

    return _made(f"relay: a body that goes on with {name}", to_relay), _made(f"control: a body that goes on with {name}", to_control)


def _address(site: Site) -> tuple[str, int]:
    host, _, port = site.up.url.removeprefix("http://").rpartition(":")
    return host, int(port)


async def idle_connections(site: Site, address: Callable[[Site, Session], tuple[str, int]]) -> None:
    """Hold many connections that say nothing, while an ordinary call is served."""
    async with site.session() as session:
        opened = [await asyncio.open_connection(*address(site, session)) for _ in range(CONNECTIONS)]
        try:
            CHAT.check(await session.post(CHAT.path, BODY), refused=False)
        finally:
            for _, writer in opened:
                writer.close()


async def no_bodies(site: Site) -> None:
    """Announce ten large bodies that do not come, while another session is served."""
    async with site.session() as idle, site.session() as other, AsyncExitStack() as stack:
        for _ in range(10):
            _, writer = await asyncio.open_connection(*idle.address)
            stack.callback(writer.close)
            writer.write(request(body=b"", length=32 * MIB - 200).replace(b"@HEAD@", head(idle)))
        await asyncio.sleep(PAUSE_SECONDS)
        for _ in range(3):
            async with asyncio.timeout(QUIET_SECONDS * site.patience):
                CHAT.check(await other.post(CHAT.path, BODY), refused=False)


async def many_connections(site: Site) -> None:
    """Open more connections to one relay than a process may often have open, while another session is served, and an ordinary one runs."""
    allow_open_files()
    async with site.session() as idle, site.session() as other, AsyncExitStack() as stack:
        for _ in range(MANY_CONNECTIONS):
            _, writer = await asyncio.open_connection(*idle.address)
            stack.callback(writer.close)
        CHAT.check(await other.post(CHAT.path, BODY), refused=False)
        await site.canary(CANARY_SECONDS)


async def readers(site: Site) -> None:
    """Follow the groups with many readers that never read, while calls are served and a group ends."""
    asked = f"GET /groups/follow HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {site.token}\r\n\r\n".encode()
    with ExitStack() as stack:
        for _ in range(IDLE_READERS):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
            connection.settimeout(0)
            await asyncio.get_running_loop().sock_connect(connection, _address(site))
            await asyncio.get_running_loop().sock_sendall(connection, asked)
        async with site.session() as session:
            for _ in range(5):
                CHAT.check(await session.post(CHAT.path, BODY), refused=False)


async def slow_bodies(site: Site) -> None:
    """Send twenty bodies a byte a time, while an ordinary call is served."""
    async with site.session() as session:
        drops: list[Piece] = [request(body=b"", length=len(BODY)).replace(b"@HEAD@", head(session))]
        for byte in BODY[:20]:
            drops += [bytes((byte,)), 0.1]
        slow = [asyncio.create_task(send(session.address, drops)) for _ in range(20)]
        CHAT.check(await session.post(CHAT.path, BODY), refused=False)
        for said in await asyncio.gather(*slow):
            check(said)


async def reset(site: Site) -> None:
    """Reset the connection in the middle of a body, twenty times."""
    async with site.session() as session:
        for _ in range(20):
            with socket.create_connection(session.address) as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.sendall(request(length=len(BODY) + 10).replace(b"@HEAD@", head(session)))
        CHAT.check(await session.post(CHAT.path, BODY), refused=False)


async def keys(site: Site) -> None:
    """Try keys that open nothing here, in every place where a key may stand."""
    async with site.session() as other:
        pass
    async with site.session() as session:
        plain = {"authorization": ""}
        wrong: list[tuple[str, dict[str, str]]] = [
            (CHAT.path, {"authorization": f"Bearer {other.key}"}),
            (CHAT.path, {"authorization": "Bearer"}),
            (CHAT.path, {"authorization": f"Basic {session.key}"}),
            (CHAT.path, {"authorization": "Bearer \u00fc"}),
            (CHAT.path, {**plain, "x-api-key": site.token}),
            (CHAT.path, {**plain, "x-goog-api-key": "x" * 7000}),
            (f"/s/{other.key}{CHAT.path}", plain),
            (f"/s/{'x' * 7000}{CHAT.path}", plain),
            (f"{CHAT.path}?key={session.key}", plain),
        ]
        for path, headers in wrong:
            CHAT.check(await session.post(path, BODY, headers), refused=True)
        CHAT.check(await session.post(CHAT.path, BODY), refused=False)


async def forged(site: Site) -> None:
    """Forge the headers that only a relay may send: they are passed over."""
    async with site.session() as other, site.session() as session:
        ours = {
            "x-evener-capability": "forged.forged",
            "x-evener-request-id": "r" + "0" * 26,
            "x-evener-started": "1",
            "x-evener-owner": "http://127.0.0.1:9",
        }
        for _ in range(2):
            CHAT.check(await session.post(CHAT.path, BODY, ours), refused=False)
        for name, value in (("x-evener-capability", "forged.forged"), ("x-evener-capability", ""), ("x-evener-capability", "." * 5000)):
            straight = {name: value, "x-evener-request-id": "r" + "0" * 26}
            answered = await site.control("POST", f"/serve{CHAT.path}", BODY, straight)
            if answered.status != 401:
                msg = f"a forged capability: {answered.status} {answered.body[:200]!r}"
                raise Unexpected(msg)
        CHAT.check(await other.post(CHAT.path, BODY), refused=False)


async def unserved(site: Site, path: str, headers: str) -> None:
    """Fail for a request that Evener does not serve, after a call that was sampled: that is not the agent's failure."""
    async with site.session(exit_code=1) as session:
        CHAT.check(await session.post(CHAT.path, BODY), refused=False)
        check(await send(session.address, [request(headers).replace(b"@HEAD@", head(session, path))]))
    built = (await site.client.session(session.session_id)).trajectory
    if built is None or built.termination_reason is not TerminationReason.REFUSED:
        msg = f"its session ended as {built and built.termination_reason}"
        raise Unexpected(msg)


async def ended_key(site: Site) -> None:
    """Use a key after its session has ended."""
    async with site.session() as session:
        address = session.address
    with suppress(ConnectionError):
        check(await send(address, [request().replace(b"@HEAD@", head(session))]))


def _made(name: str, act: Callable[[Site], Awaitable[None]], **given: Any) -> Input:
    return Input(kind=Kind.HTTP, name=name, act=act, **given)


DRIPS: Final[Sequence[Piece]] = (b"x" * 1000, 0.02) * 50
PIECES: Final[tuple[tuple[str, Sequence[Piece]], ...]] = (
    ("a body that is shorter than it says", [request(length=len(BODY) + 10)]),
    ("a body that is longer than it says", [request(length=len(BODY) - 10)]),
    ("a negative length", [request(length=-1)]),
    ("a length of 5000 digits", [request(length="9" * 5000)]),
    ("a length in another script", [request(length="\u0661\u0660")]),
    ("two lengths", [request("content-length: 5\r\n")]),
    ("a length and chunks", [request("transfer-encoding: chunked\r\n")]),
    ("chunks of rubbish", [request("transfer-encoding: chunked\r\n", b"zz\r\nhi\r\n", length="")]),
    ("a chunk of 2^64 bytes", [request("transfer-encoding: chunked\r\n", b"FFFFFFFFFFFFFFFF\r\nhi", length="")]),
    ("chunks of one byte", [request("transfer-encoding: chunked\r\n", b"1\r\n{\r\n" * 20_000 + b"0\r\n\r\n", length="")]),
    ("100 requests at once on one connection", [request() * 100]),
    ("10,000 headers", [request("".join(f"x-{n}: {n}\r\n" for n in range(10_000)))]),
    ("a header of 1 MB", [request(f"x: {'x' * MIB}\r\n")]),
    ("400 headers of 60 KB", (b"@HEAD@", *(f"x: {'y' * 60_000}\r\n".encode(),) * 400, b"\r\n")),
    ("a header that never ends", (b"@HEAD@x: ", *DRIPS)),
    ("headers of control characters", [request("x: a\x01\x00b\r\ncontent-type: x/\x01\r\n")]),
    ("headers that are no UTF-8", [b"@HEAD@x: \xff\xfe\r\ncontent-length: 0\r\n\r\n"]),
    ("a header without a name", [request(": x\r\n")]),
    ("a folded header", [request("x: a\r\n b\r\n")]),
    ("a line of 1 MB as address", [b"POST /" + b"a" * MIB + b" HTTP/1.1\r\nhost: x\r\n\r\n"]),
    ("an address of control characters", [b"POST /v1/\x01\xff HTTP/1.1\r\nhost: x\r\n\r\n"]),
    ("an address above the root", [b"GET /../../../etc/passwd HTTP/1.1\r\nhost: x\r\n\r\n"]),
    ("an absolute address elsewhere", [b"GET http://127.0.0.1:9/ HTTP/1.1\r\nhost: x\r\n\r\n"]),
    ("CONNECT", [b"CONNECT 127.0.0.1:9 HTTP/1.1\r\nhost: x\r\n\r\n"]),
    ("a method of its own", [b"BREW /tasks HTTP/1.1\r\nhost: x\r\n\r\n"]),
    ("no host", [b"GET / HTTP/1.1\r\n\r\n"]),
    ("HTTP/0.9", [b"GET /\r\n"]),
    ("HTTP/9.9", [b"GET / HTTP/9.9\r\nhost: x\r\n\r\n"]),
    ("the preface of HTTP/2", [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(100)]),
    ("TLS", [bytes.fromhex("16030100a5010000a10303") + bytes(200)]),
    ("a megabyte of zeros", [bytes(MIB)]),
    ("nothing", [0.2]),
    ("a websocket", [b"GET /v1/responses HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"]),
    ("Expect: 100-continue, and no body", [request("expect: 100-continue\r\n", b"", length=10), 0.5]),
    ("Expect of rubbish", [request("expect: the worst\r\n")]),
    ("40 MB", [request(body=b'{"x": "' + b"a" * (40 * MIB) + b'"}')]),
)
BROKEN: Final[tuple[tuple[str, Sequence[Piece]], ...]] = (
    ("rubbish", [b"zz\r\n"]),
    ("more than its chunk", [b"5\r\nhelloXX\r\n"]),
    ("a chunk of 20 digits", [b"f" * 20 + b"\r\n"]),
    ("600 trailers", [b"0\r\n" + b"".join(b"t%d: x\r\n" % number for number in range(600)) + b"\r\n"]),
    ("a bad trailer", [b"0\r\nno trailer\r\n\r\n"]),
    ("a trailer of 70 KB", [b"0\r\nt: " + b"x" * 70_000 + b"\r\n\r\n"]),
    ("30 MB of trailers", [b"0\r\n", *[b"t: " + b"x" * 60_000 + b"\r\n"] * 500]),
)
UNSERVED: Final[tuple[tuple[str, str, str], ...]] = (
    ("a header of 70 KB", CHAT.path, f"x: {'x' * 70_000}\r\n"),
    ("an address of 70 KB", f"{CHAT.path}?x={'x' * 70_000}", ""),
    ("five headers of 60 KB", CHAT.path, "".join(f"x-{n}: {'x' * 60_000}\r\n" for n in range(5))),
    ("600 headers", CHAT.path, "".join(f"x-{n}: {n}\r\n" for n in range(600))),
    ("a header without a name", CHAT.path, ": x\r\n"),
    ("a run of a thread", "/v1/threads/x/runs", ""),
    ("a file", "/v1/files", ""),
    ("a cache", "/v1beta/cachedContents", ""),
)
WIRE: Final = (
    *(made for name, pieces in PIECES for made in wire(name, pieces)),
    *(made for name, pieces in BROKEN for made in broken(name, pieces)),
    *(_made(f"relay: after a sampled call {name}", partial(unserved, path=path, headers=said)) for name, path, said in UNSERVED),
    _made("relay: 500 idle connections", partial(idle_connections, address=lambda _, session: session.address)),
    _made("control: 500 idle connections", partial(idle_connections, address=lambda site, _: _address(site))),
    _made("relay: 1,200 connections of one session", many_connections),
    _made("relay: ten large bodies that do not come", no_bodies),
    _made("control: 300 readers of groups that never read", readers),
    _made("relay: twenty bodies, a byte a time", slow_bodies),
    _made("relay: connections reset in the middle of a body", reset),
    _made("relay: keys that open nothing", keys),
    _made("relay: forged headers of the relay", forged),
    _made("relay: the key of a session that has ended", ended_key),
)
