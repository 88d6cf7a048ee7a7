"""What every engine does, on the scripted one, the embedded one and real vLLM."""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

import aiohttp
import numpy as np
import pytest
from tests.support.engines import Play, RunningVllm
from tests.support.waiting import until
from tokenizers import Tokenizer

from evener.engines.answers import join, whole
from evener.engines.check import check_engine
from evener.engines.llama import LlamaEngine
from evener.engines.port import Chunk, ContextOverflow, Engine, EngineError, GenerateRequest
from evener.engines.scripted import Rule, Script, ScriptedServer, Step, Wait
from evener.engines.vllm import VllmEngine
from evener.engines.vllm_chat import VllmChatEngine
from evener.proto.ids import new_call_id
from evener.proto.sessions import FinishReason
from evener.proto.spec import Sampling
from evener.templates.config import PolicyConfig
from evener.templates.jinja import ChatTemplate
from evener.templates.open import open_renderer
from evener.templates.port import Renderer

COUNTED_SECONDS = 0.2
"""A server that samples has sampled a token after this time."""
PROMPT = "<|im_start|>user\nTell me a very long story.<|im_end|>\n<|im_start|>assistant\n"
MESSAGES: tuple[dict[str, Any], ...] = ({"role": "user", "content": "Tell me a very long story."},)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
Prompt = Sequence[Any]
"""Ids, or messages."""
GREEDY = Sampling(temperature=0.0)
LONG = 1500
"""Tokens."""
SLOW = Script(default=Rule(say="word " * LONG, per_token_ms=50))
"""Takes longer for an answer than SECONDS."""
SECONDS = 60.0
"""What a test waits for anything."""


class EngineContract:
    """A subclass has the fixtures `engine`, `renderer` (with the engine's tokenizer) and `is_sampling` (seen at the server)."""

    reports_versions = True
    bundles = True
    """It sends several tokens in one event where that is wanted."""
    abort_seconds = 10.0
    """What it may take to stop, of which a tenth of a second is needed. An answer of LONG tokens that is not stopped takes longer."""

    @pytest.fixture
    def slowly(self) -> None:
        """Answers take their time, where the engine is quick."""

    @pytest.fixture
    async def prompt(self, engine: Engine) -> Prompt:
        return await engine.tokenize(PROMPT)

    def request(self, prompt: Prompt, **changes: Any) -> GenerateRequest:
        return request(prompt, **changes)

    def too_long(self, context: int) -> Prompt:
        """Return a prompt that does not fit."""
        return [5] * (context + 1)

    async def answer(self, engine: Engine, prompt: Prompt, **changes: Any) -> Chunk:
        async with aclosing(engine.generate(self.request(prompt, **changes))) as chunks:
            return await whole(chunks)

    async def test_facts_are_reported(self, engine: Engine) -> None:
        """The gateway learns the context length and the version from the engine itself."""
        facts = await engine.facts()
        assert (facts.version, facts.reports_versions) == (0, self.reports_versions)
        assert facts.context_length >= 2048

    async def test_ids_logprobs_and_versions_describe_the_same_tokens(self, engine: Engine, prompt: Prompt) -> None:
        """Three arrays of one length, each logprob finite and not above 0."""
        answer = await self.answer(engine, prompt, max_tokens=20)
        assert len(answer.ids) == len(answer.logprobs) == len(answer.versions) > 0
        assert [array.dtype.str for array in (answer.ids, answer.logprobs, answer.versions)] == ["<i4", "<f4", "<i4"]
        assert np.isfinite(answer.logprobs).all()
        assert (answer.logprobs <= 0).all()
        assert (answer.versions == (0 if self.reports_versions else -1)).all()

    async def test_an_answer_stops_at_its_length(self, engine: Engine, prompt: Prompt) -> None:
        answer = await self.answer(engine, prompt, max_tokens=5)
        assert (len(answer.ids), answer.finish_reason) == (5, FinishReason.LENGTH)

    async def test_the_sampled_stop_id_is_kept(self, engine: Engine, prompt: Prompt) -> None:
        """Any id may end a turn, not only the model's own end; nothing follows it."""
        free = (await self.answer(engine, prompt, sampling=GREEDY, max_tokens=24)).ids.tolist()
        stop = next(token for place, token in enumerate(free) if place >= 2 and token not in free[:place])
        answer = await self.answer(engine, prompt, sampling=GREEDY, max_tokens=24, stop_ids=(stop,))
        assert answer.ids.tolist() == free[: free.index(stop) + 1]
        assert answer.finish_reason is FinishReason.STOP
        assert len(answer.logprobs) == len(answer.versions) == len(answer.ids)

    @pytest.mark.usefixtures("slowly")
    async def test_closing_the_answer_stops_the_sampling(
        self, engine: Engine, prompt: Prompt, is_sampling: Callable[[], Awaitable[bool]]
    ) -> None:
        """A client that goes away costs no more tokens."""
        async with aclosing(engine.generate(self.request(prompt, max_tokens=LONG))) as chunks:
            first = await anext(chunks)
            assert len(first.ids) > 0
            assert first.finish_reason is None
        await seen(is_sampling, wanted=False, seconds=self.abort_seconds)

    @pytest.mark.usefixtures("slowly")
    async def test_cancelling_the_wait_stops_the_sampling(
        self, engine: Engine, prompt: Prompt, is_sampling: Callable[[], Awaitable[bool]]
    ) -> None:
        """The same when the reader is cancelled between two chunks."""
        reading = asyncio.create_task(self.answer(engine, prompt, max_tokens=LONG))
        await seen(is_sampling, wanted=True, seconds=SECONDS)
        reading.cancel()
        await asyncio.wait({reading})
        await seen(is_sampling, wanted=False, seconds=self.abort_seconds)

    async def test_greedy_answers_are_equal(self, engine: Engine, prompt: Prompt) -> None:
        one, other = [await self.answer(engine, prompt, sampling=GREEDY, max_tokens=20) for _ in range(2)]
        assert one.ids.tolist() == other.ids.tolist()

    async def test_a_seed_repeats_an_answer_and_another_changes_it(self, engine: Engine, prompt: Prompt) -> None:
        seeds = (7, 7, 8)
        answers = [(await self.answer(engine, prompt, sampling=Sampling(seed=seed), max_tokens=24)).ids.tolist() for seed in seeds]
        assert answers[0] == answers[1] != answers[2]

    async def test_tokens_come_together_where_that_is_wanted(self, engine: Engine, prompt: Prompt) -> None:
        """The same tokens as one by one, in fewer events; none is kept back after the end."""
        one_by_one = await self.answer(engine, prompt, sampling=Sampling(seed=7), max_tokens=20)
        asked = self.request(prompt, sampling=Sampling(seed=7), max_tokens=20, stream_interval=8)
        async with aclosing(engine.generate(asked)) as chunks:
            came = [chunk async for chunk in chunks]
        assert join(came).ids.tolist() == one_by_one.ids.tolist()
        assert not self.bundles or sum(len(chunk.ids) > 0 for chunk in came) <= 4  # 1 + 8 + 8 + 3

    async def test_it_is_well(self, engine: Engine) -> None:
        """Asked again and again while it samples: it must not sample for that."""
        await engine.health()

    async def test_a_prompt_beyond_the_context_is_named_so(self, engine: Engine) -> None:
        """The gateway answers it in the harness's dialect, with the numbers: it must be told from other refusals."""
        length = (await engine.facts()).context_length
        with pytest.raises(ContextOverflow, match=str(length)) as refused:
            await self.answer(engine, self.too_long(length))
        assert refused.value.numbers is not None
        asked, limit = refused.value.numbers
        assert asked >= limit == length

    async def test_an_unknown_id_is_refused(self, engine: Engine) -> None:
        with pytest.raises(EngineError, match="400"):
            await whole(engine.generate(request([5, 10_000_000])))

    async def test_the_most_likely_ids_are_reported(self, engine: Engine) -> None:
        """What the check at start stands on."""
        sampled, top = await engine.top_logprobs(np.asarray(await engine.tokenize(PROMPT), np.int32), GREEDY, 8)
        assert len(top) == 8
        assert sampled == max(top, key=lambda token: top[token])
        assert 0 < sum(math.exp(logprob) for logprob in top.values()) <= 1.001

    async def test_the_check_at_start_passes(self, engine: Engine, renderer: Renderer) -> None:
        """Every gateway waits for it."""
        rule = await check_engine(engine, renderer)
        assert (rule.any_temperature, rule.filters) == (False, False)


class ChatContract(EngineContract):
    """The same on the chat path: messages in, and the ids of the prompt reported."""

    reports_versions = False

    @pytest.fixture
    async def prompt(self, engine: Engine) -> Prompt:  # noqa: ARG002 (the contract's fixture)
        return MESSAGES

    def request(self, prompt: Prompt, **changes: Any) -> GenerateRequest:
        return request((), messages=tuple(prompt), **changes)

    def too_long(self, context: int) -> Prompt:
        return ({"role": "user", "content": "x " * context},)

    async def test_the_first_chunk_tells_the_ids_of_the_prompt(self, engine: Engine, prompt: Prompt) -> None:
        """Those that the answer was conditioned on: asked by ids, the same seed gives the same answer."""
        async with aclosing(engine.generate(self.request(prompt, max_tokens=12))) as chunks:
            parts = [part async for part in chunks]
        assert [part.prompt_ids is not None for part in parts] == [True, *(False for _ in parts[1:])]
        given = parts[0].prompt_ids
        assert given is not None
        assert given.tolist() == await engine.tokenize(PROMPT)
        again = await whole(engine.generate(request(given.tolist(), max_tokens=12)))
        assert again.ids.tolist() == join(parts).ids.tolist()
        assert again.logprobs.tolist() == pytest.approx(join(parts).logprobs.tolist(), abs=1e-3)

    async def test_a_history_with_tool_calls_is_taken(self, engine: Engine) -> None:
        """In the canonical form: arguments as objects, reasoning, a result; and with tools to choose from."""
        call = {"id": "c1", "name": "add", "arguments": {"a": 1}}
        history = (
            *MESSAGES,
            {"role": "assistant", "content": "", "reasoning": "Hm.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
        )
        tools = ({"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}},)
        answer = await self.answer(engine, history, tools=tools, max_tokens=3)
        assert len(answer.ids) == 3
        assert answer.prompt_ids is not None


class TestScriptedEngine(EngineContract):
    abort_seconds = SECONDS

    @pytest.fixture
    def slowly(self, server: ScriptedServer) -> None:
        server.play(SLOW)

    @pytest.fixture
    async def server(self, play: Play) -> ScriptedServer:
        return await play(Script(), tokens_per_second=2000)

    @pytest.fixture
    async def engine(self, server: ScriptedServer) -> AsyncIterator[Engine]:
        engine = VllmEngine(server.url)
        yield engine
        await engine.aclose()

    @pytest.fixture
    def renderer(self, smollm_renderer: Renderer) -> Renderer:
        return smollm_renderer

    @pytest.fixture
    def is_sampling(self, server: ScriptedServer) -> Callable[[], Awaitable[bool]]:
        async def look() -> bool:
            return server.sampling > 0

        return look


class TestScriptedEngineOnItsChatPath(ChatContract):
    abort_seconds = SECONDS

    @pytest.fixture
    def slowly(self, server: ScriptedServer) -> None:
        server.play(SLOW)

    @pytest.fixture
    async def server(self, play: Play) -> ScriptedServer:
        return await play(Script(), template=ChatTemplate(CHAT_TEMPLATE, {}), tokens_per_second=2000)

    @pytest.fixture
    async def engine(self, server: ScriptedServer) -> AsyncIterator[Engine]:
        engine = VllmChatEngine(server.url)
        yield engine
        await engine.aclose()

    @pytest.fixture
    def renderer(self, smollm_renderer: Renderer) -> Renderer:
        return smollm_renderer

    @pytest.fixture
    def is_sampling(self, server: ScriptedServer) -> Callable[[], Awaitable[bool]]:
        async def look() -> bool:
            return server.sampling > 0

        return look

    @pytest.mark.parametrize(("report", "error"), [("shifted", "answered"), ("short", "answered")])
    async def test_logprobs_of_other_ids_are_not_taken(self, server: ScriptedServer, engine: Engine, report: Any, error: str) -> None:
        """Each logprob names its id: one off, and the answer is none."""
        server.play(Script(default=Step(say="one two three", report=report)))
        with pytest.raises(EngineError, match=error):
            await self.answer(engine, MESSAGES, max_tokens=20)


@pytest.mark.engine
class TestEmbeddedEngine(EngineContract):
    bundles = False

    @pytest.fixture
    async def engine(self, embedded_engine_url: str) -> AsyncIterator[Engine]:
        engine = LlamaEngine(embedded_engine_url)
        yield engine
        await engine.aclose()

    @pytest.fixture
    def renderer(self, smollm_renderer: Renderer) -> Renderer:
        return smollm_renderer

    @pytest.fixture
    def is_sampling(self, embedded_engine_url: str) -> Callable[[], Awaitable[bool]]:
        async def look() -> bool:
            return '"is_processing":true' in await get(f"{embedded_engine_url}/slots")

        return look

    async def test_tokens_inside_a_character_have_ids_and_logprobs(self, engine: Engine, smollm_tokenizer: Tokenizer) -> None:
        """The server leaves them out of its streams and of its logprobs; an emoji is three of them."""
        prompt = await engine.tokenize("Say: 🦄🤖🦄🤖🦄🤖🦄🤖🦄🤖🦄🤖🦄🤖🦄")
        answer = await self.answer(engine, prompt, sampling=GREEDY, max_tokens=18)
        assert "🤖🦄🤖" in smollm_tokenizer.decode(answer.ids.tolist())
        assert np.isfinite(answer.logprobs).all()
        for place in (0, 2):
            _, top = await engine.top_logprobs(np.asarray([*prompt, *answer.ids[:place].tolist()], np.int32), Sampling(), 8)
            assert top[int(answer.ids[place])] == pytest.approx(float(answer.logprobs[place]), abs=0.05)

    async def test_a_repeated_prompt_is_found_in_the_cache(self, engine: Engine, prompt: Prompt) -> None:
        await self.answer(engine, prompt, max_tokens=2)
        assert (await self.answer(engine, prompt, max_tokens=2)).cached_tokens == len(prompt) - 1


async def samples(url: str) -> bool:
    """Return whether a vLLM server samples now: whether its counter of tokens rises."""
    sampled = await sampled_by(url)
    await asyncio.sleep(COUNTED_SECONDS)
    return await sampled_by(url) > sampled


@pytest.mark.vllm
@pytest.mark.slow
class TestVllmEngine(EngineContract):
    @pytest.fixture
    async def engine(self, vllm: RunningVllm) -> AsyncIterator[Engine]:
        engine = VllmEngine(vllm.url)
        yield engine
        await engine.aclose()

    @pytest.fixture
    def renderer(self, vllm: RunningVllm) -> Renderer:
        return open_renderer(PolicyConfig(name="tiny", source=f"hf:{vllm.folder}"))

    @pytest.fixture
    def is_sampling(self, vllm: RunningVllm) -> Callable[[], Awaitable[bool]]:
        return partial(samples, vllm.url)

    async def test_versions_follow_an_update_inside_an_answer(self, vllm: RunningVllm, engine: Engine, prompt: Prompt) -> None:
        await follows_an_update(vllm.url, engine, prompt)

    async def test_answer_that_a_pause_ends_continues_from_its_ids(self, vllm: RunningVllm, engine: Engine, prompt: Prompt) -> None:
        await goes_on_after_a_pause(vllm.url, engine, prompt)


@pytest.mark.vllm
@pytest.mark.slow
class TestVllmEngineOnItsChatPath(ChatContract):
    @pytest.fixture
    async def engine(self, vllm: RunningVllm) -> AsyncIterator[Engine]:
        engine = VllmChatEngine(vllm.url)
        yield engine
        await engine.aclose()

    @pytest.fixture
    def renderer(self, vllm: RunningVllm) -> Renderer:
        return open_renderer(PolicyConfig(name="tiny", source=f"hf:{vllm.folder}"))

    @pytest.fixture
    def is_sampling(self, vllm: RunningVllm) -> Callable[[], Awaitable[bool]]:
        return partial(samples, vllm.url)


class TestVersions:
    """On the scripted engine; real vLLM has the same test above."""

    async def test_versions_follow_an_update_inside_an_answer(self, play: Play) -> None:
        """Each token is counted to the weights it was sampled from, though they are reported only at the end."""
        server = await play(Script(default=Rule(say="word " * 50, wait=(Wait(before=3),))))
        engine = VllmEngine(server.url)
        try:
            await follows_an_update(server.url, engine, await engine.tokenize(PROMPT), go_on=lambda: server.go(times=None))
        finally:
            await engine.aclose()


class TestPauses:
    """On the scripted engine; real vLLM has the same test above."""

    async def test_answer_that_a_pause_ends_continues_from_its_ids(self, play: Play) -> None:
        server = await play(Script(), tokens_per_second=100)
        engine = VllmEngine(server.url)
        try:
            await goes_on_after_a_pause(server.url, engine, await engine.tokenize(PROMPT))
        finally:
            await engine.aclose()


async def seen(is_sampling: Callable[[], Awaitable[bool]], *, wanted: bool, seconds: float) -> None:
    """Wait until the server is seen sampling, or idle."""
    await until(is_sampling, lambda told: told is wanted, seconds=seconds)


async def follows_an_update(url: str, engine: Engine, prompt: Prompt, go_on: Callable[[], None] = lambda: None) -> None:
    """Publish a version while an answer is sampled."""
    async with aclosing(engine.generate(request(prompt, max_tokens=400))) as chunks:
        parts = [await anext(chunks)]
        await publish(url, "step-3")
        go_on()
        parts += [part async for part in chunks]
    await publish(url, "default")
    versions = parts[-1].answer_versions
    assert versions is not None
    assert len(versions) == sum(len(part.ids) for part in parts)
    assert versions.tolist() == sorted(versions.tolist())
    assert set(versions.tolist()) == {0, 3}


async def goes_on_after_a_pause(url: str, engine: Engine, prompt: Prompt) -> None:
    """End an answer by a pause as vLLM makes it by default. Asked to continue, the engine waits, and gives the rest of its answer."""
    async with aclosing(engine.generate(request(prompt, sampling=GREEDY, max_tokens=300))) as chunks:
        undisturbed = await whole(chunks)
    async with aclosing(engine.generate(request(prompt, sampling=GREEDY, max_tokens=300))) as chunks:
        parts = [await anext(chunks)]
        await post(url, "/pause?mode=abort")
        parts += [part async for part in chunks]
    first = join(parts)
    assert first.finish_reason is FinishReason.ABORTED
    assert 0 < len(first.ids) == len(first.logprobs) == len(first.versions) < 300
    await publish(url, "step-7")
    rest = request([*prompt, *first.ids.tolist()], sampling=GREEDY, max_tokens=300 - len(first.ids))
    async with aclosing(engine.generate(rest)) as chunks:
        going_on = asyncio.ensure_future(whole(chunks))
        done, _ = await asyncio.wait({going_on}, timeout=0.3)
        assert not done
        await post(url, "/resume")
        second = await going_on
    await publish(url, "default")
    assert [*first.ids.tolist(), *second.ids.tolist()] == undisturbed.ids.tolist()
    assert set(first.versions.tolist()) == {0}
    assert set(second.versions.tolist()) == {7}


def request(prompt: Prompt, **changes: Any) -> GenerateRequest:
    fields: dict[str, Any] = {"request_id": new_call_id(), "sampling": Sampling(seed=1), "max_tokens": 8}
    return GenerateRequest(ids=np.asarray(prompt, np.int32), **(fields | changes))


async def sampled_by(url: str) -> float:
    """Return the tokens that a vLLM server has sampled since its start."""
    lines = (await get(f"{url}/metrics")).splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:generation_tokens_total{"))


async def get(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return await response.text()


async def publish(url: str, label: str) -> None:
    await post(url, "/update_weight_version", {"new_version": label})


async def post(url: str, path: str, body: object = None) -> None:
    async with aiohttp.ClientSession() as session, session.post(url + path, json=body) as response:
        assert response.status == 200
