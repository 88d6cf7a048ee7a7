"""Streams and many calls at once: who leaves, who reads slowly, who asks the same thing two hundred times."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from io import BytesIO
from typing import Any, Final

from proofs.hostile.dialect import CHAT, DIALECTS, GOOGLE, Dialect
from proofs.hostile.input import Input, Kind, Unexpected
from proofs.hostile.running import SLOWLY, Session, Site
from proofs.hostile.wire import BODY, check, head, request

from evener.proto.spec import Sampling, Streaming

SLOW: Final = Sampling(max_tokens=100)
EQUAL_CALLS: Final = 200
STREAM_PATH: Final = "/v1beta/models/policy:streamGenerateContent?alt=sse"


def streamed(dialect: Dialect) -> tuple[str, bytes]:
    """Return path and body of a request for a slow stream."""
    asked = dialect.text(SLOWLY)
    return (
        (STREAM_PATH, json.dumps(asked).encode()) if dialect is GOOGLE else (dialect.path, json.dumps({**asked, "stream": True}).encode())
    )


async def leaves(site: Site, dialect: Dialect, streaming: Streaming) -> None:
    """Leave after the first bytes of an answer, then ask something else."""
    async with site.session(streaming=streaming, sampling=SLOW) as session:
        path, body = streamed(dialect)
        given = {"authorization": f"Bearer {session.key}"}
        async with session.http.post(session.url + path, data=BytesIO(body), headers=given) as answer:
            await answer.content.read(10)
        dialect.check(await session.post(dialect.path, dialect.text("And now?")), refused=False)


async def half_closes(site: Site, streaming: Streaming) -> None:
    """Say that nothing more will be sent, and read on."""
    async with site.session(streaming=streaming, sampling=SLOW) as session:
        reader, writer = await asyncio.open_connection(*session.address)
        writer.write(request(body=streamed(CHAT)[1]).replace(b"@HEAD@", head(session)))
        writer.write_eof()
        said = await reader.read()
        writer.close()
        check(said)
        CHAT.check(await session.post(CHAT.path, BODY), refused=False)


async def reads_slowly(site: Site, streaming: Streaming) -> None:
    """Read a few bytes of a stream a second, from a socket that has room for few, while another call is served."""
    async with site.session(streaming=streaming, sampling=SLOW) as session:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(session.address)
        with connection:
            connection.sendall(request(body=streamed(CHAT)[1]).replace(b"@HEAD@", head(session)))
            for _ in range(3):
                await asyncio.sleep(1)
                connection.recv(10)
            CHAT.check(await session.post(CHAT.path, BODY), refused=False)


async def equal_calls(site: Site) -> None:
    """Send the same request two hundred times at once: each is an answer of its own."""
    async with site.session() as session:
        answers = await asyncio.gather(*(session.post(CHAT.path, BODY) for _ in range(EQUAL_CALLS)))
    for answered in answers:
        CHAT.check(answered, refused=False)
    if len({json.loads(answered.body)["id"] for answered in answers}) != EQUAL_CALLS:
        msg = "two calls got the same answer"
        raise Unexpected(msg)


async def comes_and_goes(site: Site) -> None:
    """Open a hundred streams and leave each at once."""
    async with site.session(streaming=Streaming.LIVE, sampling=SLOW) as session:
        await asyncio.gather(*(_glance(session) for _ in range(100)))
        CHAT.check(await session.post(CHAT.path, BODY), refused=False)


async def _glance(session: Session) -> None:
    reader, writer = await asyncio.open_connection(*session.address)
    writer.write(request(body=streamed(CHAT)[1]).replace(b"@HEAD@", head(session)))
    await writer.drain()
    await asyncio.wait([asyncio.ensure_future(reader.read(10))], timeout=0.1)
    writer.transport.abort()


async def exits_with_open_calls(site: Site) -> None:
    """Exit while calls are under way."""
    async with site.session(sampling=SLOW) as session:
        asking = [asyncio.create_task(session.post(CHAT.path, CHAT.text(SLOWLY))) for _ in range(8)]
        await asyncio.sleep(0.3)
    for each in asking:
        each.cancel()
    await asyncio.gather(*asking, return_exceptions=True)


def _made(name: str, act: Callable[[Site], Awaitable[None]], **given: Any) -> Input:
    return Input(kind=Kind.STREAMS, name=name, act=act, **given)


STREAMS: Final = (
    *(
        _made(f"{dialect.name}, {streaming}: leaves in the middle of an answer", partial(leaves, dialect=dialect, streaming=streaming))
        for dialect in DIALECTS
        for streaming in Streaming
    ),
    *(_made(f"{streaming}: half-closes", partial(half_closes, streaming=streaming)) for streaming in Streaming),
    *(_made(f"{streaming}: reads a few bytes a second", partial(reads_slowly, streaming=streaming)) for streaming in Streaming),
    _made("200 equal calls at once", equal_calls),
    _made("a hundred streams that are left at once", comes_and_goes),
    _made("exits with eight calls open", exits_with_open_calls),
)
