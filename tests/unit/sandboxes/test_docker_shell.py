"""What the daemon sends of a shell that becomes a program: the order of its two streams is not that of the program."""

import asyncio

from evener.sandboxes.docker_api import Attached
from evener.sandboxes.docker_shell import STDOUT, WaitingShell
from evener.sandboxes.output_log import BoundedLog

STDERR = 2


def frame(stream: int, data: bytes) -> bytes:
    """Return a piece of output as the daemon sends it."""
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


async def test_what_a_program_complains_of_is_kept_if_it_arrives_before_the_marks_of_its_shell() -> None:
    """A program that ends at once had no stderr in one run of many."""

    async def daemon(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.write(frame(STDERR, b"complained\n") + frame(STDOUT, b".b") + frame(STDOUT, b"said\n"))
        writer.close()

    async with await asyncio.start_server(daemon, "127.0.0.1", 0) as server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        shell, printed = WaitingShell("e", "root", Attached(reader, writer)), BoundedLog(100)
        assert await shell.become(["sh"], {}, printed)
        await shell.read()
    assert sorted(printed.read().splitlines()) == [b"complained", b"said"]
