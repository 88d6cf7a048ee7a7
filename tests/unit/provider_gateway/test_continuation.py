"""One answer in pieces: what each is asked for, and what they are together."""

import asyncio

import numpy as np
from tests.support.engines import Play

from evener.engines.answers import Sampled
from evener.engines.connection import EngineHttp
from evener.engines.port import Chunk, EngineFacts, GenerateRequest, LogprobRule
from evener.engines.scripted import Script, ScriptedServer, Step
from evener.engines.vllm import VllmEngine
from evener.proto.fleet import EngineJoined
from evener.proto.sessions import FinishReason
from evener.proto.spec import Sampling
from evener.provider_gateway.engine_handle import EngineHandle, Pauses, RegisteredEngine
from evener.provider_gateway.sampling import IN_VAIN, sample_answer
from evener.provider_gateway.timings import GATEWAY_TIMINGS

FACTS = EngineFacts(context_length=4096, reports_versions=True, version=0)
BREAKS = 4
TOKENS = 400


def handle(server: ScriptedServer, pauses: Pauses | None = None) -> EngineHandle:
    joined = EngineJoined(engine_id="e1", kind="scripted", url=server.url, policy="policy", joined_at=0.0)
    rule = LogprobRule(any_temperature=False, filters=False)
    return EngineHandle(RegisteredEngine(joined), VllmEngine(server.url), FACTS, rule, pauses or Pauses(None))


async def test_pieces_draw_other_numbers_each_and_have_one_limit(play: Play) -> None:
    """With one seed for all of them, each would draw what the first one drew: the same ranks, again and again."""
    server = await play(Script(), tokens_per_second=200)
    engine, sampled, http = handle(server), Sampled(), EngineHttp(server.url)
    request = GenerateRequest(
        request_id="c1-0", ids=np.arange(20, dtype=np.int32), sampling=Sampling(seed=3), max_tokens=TOKENS, stop_ids=(), stream_interval=1
    )

    def take(chunk: Chunk) -> bool:
        sampled.add(chunk)
        if len(breaks) < BREAKS and len(sampled) >= 25 * (len(breaks) + 1):
            breaks.add(asyncio.create_task(http.post("/abort_requests", {})))
        return True

    breaks: set[asyncio.Task[object]] = set()
    await sample_answer(engine, request, sampled, take)
    await asyncio.gather(*breaks)
    await http.aclose()
    await engine.engine.aclose()
    entries = server.ledger
    assert len(entries) > 2
    assert sum(len(entry.sampled_ids) for entry in entries) == TOKENS
    firsts = [tuple(np.round(entry.logprobs[:5], 6)) for entry in entries if len(entry.sampled_ids) > 5]
    assert len(firsts) == len(set(firsts)) > 1
    assert [entry.request_id for entry in entries][:2] == ["c1-0", "c1-0.1"]


async def test_answer_that_is_ended_just_at_its_limit_is_not_continued_beyond_it(play: Play) -> None:
    """The engine was told to end it when it had sampled the last token that it may: a further piece would have none left."""
    server = await play(Script(default=Step(say="one two three four five six seven eight", fail="abort", after=4)))
    engine, sampled = handle(server), Sampled()
    request = GenerateRequest(request_id="c1-0", ids=np.arange(20, dtype=np.int32), sampling=Sampling(), max_tokens=4, stop_ids=())

    def take(chunk: Chunk) -> bool:
        sampled.add(chunk)
        return True

    await sample_answer(engine, request, sampled, take)
    await engine.engine.aclose()
    assert (len(sampled), sampled.finish_reason, len(server.ledger)) == (4, FinishReason.LENGTH, 1)


class Paused:
    """The control of an engine that says that it is paused, for ever."""

    async def paused(self) -> bool:
        return True

    async def aclose(self) -> None:
        """Nothing is open."""


async def test_paused_engine_that_ends_each_piece_at_once_is_not_asked_without_end(play: Play) -> None:
    """Most let new requests wait while they are paused; one that turns them away is asked now and then, and not given up."""
    server = await play(Script(default=Step(say="never", fail="abort", after=0)))
    engine = handle(server, Pauses(Paused()))  # type: ignore[arg-type]  # nobody loads weights
    request = GenerateRequest(request_id="c1-0", ids=np.arange(20, dtype=np.int32), sampling=Sampling(), max_tokens=8, stop_ids=())
    sampled = Sampled()

    def take(chunk: Chunk) -> bool:
        sampled.add(chunk)
        return True

    began = asyncio.get_running_loop().time()
    sampling = asyncio.create_task(sample_answer(engine, request, sampled, take))
    await server.recorded(IN_VAIN + 2)
    took = asyncio.get_running_loop().time() - began
    assert not sampling.done()
    sampling.cancel()
    await asyncio.gather(sampling, return_exceptions=True)
    await engine.engine.aclose()
    assert took > IN_VAIN * GATEWAY_TIMINGS.empty_piece
