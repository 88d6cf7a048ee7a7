"""A session while it lives: what is kept of it, and who hears what of a call in flight."""

import asyncio

from tests.unit.tokens.toy import World, user

from evener.dialects.canonical import NOTHING, RequestError, Streamed
from evener.proto.arrays import inline
from evener.proto.codec import decode
from evener.proto.relay import Admitted, Waiting
from evener.proto.sessions import CallClosed, CallOpened
from evener.proto.spec import PolicyOptions, Quirks
from evener.provider_gateway.live import LOST, Flight, Happening, Live, Piece, Refused, Step
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

    def fold(self, *, index: bool) -> None:
        """Fold the log as its owner does: call by call, or at a take-over all at once."""
        for offset, record in enumerate(self.world.log):
            event = decode(record)
            self.live.session.apply(event, offset=offset, record_at=100.0)
            if index and isinstance(event, CallOpened | CallClosed):
                self.live.index(event.call_id)

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


def test_texts_of_a_long_session_are_not_kept() -> None:
    """They are in the log; the next call finds its place all the same."""
    played = Played(turns=10)
    played.fold(index=True)
    assert played.text_bytes < len(LONG)
    assert played.extends()


def test_texts_read_at_a_take_over_are_not_kept_after_the_first_call() -> None:
    played = Played(turns=10)
    played.fold(index=False)
    assert played.text_bytes > 10 * len(LONG)
    assert played.extends()
    assert played.text_bytes < len(LONG)


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
