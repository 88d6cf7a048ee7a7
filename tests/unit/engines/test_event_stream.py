"""What goes to an engine and comes back as bytes, however they come."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import numpy as np
import pytest
from aiohttp import web

from evener.engines.answers import whole
from evener.engines.connection import EngineHttp
from evener.engines.port import EngineError, GenerateRequest
from evener.engines.vllm import VllmEngine, ids_json
from evener.proto.spec import Sampling

REQUEST = GenerateRequest(request_id="r", ids=np.asarray([1], np.int32), sampling=Sampling(), max_tokens=9)


async def nothing() -> bytes:
    """Return the body of a request that says nothing."""
    return b"{}"


@asynccontextmanager
async def streaming(parts: list[bytes]) -> AsyncIterator[str]:
    """A server that answers with an event stream, a part of it at a time."""

    async def serve(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for part in parts:
            await response.write(part)
            await asyncio.sleep(0.001)
        return response

    application = web.Application()
    application.router.add_post("/{path:.*}", serve)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def read(parts: list[bytes]) -> list[list[bytes]]:
    async with streaming(parts) as url:
        http = EngineHttp(url)
        try:
            async with aclosing(http.events("/", nothing)) as batches:
                return [data async for data in batches]
        finally:
            await http.aclose()


def event(*tokens: int, finish: str | None = None, end: int = 3) -> bytes:
    """Return an event; the last one tells the version of tokens up to `end`."""
    content = [{"token_id": token, "logprob": -token / 2, "top_logprobs": []} for token in tokens]
    spans = [{"version": "step-3", "start": 0, "end": end}] if finish else None
    choice = {"index": 0, "token_ids": tokens, "logprobs": {"content": content}, "finish_reason": finish, "weight_versions": spans}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


@pytest.mark.parametrize("ends", [b"\n", b"\r\n"])
async def test_events_are_the_same_wherever_the_stream_is_split(ends: bytes) -> None:
    """At every byte, the last line without its end included."""
    whole = ends.join([b": a comment", b"data: one", b"", "data: zwö".encode(), b"", b"data: [DONE]"])
    for at in range(1, len(whole)):
        found = [data for batch in await read([whole[:at], whole[at:]]) for data in batch]
        assert found == [b"one", "zwö".encode(), b"[DONE]"]


async def test_events_that_come_together_are_read_together() -> None:
    first, second = await read([b"data: 1\n\ndata: 2\n\n", b"data: 3\n\n"])
    assert (first, second) == ([b"1", b"2"], [b"3"])


async def test_a_line_that_is_no_event_is_named() -> None:
    with pytest.raises(EngineError, match="rubbish"):
        await read([b"data: 1\n\nrubbish\n\n"])


@pytest.mark.parametrize("ids", [[], [0], [9, 10, 151_643, 7], [999_999, 1], [1_000_000, 2], list(range(1025))])
def test_ids_are_a_json_list(ids: list[int]) -> None:
    assert json.loads(bytes(ids_json(np.asarray(ids, np.int32)))) == ids


@pytest.mark.parametrize("together", [True, False])
async def test_tokens_are_the_same_in_one_read_or_in_many(together: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """Ids, logprobs and the versions that come with the end."""
    events = [event(1), event(2), event(3, finish="stop"), b"data: [DONE]\n\n"]
    async with streaming([b"".join(events)] if together else events) as url:
        engine = VllmEngine(url)
        async with aclosing(engine.generate(REQUEST)) as chunks:
            got = [chunk async for chunk in chunks]
        await engine.aclose()
    assert [token for chunk in got for token in chunk.ids] == [1, 2, 3]
    assert [logprob for chunk in got for logprob in chunk.logprobs] == [-0.5, -1.0, -1.5]
    assert got[-1].answer_versions is not None
    assert got[-1].answer_versions.tolist() == [3, 3, 3]


@pytest.mark.parametrize("end", [0, 2, 4, 10**15])
async def test_versions_that_are_not_of_every_token_are_unknown(end: int) -> None:
    """Nobody knows which tokens they belong to, and a token never takes another's version."""
    async with streaming([event(1), event(2), event(3, finish="stop", end=end), b"data: [DONE]\n\n"]) as url:
        engine = VllmEngine(url)
        async with aclosing(engine.generate(REQUEST)) as chunks:
            answer = await whole(chunks)
        await engine.aclose()
    assert (answer.ids.tolist(), answer.versions.tolist()) == ([1, 2, 3], [-1, -1, -1])
