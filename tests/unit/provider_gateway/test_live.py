"""A session while it lives: what is kept of it, and who hears what of a call in flight."""

import asyncio

from msgspec import structs
from tests.unit.tokens.toy import World, user

from evener.dialects.canonical import NOTHING, RequestError, Streamed
from evener.proto.arrays import inline
from evener.proto.codec import decode
from evener.proto.relay import Admitted, Waiting
from evener.proto.spec import PolicyOptions, Quirks
from evener.provider_gateway.live import LOST, SHORT_MESSAGES_BYTES, Flight, Happening, Live, Piece, Refused, Step
from evener.tokens.place import place

LONG = "word " * 200


class Played:
    """A session of long turns, and its life in a gateway."""

    def __init__(self, turns: int) -> None:
        self.world = World()
        self.talk = [user(LONG)]
        for _ in range(turns):
            self.talk += [self.world.ask(self.talk, "b"), user(LONG)]
        self.live = Live("t.0")

    async def fold(self) -> None:
        """Fold the log as its owner does that commits call by call, after the first was placed."""
        for offset, record in enumerate(self.world.log):
            await self.live.fold([(decode(record), offset)], 100.0)
            assert self.live.history

    def take_over(self) -> None:
        """Fold the log as the next owner does."""
        for offset, record in enumerate(self.world.log):
            self.live.session.apply(decode(record), offset=offset, record_at=100.0)

    @property
    def text_bytes(self) -> int:
        """Bytes of messages that are kept."""
        return sum(len(inline(call.opened.messages)) for call in self.live.session.forest.calls.values())

    def extends(self) -> bool:
        """Whether the next call goes on from the last answer."""
        live, renderer = self.live, self.world.renderer
        placed = place(live.session.forest, live.history, self.talk, (), renderer=renderer, options=PolicyOptions(), quirks=Quirks())
        parent = placed.placement.parent
        return parent is not None and parent.call_id == f"c{self.world.calls}"


async def test_texts_of_a_long_session_are_not_kept() -> None:
    """They are in the log; the next call finds its place all the same."""
    played = Played(turns=10)
    await played.fold()
    assert played.text_bytes < len(LONG)
    assert played.extends()


def test_texts_read_at_a_take_over_are_not_kept_after_the_first_call() -> None:
    played = Played(turns=10)
    played.take_over()
    assert played.text_bytes > 10 * len(LONG)
    assert played.extends()
    assert played.text_bytes < len(LONG)


async def test_long_messages_are_taken_in_by_a_thread() -> None:
    """They are decoded and hashed again: the loop goes on meanwhile."""
    played = Played(turns=1)
    played.talk[0] = user("words " * (SHORT_MESSAGES_BYTES // 5))
    played.world.ask(played.talk[:1], "b")
    folding = asyncio.create_task(played.fold())
    await asyncio.sleep(0)
    ticks = 0
    while not folding.done():
        ticks += 1
        await asyncio.sleep(0)
    await folding
    assert ticks > 1


async def test_new_attempt_has_a_history_of_its_own() -> None:
    """Its harness is new and remembers nothing."""
    played = Played(turns=1)
    played.take_over()
    first = played.live.history
    start = played.live.session.starts[1]
    played.live.session.apply(structs.replace(start, attempt=2, start_id="again"), offset=99, record_at=100.0)
    (asked,) = played.live.session.forest.calls
    assert first.conversation_of(asked)
    assert not played.live.history.conversation_of(asked)


async def heard(flight: Flight) -> list[Step]:
    return [step async for step in flight.steps()]


async def test_listener_that_comes_late_hears_everything_but_waits_that_are_over() -> None:
    flight = Flight("r1", "d")
    early = asyncio.create_task(heard(flight))
    await asyncio.sleep(0)
    told: list[Happening] = [Admitted(prompt_tokens=3), Waiting(seconds=1.0)]
    for step in told:
        flight.put(step)
    flight.stream("k", Streamed(text="a"))
    late = asyncio.create_task(heard(flight))
    await asyncio.sleep(0)
    rest: list[Happening] = [Waiting(seconds=2.0), Refused(RequestError("no"))]
    for step in rest:
        flight.put(step)
    piece = Piece(key="k", reasoning=(0, 0), text=(0, 1))
    assert [step for step in await early if not isinstance(step, Piece)] == [*told, *rest]
    assert await late == [told[0], piece, *rest]


async def test_flight_without_an_end_is_told_to_the_relay_alone() -> None:
    """Its task was cancelled before it began, for example."""
    live, flight = Live("s"), Flight("r1", "d")
    live.flights["r1"] = flight
    listening = asyncio.create_task(heard(flight))
    await asyncio.sleep(0)
    live.land(flight)
    assert await listening == [LOST]
    assert (flight.ended, flight.streamed, live.flights) == (True, NOTHING, {})
