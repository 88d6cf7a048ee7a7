"""A client that sends its body only when it is told to (`expect: 100-continue`), over a socket of its own."""

import asyncio
from collections.abc import Mapping
from typing import Final

from yarl import URL

GO_ON: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
SECONDS: Final = 60.0


async def post_when_told(url: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[bool, bytes]:
    """Post to a path; return whether the body was asked for, and the response, its head included."""
    address = URL(url)
    given = {"host": "localhost", "connection": "close", "expect": "100-continue", "content-length": str(len(body)), **headers}
    async with asyncio.timeout(SECONDS):
        reader, writer = await asyncio.open_connection(address.host, address.port)
        try:
            lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items())]
            writer.write("\r\n".join([*lines, "", ""]).encode())
            first = await reader.readuntil(b"\r\n\r\n")
            if told := first == GO_ON:
                writer.write(body)
                first = b""
            return told, first + await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()
