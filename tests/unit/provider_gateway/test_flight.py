"""A call in flight, and those who listen to it: each hears all of it once, in its own time."""

import asyncio
from contextlib import aclosing

from evener.dialects.canonical import RequestError, Streamed
from evener.proto.relay import Admitted
from evener.provider_gateway.live import Flight, Piece, Refused, Step

WORDS = ["one ", "two ", "three ", "four ", "five "]
END = Refused(RequestError("over"))


async def heard(flight: Flight, *, pause: float) -> list[Step]:
    """Listen to the end, with a pause after each step."""
    steps = []
    async with aclosing(flight.steps()) as told:
        async for step in told:
            steps.append(step)
            await asyncio.sleep(pause)
    return steps


async def stream(flight: Flight, *, pause: float) -> None:
    flight.put(Admitted(prompt_tokens=1))
    for count in range(1, len(WORDS) + 1):
        flight.stream("key", Streamed(text="".join(WORDS[:count])))
        await asyncio.sleep(pause)
    flight.put(END)


def texts(flight: Flight, steps: list[Step]) -> list[str]:
    return [flight.said(step)[1].text for step in steps if isinstance(step, Piece)]


async def test_listeners_hear_the_same_text_in_as_many_pieces_as_they_take() -> None:
    """One keeps up, one is slow, one comes when all is over: none has to be remembered for."""
    flight = Flight("r1", "digest")
    quick, slow = asyncio.create_task(heard(flight, pause=0)), asyncio.create_task(heard(flight, pause=0.05))
    await stream(flight, pause=0.01)
    late = await heard(flight, pause=0)
    told = [await quick, await slow, late]
    for steps in told:
        assert isinstance(steps[0], Admitted)
        assert steps[-1] is END
        assert "".join(texts(flight, steps)) == "".join(WORDS)
    assert [texts(flight, steps) for steps in (told[0], late)] == [WORDS, ["".join(WORDS)]]
    assert len(texts(flight, told[1])) < len(WORDS)


async def test_what_was_streamed_already_is_no_piece() -> None:
    flight = Flight("r1", "digest")
    for text in ("one", "one", "o"):
        flight.stream("key", Streamed(text=text))
    flight.put(END)
    assert texts(flight, await heard(flight, pause=0)) == ["one"]


async def test_flight_is_alone_only_while_nobody_listens() -> None:
    """A relay that comes back in time finds its call going on."""
    flight, loop = Flight("r1", "digest"), asyncio.get_running_loop()
    assert flight.alone_for(loop.time() + 5) == 0
    for _ in range(2):
        listening = asyncio.create_task(heard(flight, pause=0))
        await asyncio.sleep(0)
        assert flight.alone_for(loop.time() + 5) == 0
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        assert flight.alone_for(loop.time() + 5) >= 5
