"""An engine that is down or answers rubbish is named as such, by both adapters."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

import msgspec
import numpy as np
import pytest

from evener.engines.answers import whole
from evener.engines.llama import LlamaEngine
from evener.engines.port import Engine, EngineError, EngineUnreachable, GenerateRequest
from evener.engines.registry import open_engine
from evener.engines.vllm import NotAnEngine, VllmEngine
from evener.engines.vllm_chat import VllmChatEngine
from evener.engines.vllm_http import version_number
from evener.proto.fleet import EngineJoined
from evener.proto.spec import Sampling

OPENERS: list[Callable[[str], Engine]] = [LlamaEngine, VllmEngine]
REQUEST = GenerateRequest(request_id="r1", ids=np.asarray([1, 2], np.int32), sampling=Sampling(), max_tokens=4)
CHAT = msgspec.structs.replace(REQUEST, messages=({"role": "user", "content": "hi"},))
STREAM = "text/event-stream"


def http(body: str, kind: str = "application/json", *, status: int = 200, length: int | None = None) -> bytes:
    """An answer as bytes; `length` may lie."""
    size = len(body.encode()) if length is None else length
    return f"HTTP/1.1 {status} Whatever\r\ncontent-type: {kind}\r\ncontent-length: {size}\r\n\r\n{body}".encode()


@asynccontextmanager
async def answering(raw: bytes) -> AsyncIterator[str]:
    """A server that answers everything with these bytes and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def sample(engine: Engine, request: GenerateRequest = REQUEST) -> None:
    try:
        async with aclosing(engine.generate(request)) as chunks:
            await whole(chunks)
    finally:
        await engine.aclose()


@pytest.mark.parametrize("opened", OPENERS)
async def test_an_engine_that_is_down_is_unreachable(opened: Callable[[str], Engine]) -> None:
    """Trying again can help, and the URL is named."""
    async with answering(b"") as url:
        pass
    with pytest.raises(EngineUnreachable, match=url):
        await sample(opened(url))


@pytest.mark.parametrize("opened", OPENERS)
@pytest.mark.parametrize(
    "raw",
    [b"", http('{"half', length=900), http("busy", status=503), http("", status=502), http("EngineDeadError", status=500)],
    ids=["closes", "dies in its answer", "overloaded", "proxy without engine", "dead engine"],
)
async def test_an_engine_that_goes_away_is_unreachable(opened: Callable[[str], Engine], raw: bytes) -> None:
    async with answering(raw) as url:
        with pytest.raises(EngineUnreachable):
            await sample(opened(url))


@pytest.mark.parametrize("opened", OPENERS)
@pytest.mark.parametrize(
    ("raw", "named"),
    [
        (http("<html>It works!</html>", "text/html"), "It works!"),
        (http('{"hello": "world"}'), "hello"),
        (http("[1, 2]"), r"\[1, 2\]"),
        (http("null"), "null|None"),
        (http("no such thing", status=404), "404: no such thing"),
        (b"SSH-2.0-OpenSSH_9\r\n", "answered"),
    ],
)
async def test_rubbish_is_an_error_that_names_it(opened: Callable[[str], Engine], raw: bytes, named: str) -> None:
    """Not unreachable: the same again would not help."""
    async with answering(raw) as url:
        with pytest.raises(EngineError, match=named) as error:
            await sample(opened(url))
        assert not isinstance(error.value, EngineUnreachable)


@pytest.mark.parametrize("status", [404, 405])
async def test_an_ordinary_openai_compatible_server_is_told_which_endpoint_is_needed(status: int) -> None:
    """And what it answered: it takes text and gives no ids."""
    async with answering(http('{"detail": "Not Found"}', status=status)) as url, aclosing(VllmEngine(url)) as engine:
        with pytest.raises(NotAnEngine, match=rf"/inference/v1/generate answered {status}: .*--enable-scale-out"):
            await engine.facts()


@pytest.mark.parametrize("opened", OPENERS)
@pytest.mark.parametrize("status", [200, 404, 503])
async def test_a_web_page_is_named_by_its_beginning_on_one_line(opened: Callable[[str], Engine], status: int) -> None:
    """A wrong URL is an everyday mistake; its page is not what the user wants to read."""
    page = "<html>\n" + "  <p>Not found</p>\n" * 500
    async with answering(http(page, "text/html", status=status)) as url:
        with pytest.raises(EngineError, match="<html> <p>Not found</p>") as error:
            await sample(opened(url))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


def event(**changes: object) -> str:
    told = {"token_id": 7, "token": "token_id:7", "logprob": -1.0}
    choice = {"index": 0, "finish_reason": None, "token_ids": [7], "logprobs": {"content": [told]}}
    return f"data: {json.dumps({'prompt_token_ids': [1, 2], 'choices': [choice | changes]})}\n\n"


def error_event(code: object) -> str:
    return f"data: {json.dumps({'error': {'message': 'boom', 'type': 'InternalServerError', 'param': None, 'code': code}})}\n\n"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (event(), "without a finish reason"),
        (event() + "data: [DONE]\n\n", "without a finish reason"),
        (event() + error_event(500) + "data: [DONE]\n\n", "boom"),
        (error_event(None), "boom"),
    ],
)
@pytest.mark.parametrize("asked", [REQUEST, CHAT])
async def test_an_engine_that_dies_in_its_stream_is_unreachable(text: str, named: str, asked: GenerateRequest) -> None:
    """Another one may answer: its core died, or its answer just ends."""
    async with answering(http(text, STREAM)) as url:
        engine = VllmEngine(url) if asked.messages is None else VllmChatEngine(url)
        with pytest.raises(EngineUnreachable, match=named):
            await sample(engine, asked)


async def test_an_event_that_refuses_the_request_is_no_sign_of_a_dead_engine() -> None:
    """The same again would not help."""
    async with answering(http(error_event(400), STREAM)) as url:
        with pytest.raises(EngineError, match="boom") as error:
            await sample(VllmEngine(url))
        assert not isinstance(error.value, EngineUnreachable)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (event(token_ids=[8]), "token_ids"),
        (event(logprobs=None), "token_ids"),
        (event(finish_reason="tired"), "tired"),
        (event(finish_reason="stop", weight_versions=[{"version": "final", "start": 0, "end": 1}]), "final"),
        ("data: {]\n\n", "answered"),
        ("hello\n\n", "hello"),
    ],
)
async def test_a_stream_that_makes_no_sense_is_an_error(text: str, named: str) -> None:
    async with answering(http(text, STREAM)) as url:
        with pytest.raises(EngineError, match=named):
            await sample(VllmEngine(url))


@pytest.mark.parametrize(("label", "number"), [("default", 0), ("step-12", 12), ("7", 7), ("run3/step-40", 40)])
def test_a_version_is_the_number_at_the_end_of_its_label(label: str, number: int) -> None:
    assert version_number(label) == number


def test_an_unknown_kind_of_engine_is_named() -> None:
    with pytest.raises(EngineError, match="engine e1 is of kind 'abacus'"):
        open_engine(EngineJoined(engine_id="e1", kind="abacus", url="http://127.0.0.1:1", joined_at=0.0))
