"""An engine that is paused, as its own control says; and who is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.engines import Play

from evener.engines.port import WeightControl
from evener.engines.registry import open_weights
from evener.engines.scripted import Script, ScriptedServer
from evener.proto.fleet import EngineJoined
from evener.proto.relay import Waiting
from evener.provider_gateway.pauses import LOOK_SECONDS, Pauses

ROUNDED_SECONDS = 1e-6


class Call:
    """A call that samples, as far as a pause concerns it."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    def put(self, step: Waiting) -> None:
        self.waited.append(step.seconds)


def control(url: str, kind: str = "scripted") -> WeightControl | None:
    return open_weights(EngineJoined(engine_id="e1", kind=kind, url=url, policy="policy", joined_at=0.0))


@asynccontextmanager
async def watched(server: ScriptedServer) -> AsyncIterator[tuple[Pauses, WeightControl]]:
    steering = control(server.url)
    assert steering is not None
    pauses = Pauses(control(server.url))
    try:
        yield pauses, steering
    finally:
        await pauses.aclose()
        await steering.aclose()


async def test_pause_is_told_as_it_passes_and_counts_to_the_first_token_after_it(play: Play) -> None:
    """To all that sample, each for as long as it has waited itself."""
    loop = asyncio.get_running_loop()
    async with watched(await play(Script())) as (pauses, steering):
        await steering.pause()
        call, late = Call(), Call()
        with pauses.told_to(call.put):
            paused_after = loop.time()
            pauses.heard()
            paused_before = loop.time()
            async with asyncio.timeout(60):
                while len(call.waited) < 2:  # noqa: ASYNC110 - told while it lasts, into a list
                    await asyncio.sleep(LOOK_SECONDS / 10)
            late_after = loop.time()
            with pauses.told_to(late.put):
                late_before = loop.time()
                await asyncio.sleep(LOOK_SECONDS / 4)
                heard_after = loop.time()
                pauses.heard()
                heard_before = loop.time()
        assert heard_after - paused_before - ROUNDED_SECONDS < sum(call.waited) < heard_before - paused_after + ROUNDED_SECONDS
        assert heard_after - late_before - ROUNDED_SECONDS < sum(late.waited) < heard_before - late_after + ROUNDED_SECONDS


async def test_engine_that_is_only_slow_is_not_paused(play: Play) -> None:
    """A long prompt is silent too."""
    async with watched(await play(Script())) as (pauses, _):
        call = Call()
        with pauses.told_to(call.put):
            await asyncio.sleep(2.5 * LOOK_SECONDS)
            pauses.heard()
        assert call.waited == []


async def test_engine_that_samples_is_not_asked(play: Play) -> None:
    """What is not silent is not paused: it would be asked for nothing."""
    server = await play(Script())
    async with watched(server) as (pauses, steering):
        call = Call()
        with pauses.told_to(call.put):
            await steering.pause()
            for _ in range(10):
                pauses.heard()
                await asyncio.sleep(LOOK_SECONDS / 4)
        assert call.waited == []


@pytest.mark.parametrize("kind", ["embedded", "scripted"])
async def test_engine_without_a_control_or_an_answer_tells_of_no_pause(kind: str) -> None:
    pauses = Pauses(control("http://127.0.0.1:9", kind))
    call = Call()
    with pauses.told_to(call.put):
        await asyncio.sleep(2.5 * LOOK_SECONDS)
        pauses.heard()
    await pauses.aclose()
    assert call.waited == []
