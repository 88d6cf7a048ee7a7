"""Heartbeats of a recording whose Evener is away or refuses them."""

import asyncio
from collections.abc import Iterator

import pytest

from evener.cli.record_session import keep_in_use
from evener.client.client import Client


async def test_each_problem_is_told_once_and_a_refused_token_ends_the_heartbeats(capsys: pytest.CaptureFixture[str]) -> None:
    """Every five seconds the same line hid what the user looked for, and a token does not mend itself."""
    statuses: Iterator[int] = iter([500, 500, 500, 401])

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {next(statuses)} No\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with Client(f"http://127.0.0.1:{port}", "token") as client, asyncio.timeout(60):
            await keep_in_use(client, "s.0", beat_seconds=0)

    assert next(statuses, None) is None
    away, ended = capsys.readouterr().err.splitlines()
    assert "500" in away
    assert "refuses the token" in ended
