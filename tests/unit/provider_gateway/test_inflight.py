"""A call in flight, and those who listen to it: each hears all of it once, in its own time."""

import asyncio
from contextlib import aclosing

import pytest
from tests.support.loop import LoopTime, forever, turns

from evener.dialects.canonical import NOTHING_STREAMED, RequestError, Streamed
from evener.proto.relay import Admitted, Waiting
from evener.provider_gateway.inflight import CallStep, InflightCall, Rejected, SendAgain, StreamedPart

WORDS = ["one ", "two ", "three ", "four ", "five "]
END = Rejected(RequestError("over"))
GRACE_SECONDS = 0.2


def call_of(grace_seconds: float = 60.0) -> InflightCall:
    return InflightCall("r1", "digest", grace_seconds)


async def heard(call: InflightCall, *, pause: float) -> list[CallStep | StreamedPart]:
    """Listen to the end, with a pause after each step."""
    steps = []
    async with aclosing(call.listen()) as told:
        async for step in told:
            steps.append(step)
            await asyncio.sleep(pause)
    return steps


async def told_to(call: InflightCall) -> list[CallStep | StreamedPart]:
    return [step async for step in call.listen()]


async def stream(call: InflightCall) -> None:
    call.put(Admitted(prompt_tokens=1))
    for count in range(1, len(WORDS) + 1):
        call.stream("key", Streamed(text="".join(WORDS[:count])))
        await turns()
    call.put(END)


def texts(steps: list[CallStep | StreamedPart]) -> list[str]:
    return [step.text for step in steps if isinstance(step, StreamedPart)]


async def test_listeners_hear_the_same_text_in_as_many_pieces_as_they_take() -> None:
    """One keeps up, one is slow, one comes when all is over: none has to be remembered for."""
    call = call_of()
    quick, slow = asyncio.create_task(heard(call, pause=0)), asyncio.create_task(heard(call, pause=0.05))
    await stream(call)
    late = await heard(call, pause=0)
    told = [await quick, await slow, late]
    for steps in told:
        assert isinstance(steps[0], Admitted)
        assert steps[-1] is END
        assert "".join(texts(steps)) == "".join(WORDS)
    assert [texts(steps) for steps in (told[0], late)] == [WORDS, ["".join(WORDS)]]
    assert len(texts(told[1])) < len(WORDS)


async def test_what_was_streamed_already_is_no_piece() -> None:
    call = call_of()
    for text in ("one", "one", "o"):
        call.stream("key", Streamed(text=text))
    call.put(END)
    assert texts(await heard(call, pause=0)) == ["one"]


async def test_call_is_abandoned_only_where_nobody_has_listened_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay that comes back in time finds its call going on."""
    time, call = LoopTime(monkeypatch), call_of(GRACE_SECONDS)
    task = call.begin(forever())
    for _ in range(2):
        listening = asyncio.create_task(heard(call, pause=0))
        await time.pass_by(2 * GRACE_SECONDS)
        assert not task.cancelled()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await time.pass_by(GRACE_SECONDS / 2)
        assert not task.cancelled()
    await time.pass_by(GRACE_SECONDS)
    assert task.cancelled()


@pytest.mark.parametrize("ended", [True, False])
async def test_call_that_nobody_ever_heard_of_is_abandoned_unless_it_has_ended(monkeypatch: pytest.MonkeyPatch, *, ended: bool) -> None:
    """Its relay was gone before it could listen."""
    time, call = LoopTime(monkeypatch), call_of(GRACE_SECONDS)
    task = call.begin(forever())
    if ended:
        call.put(END)
    await time.pass_by(2 * GRACE_SECONDS)
    assert task.cancelled() is not ended
    task.cancel()


async def test_listener_that_comes_late_hears_everything_but_waits_that_are_over() -> None:
    call = call_of()
    early = asyncio.create_task(told_to(call))
    await asyncio.sleep(0)
    told: list[CallStep] = [Admitted(prompt_tokens=3), Waiting(seconds=1.0)]
    for step in told:
        call.put(step)
    call.stream("k", Streamed(text="a"))
    late = asyncio.create_task(told_to(call))
    await asyncio.sleep(0)
    rest: list[CallStep] = [Waiting(seconds=2.0), END]
    for step in rest:
        call.put(step)
    part = StreamedPart(key="k", before=NOTHING_STREAMED, reasoning="", text="a")
    assert [step for step in await early if not isinstance(step, StreamedPart)] == [*told, *rest]
    assert await late == [told[0], part, *rest]


async def test_nothing_follows_the_last_step() -> None:
    """What a call comes to is told once."""
    call = call_of()
    for step in (END, SendAgain(), Admitted(prompt_tokens=1)):
        call.put(step)
    assert await heard(call, pause=0) == [END]


async def test_call_that_is_broken_off_has_no_outcome() -> None:
    """Its relay asks the next owner."""
    call = call_of()
    listening = asyncio.create_task(heard(call, pause=0))
    await asyncio.sleep(0)
    call.put(Admitted(prompt_tokens=3))
    await turns()
    call.break_off()
    assert await listening == [Admitted(prompt_tokens=3)]
