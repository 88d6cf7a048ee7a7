"""A call in feed, and those who listen to it: each hears all of it once, in its own time."""

import asyncio
from contextlib import aclosing

import pytest
from tests.support.loop import LoopTime, turns

from evener.dialects.canonical import NOTHING, RequestError, Streamed
from evener.proto.relay import Admitted, Waiting
from evener.provider_gateway.feed import CallFeed, Rejected, SendAgain, Step, StreamedPart

WORDS = ["one ", "two ", "three ", "four ", "five "]
END = Rejected(RequestError("over"))
GRACE_SECONDS = 0.2


def feed_of() -> CallFeed:
    return CallFeed(60.0, lambda: None)


async def heard(feed: CallFeed, *, pause: float) -> list[Step | StreamedPart]:
    """Listen to the end, with a pause after each step."""
    steps = []
    async with aclosing(feed.listen()) as told:
        async for step in told:
            steps.append(step)
            await asyncio.sleep(pause)
    return steps


async def told_to(feed: CallFeed) -> list[Step | StreamedPart]:
    return [step async for step in feed.listen()]


async def stream(feed: CallFeed) -> None:
    feed.put(Admitted(prompt_tokens=1))
    for count in range(1, len(WORDS) + 1):
        feed.stream("key", Streamed(text="".join(WORDS[:count])))
        await turns()
    feed.put(END)


def texts(steps: list[Step | StreamedPart]) -> list[str]:
    return [step.text for step in steps if isinstance(step, StreamedPart)]


async def test_listeners_hear_the_same_text_in_as_many_pieces_as_they_take() -> None:
    """One keeps up, one is slow, one comes when all is over: none has to be remembered for."""
    feed = feed_of()
    quick, slow = asyncio.create_task(heard(feed, pause=0)), asyncio.create_task(heard(feed, pause=0.05))
    await stream(feed)
    late = await heard(feed, pause=0)
    told = [await quick, await slow, late]
    for steps in told:
        assert isinstance(steps[0], Admitted)
        assert steps[-1] is END
        assert "".join(texts(steps)) == "".join(WORDS)
    assert [texts(steps) for steps in (told[0], late)] == [WORDS, ["".join(WORDS)]]
    assert len(texts(told[1])) < len(WORDS)


async def test_what_was_streamed_already_is_no_piece() -> None:
    feed = feed_of()
    for text in ("one", "one", "o"):
        feed.stream("key", Streamed(text=text))
    feed.put(END)
    assert texts(await heard(feed, pause=0)) == ["one"]


async def test_call_is_abandoned_only_where_nobody_has_listened_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay that comes back in time finds its call going on."""
    abandoned, time = asyncio.Event(), LoopTime(monkeypatch)
    feed = CallFeed(GRACE_SECONDS, abandoned.set)
    for _ in range(2):
        listening = asyncio.create_task(heard(feed, pause=0))
        await time.pass_by(2 * GRACE_SECONDS)
        assert not abandoned.is_set()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await time.pass_by(GRACE_SECONDS / 2)
        assert not abandoned.is_set()
    await time.pass_by(GRACE_SECONDS)
    assert abandoned.is_set()


@pytest.mark.parametrize("ended", [True, False])
async def test_call_that_nobody_ever_heard_of_is_abandoned_unless_it_has_ended(monkeypatch: pytest.MonkeyPatch, *, ended: bool) -> None:
    """Its relay was gone before it could listen."""
    abandoned, time = asyncio.Event(), LoopTime(monkeypatch)
    feed = CallFeed(GRACE_SECONDS, abandoned.set)
    if ended:
        feed.put(END)
    await time.pass_by(2 * GRACE_SECONDS)
    assert abandoned.is_set() is not ended


async def test_listener_that_comes_late_hears_everything_but_waits_that_are_over() -> None:
    feed = feed_of()
    early = asyncio.create_task(told_to(feed))
    await asyncio.sleep(0)
    told: list[Step] = [Admitted(prompt_tokens=3), Waiting(seconds=1.0)]
    for step in told:
        feed.put(step)
    feed.stream("k", Streamed(text="a"))
    late = asyncio.create_task(told_to(feed))
    await asyncio.sleep(0)
    rest: list[Step] = [Waiting(seconds=2.0), END]
    for step in rest:
        feed.put(step)
    part = StreamedPart(key="k", before=NOTHING, reasoning="", text="a")
    assert [step for step in await early if not isinstance(step, StreamedPart)] == [*told, *rest]
    assert await late == [told[0], part, *rest]


async def test_nothing_follows_the_last_step() -> None:
    """What a call comes to is told once."""
    feed = feed_of()
    for step in (END, SendAgain(), Admitted(prompt_tokens=1)):
        feed.put(step)
    assert await heard(feed, pause=0) == [END]


async def test_feed_that_is_broken_off_has_no_outcome() -> None:
    """Its relay asks the next owner."""
    feed = feed_of()
    listening = asyncio.create_task(heard(feed, pause=0))
    await asyncio.sleep(0)
    feed.put(Admitted(prompt_tokens=3))
    await turns()
    feed.break_off()
    assert await listening == [Admitted(prompt_tokens=3)]
