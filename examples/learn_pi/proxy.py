"""A proxy in front of vLLM that records which ids were fed and sampled: the ledger with which `evener audit` compares rows.

It knows vLLM's wire format and nothing of Evener. A line of JSON for each request: request_id, fed_ids, sampled_ids, logprobs,
versions (labels, one a token), aborted.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TextIO

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout, web

GENERATE: Final = "/inference/v1/generate"
HOP_BY_HOP: Final = frozenset({"transfer-encoding", "content-length", "content-encoding", "connection"})
BODY_BYTES: Final = 64 * 2**20


class Entry:
    """One request, as it goes by."""

    def __init__(self, body: bytes) -> None:
        asked = json.loads(body)
        self.request_id: str = asked.get("request_id", "")
        self.fed: list[int] = asked["token_ids"]
        self.sampled: list[int] = []
        self.logprobs: list[float] = []
        self.spans: list[dict[str, Any]] = []
        self.finished = False

    def read(self, answer: Any) -> None:
        """Take in an answer, or an event of a stream."""
        for choice in answer.get("choices", ()):
            self.sampled += choice["token_ids"] or ()
            self.logprobs += [each["logprob"] for each in (choice.get("logprobs") or {}).get("content") or ()]
            self.spans = choice.get("weight_versions") or self.spans
            self.finished = self.finished or choice.get("finish_reason") in {"stop", "length"}

    def line(self) -> str:
        versions = [span["version"] for span in self.spans for _ in range(span["start"], span["end"])]
        told = {"request_id": self.request_id, "fed_ids": self.fed, "sampled_ids": self.sampled, "logprobs": self.logprobs}
        return json.dumps(told | {"versions": versions, "aborted": not self.finished}) + "\n"


@asynccontextmanager
async def recording_proxy(upstream: str, ledger: Path) -> AsyncIterator[str]:
    """Pass everything on to `upstream` inside this block, and append what is sampled to `ledger`; yield the proxy's URL."""
    with ledger.open("a") as lines:
        async with ClientSession(upstream, timeout=ClientTimeout(total=None), read_bufsize=2**20) as session:

            async def pass_on(request: web.Request) -> web.StreamResponse:
                body = await request.read()
                entry = Entry(body) if request.path == GENERATE else None
                headers = {name: value for name, value in request.headers.items() if name.lower() not in {*HOP_BY_HOP, "host"}}
                try:
                    async with session.request(request.method, request.path_qs, data=body, headers=headers) as answer:
                        return await _back(request, answer, entry)
                except ClientError as broken:
                    return web.json_response({"error": {"message": f"the engine does not answer: {broken}"}}, status=502)
                finally:
                    if entry is not None and entry.sampled:
                        _write(lines, entry)

            app = web.Application(client_max_size=BODY_BYTES)
            app.router.add_route("*", "/{path:.*}", pass_on)
            runner = web.AppRunner(app, handler_cancellation=True)  # a client that disconnects stops the sampling, as without the proxy
            await runner.setup()
            try:
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                yield f"http://127.0.0.1:{runner.addresses[0][1]}"
            finally:
                await runner.cleanup()


async def _back(request: web.Request, answer: ClientResponse, entry: Entry | None) -> web.StreamResponse:
    headers = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
    if answer.content_type != "text/event-stream":
        body = await answer.read()
        if entry is not None and answer.ok:
            entry.read(json.loads(body))
        return web.Response(body=body, status=answer.status, headers=headers)
    passed = web.StreamResponse(status=answer.status, headers=headers)
    await passed.prepare(request)
    async for line in answer.content:
        if entry is not None and line.startswith(b"data: {"):
            entry.read(json.loads(line[6:]))
        await passed.write(line)
    await passed.write_eof()
    return passed


def _write(lines: TextIO, entry: Entry) -> None:
    lines.write(entry.line())
    lines.flush()


async def _serve(upstream: str, ledger: Path) -> None:
    async with recording_proxy(upstream, ledger) as url:
        print(url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    import sys

    asyncio.run(_serve(sys.argv[1], Path(sys.argv[2])))
