"""An engine that is paused, as its own control says; and who is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support.engines import Play
from tests.support.loop import LoopTime
from tests.support.waiting import eventually

from evener.engines.registry import open_weights
from evener.engines.scripted import Script, ScriptedServer
from evener.engines.vllm_weights import VllmWeights
from evener.proto.fleet import EngineJoined
from evener.proto.relay import Waiting
from evener.provider_gateway.engine_handle import Pauses

POLL_SECONDS = 0.05
ROUNDED_SECONDS = 1e-6


class Call:
    """A call that samples, as far as a pause concerns it."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    def put(self, step: Waiting) -> None:
        self.waited.append(step.seconds)


class Control(VllmWeights):
    """The control of an engine, which counts how often it is asked whether the engine is paused."""

    asked = 0

    async def paused(self) -> bool:
        self.asked += 1
        return await super().paused()


@asynccontextmanager
async def watched(server: ScriptedServer) -> AsyncIterator[tuple[Pauses, Control]]:
    control = Control(server.url)
    pauses = Pauses(control, POLL_SECONDS)
    try:
        yield pauses, control
    finally:
        await pauses.aclose()


async def test_pause_is_reported_as_it_passes_and_counts_to_the_first_token_after_it(play: Play) -> None:
    """To all that sample, each for as long as it has waited itself."""
    loop = asyncio.get_running_loop()
    async with watched(await play(Script())) as (pauses, control):
        await control.pause()
        call, late = Call(), Call()
        with pauses.told_to(call.put):
            paused_after = loop.time()
            pauses.heard()
            paused_before = loop.time()
            await eventually(lambda: len(call.waited) >= 2)
            late_after = loop.time()
            with pauses.told_to(late.put):
                late_before = loop.time()
                await eventually(lambda: late.waited)
                heard_after = loop.time()
                pauses.heard()
                heard_before = loop.time()
        assert heard_after - paused_before - ROUNDED_SECONDS < sum(call.waited) < heard_before - paused_after + ROUNDED_SECONDS
        assert heard_after - late_before - ROUNDED_SECONDS < sum(late.waited) < heard_before - late_after + ROUNDED_SECONDS


async def test_engine_that_is_only_slow_is_not_paused(play: Play) -> None:
    """A long prompt is silent too."""
    async with watched(await play(Script())) as (pauses, control):
        call = Call()
        with pauses.told_to(call.put):
            await eventually(lambda: control.asked > 1)
            pauses.heard()
        assert call.waited == []


async def test_engine_that_samples_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not silent is not paused: it would be asked for nothing."""
    control, time, call = Control("http://127.0.0.1:9"), LoopTime(monkeypatch), Call()
    pauses = Pauses(control, POLL_SECONDS)
    with pauses.told_to(call.put):
        for _ in range(10):
            pauses.heard()
            await time.pass_by(POLL_SECONDS / 4)
    await pauses.aclose()
    assert (control.asked, call.waited) == (0, [])


async def test_engine_that_does_not_answer_tells_of_no_pause() -> None:
    control, call = Control("http://127.0.0.1:9"), Call()
    pauses = Pauses(control, POLL_SECONDS)
    with pauses.told_to(call.put):
        await eventually(lambda: control.asked > 1)
        pauses.heard()
    await pauses.aclose()
    assert call.waited == []


def test_engine_whose_weights_stay_has_no_pauses() -> None:
    """Nobody needs to ask it."""
    assert open_weights(EngineJoined(engine_id="e1", kind="embedded", url="http://127.0.0.1:9", policy="policy", joined_at=0.0)) is None
