"""The check of an engine at start refuses what could not be trained on, and says what it is."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import numpy as np
import pytest
from aiohttp import web
from tests.support.engines import Play
from tokenizers import Tokenizer, pre_tokenizers

from evener.engines.answers import whole
from evener.engines.check import OTHER_TEMPERATURE, TOKENIZER_TEXTS, _after_temperature, check_engine
from evener.engines.embedded import default_weights
from evener.engines.llama import LlamaEngine
from evener.engines.port import Chunk, Engine, EngineRefused, GenerateRequest
from evener.engines.scripted import Rule, Script, ScriptedServer
from evener.engines.vllm import VllmEngine
from evener.templates import gguf
from evener.templates.config import PolicyConfig
from evener.templates.jinja import ChatTemplate
from evener.templates.port import Renderer
from evener.templates.renderer import JinjaRenderer
from evener.templates.special import SplitEncoder

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="session")
def wrong_renderer() -> Renderer:
    """The embedded model's renderer without the rule that digits stand alone: what a well-known GGUF loader makes of it."""
    source = gguf.load(default_weights())
    wrong = Tokenizer.from_str(source.tokenizer.to_str())
    wrong.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    planted = msgspec.structs.replace(source, tokenizer=wrong)
    assert source.template
    template = ChatTemplate(source.template, source.constants)
    return JinjaRenderer(
        planted,
        template,
        SplitEncoder(planted.tokenizer, source.template),
        PolicyConfig(name="planted", source="gguf:"),
        template_name="own",
    )


@asynccontextmanager
async def passing_through(upstream: str, change: Change) -> AsyncIterator[str]:
    """A server that passes everything on, and changes request bodies on the way."""
    async with aiohttp.ClientSession() as session:

        async def pass_on(request: web.Request) -> web.Response:
            body = await request.json() if request.can_read_body else None
            if body is not None:
                change(body)
            async with session.request(request.method, f"{upstream}{request.path}", json=body) as response:
                return web.Response(body=await response.read(), status=response.status, content_type=response.content_type)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", pass_on)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


async def refusal(engine: Engine, renderer: Renderer) -> str:
    """Return the words in which an engine is refused."""
    try:
        with pytest.raises(EngineRefused) as refused:
            await check_engine(engine, renderer)
        return str(refused.value)
    finally:
        await engine.aclose()


def at_temperature(temperature: float) -> Change:
    """A change to the temperature, wherever it stands in a body of vLLM or llama.cpp."""

    def change(body: dict[str, Any]) -> None:
        params = body.get("sampling_params", body)
        if "temperature" in params:
            params["temperature"] *= temperature

    return change


def with_filters(**filters: float) -> Change:
    def change(body: dict[str, Any]) -> None:
        if "n_predict" in body:
            body |= filters

    return change


@pytest.fixture
async def scripted(play: Play) -> ScriptedServer:
    """One that says what no distribution would: the check is not fooled by a script, nor counted by it."""
    return await play(Script(default=Rule(say="Hello.")))


async def test_an_honest_engine_passes_and_the_check_is_no_call(scripted: ScriptedServer, smollm_renderer: Renderer) -> None:
    """Its logprobs are the raw ones; the ledger and the script do not see the check."""
    engine = VllmEngine(scripted.url)
    rule = await check_engine(engine, smollm_renderer)
    await engine.aclose()
    assert (rule.any_temperature, rule.filters) == (False, False)
    assert scripted.ledger == []


async def test_another_pre_tokenizer_is_refused_and_the_text_named(scripted: ScriptedServer, wrong_renderer: Renderer) -> None:
    """The ids would be fed to the engine as if they were its own."""
    said = await refusal(VllmEngine(scripted.url), wrong_renderer)
    assert "tokenizers differ on '  12   345" in said
    assert "the engine has [" in said


@pytest.mark.parametrize(
    "change",
    [
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}},
        {"normalizer": {"type": "NFC"}},
        {"added_tokens": []},
    ],
    ids=["digits not alone", "no words", "space in front", "normalised", "special tokens unknown"],
)
def test_awkward_texts_tell_tokenizers_apart(smollm_tokenizer: Tokenizer, change: dict[str, Any]) -> None:
    """The faults that loaders really make."""
    other = Tokenizer.from_str(json.dumps(json.loads(smollm_tokenizer.to_str()) | change))
    pairs = [[tokenizer.encode(text, add_special_tokens=False).ids for tokenizer in (smollm_tokenizer, other)] for text in TOKENIZER_TEXTS]
    assert any(one != another for one, another in pairs)


@pytest.mark.parametrize(("temperature", "how"), [(0.5, "more sharply"), (2.0, "more evenly")])
async def test_another_temperature_is_refused(scripted: ScriptedServer, smollm_renderer: Renderer, temperature: float, how: str) -> None:
    """What is sampled does not follow what is reported."""
    async with passing_through(scripted.url, at_temperature(temperature)) as url:
        assert f"samples {how} than it reports" in await refusal(VllmEngine(url), smollm_renderer)


class Shifted(VllmEngine):
    """Reports each logprob beside the next id."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        answer = await whole(super().generate(request))
        yield msgspec.structs.replace(answer, logprobs=np.roll(answer.logprobs, 1))


class Silent(VllmEngine):
    """Reports no logprobs."""

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        answer = await whole(super().generate(request))
        yield msgspec.structs.replace(answer, logprobs=np.full_like(answer.logprobs, np.nan))


async def test_logprobs_beside_other_ids_are_refused(scripted: ScriptedServer, smollm_renderer: Renderer) -> None:
    assert "the distribution at its position says" in await refusal(Shifted(scripted.url), smollm_renderer)


async def test_missing_logprobs_are_refused(scripted: ScriptedServer, smollm_renderer: Renderer) -> None:
    assert "has the logprob nan" in await refusal(Silent(scripted.url), smollm_renderer)


def test_logprobs_after_temperature_are_told_from_raw_ones() -> None:
    """Only what is one or the other says for which calls the logprobs hold."""
    raw = {token: -1.0 - token for token in range(8)}
    cooled = {token: logprob / OTHER_TEMPERATURE - 0.7 for token, logprob in raw.items()}
    assert _after_temperature(raw, dict(raw)) is False
    assert _after_temperature(raw, cooled) is True
    with pytest.raises(EngineRefused, match="neither the raw ones nor those after temperature"):
        _after_temperature(raw, {token: logprob / 5 for token, logprob in raw.items()})
    with pytest.raises(EngineRefused, match="other ids"):
        _after_temperature(raw, {100: -1.0})


@pytest.mark.engine
async def test_the_embedded_engine_with_another_pre_tokenizer_is_refused(embedded_engine_url: str, wrong_renderer: Renderer) -> None:
    """The fault that transformers' GGUF loader makes with this very model."""
    assert "tokenizers differ on '  12   345" in await refusal(LlamaEngine(embedded_engine_url), wrong_renderer)


@pytest.mark.engine
@pytest.mark.parametrize(
    ("planted", "how"),
    [
        (at_temperature(0.5), "more sharply"),
        (at_temperature(2.0), "more evenly"),
        (with_filters(top_k=40, top_p=0.95, min_p=0.05), "more sharply"),
    ],
    ids=["colder", "hotter", "llama.cpp's defaults"],
)
async def test_an_embedded_engine_that_samples_otherwise_is_refused(
    embedded_engine_url: str, smollm_renderer: Renderer, planted: Change, how: str
) -> None:
    """Real draws of a real model."""
    async with passing_through(embedded_engine_url, planted) as url:
        assert f"samples {how} than it reports" in await refusal(LlamaEngine(url), smollm_renderer)
