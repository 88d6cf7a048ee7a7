"""An HTTP server on loopback that answers what a test says, and remembers what it was asked."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web


class Answering:
    """`answers` are given in turn, the last one again and again: a status and a body."""

    def __init__(self, *answers: tuple[int, Any]) -> None:
        self._answers = list(answers)
        self.asked: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        """Answer a request."""
        self.asked.append(await request.json())
        self.headers.append(dict(request.headers))
        self.paths.append(request.path)
        status, body = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(body, str):
            return web.Response(status=status, text=body)
        return web.json_response(body, status=status)


@asynccontextmanager
async def answering(*answers: tuple[int, Any]) -> AsyncIterator[Answering]:
    """Serve until the block ends."""
    server = Answering(*answers)
    app = web.Application()
    app.router.add_post("/{path:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()
