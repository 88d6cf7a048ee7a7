"""Who comes in when engines are busy, in which order, and who is turned away."""

import asyncio
from collections.abc import Collection

from evener.proto.spec import Target
from evener.provider_gateway.admission import Admission

A, B = frozenset({Target(policy="a")}), frozenset({Target(policy="b")})


class Places:
    """Engines and a queue, as far as admission looks at them."""

    def __init__(self, **free: int) -> None:
        self.free = free

    def room(self, targets: Collection[Target]) -> int:
        return sum(self.free.get(target.policy or "", 0) for target in targets)


async def test_calls_that_come_at_once_cannot_share_one_place() -> None:
    """Each is let in before it is placed, and takes the place itself only then."""
    places = Places(a=1)
    admission = Admission(places.room)
    tickets = [await admission.ticket(A, 0.01) for _ in range(3)]
    assert [ticket is not None for ticket in tickets] == [True, False, False]


async def test_held_calls_come_in_by_order_of_arrival_as_places_free() -> None:
    """A later one does not overtake them; one for other engines is not held up."""
    places, came = Places(a=0, b=1), list[str]()
    admission = Admission(places.room)

    async def come(name: str) -> None:
        if await admission.ticket(A, 5.0) is not None:
            came.append(name)

    held = [asyncio.create_task(come(name)) for name in ("first", "second", "third")]
    await asyncio.sleep(0.01)
    other = await admission.ticket(B, 0.01)
    assert other is not None
    other.give_back()
    places.free["a"] = 1
    admission.let_in()
    await asyncio.sleep(0.01)
    assert came == ["first"]
    places.free["a"] = 2
    held.append(asyncio.create_task(come("late")))
    await asyncio.sleep(0.01)
    assert came == ["first"]
    admission.let_in()
    await asyncio.sleep(0.01)
    assert came == ["first", "second"]
    places.free["a"] = 4
    admission.let_in()
    await asyncio.gather(*held)
    assert came == ["first", "second", "third", "late"]


async def test_ticket_given_back_lets_the_next_one_in_once() -> None:
    """A call that needs no engine, or has one now."""
    admission = Admission(Places(a=1).room)
    first = await admission.ticket(A, 0.01)
    assert first is not None
    second, third = (asyncio.create_task(admission.ticket(A, 0.2)) for _ in range(2))
    await asyncio.sleep(0.01)
    first.give_back()
    first.give_back()
    assert await second is not None
    assert await third is None


async def test_call_that_goes_away_while_it_is_held_takes_no_place() -> None:
    places = Places(a=0)
    admission = Admission(places.room)
    gone, waits = (asyncio.create_task(admission.ticket(A, 5.0)) for _ in range(2))
    await asyncio.sleep(0.01)
    gone.cancel()
    await asyncio.wait({gone})
    places.free["a"] = 1
    admission.let_in()
    assert await waits is not None


async def test_call_that_goes_away_as_it_is_let_in_gives_its_place_to_the_next() -> None:
    places = Places(a=0)
    admission = Admission(places.room)
    gone, waits = (asyncio.create_task(admission.ticket(A, 5.0)) for _ in range(2))
    await asyncio.sleep(0.01)
    places.free["a"] = 1
    admission.let_in()
    gone.cancel()
    assert await waits is not None
