"""Who gets an engine, and who waits for it: limits, the order of those who wait, prefix caches, engines that do not answer."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from evener.engines.port import EngineFacts, LogprobRule
from evener.engines.vllm import VllmEngine
from evener.proto.fleet import EngineJoined
from evener.proto.spec import Target
from evener.provider_gateway.admission import Ticket
from evener.provider_gateway.pauses import Pauses
from evener.provider_gateway.slots import PASSED_OVER, Member, NoEngine, Pooled, Slots

POLICY = Target(policy="policy")
FACTS = EngineFacts(kind="vllm", model="m", context_length=100, reports_versions=True, version=0)
RULE = LogprobRule(any_temperature=False, filters=False)
AT_ONCE = 0.05
TASKS: list[asyncio.Task[None]] = []
"""Of callers, kept until the test ends: the loop itself lets tasks that wait be collected."""


def engine(name: str, *, places: int = 1, policy: str | None = "policy") -> Pooled:
    joined = EngineJoined(engine_id=name, kind="vllm", url="http://127.0.0.1:1", policy=policy, max_concurrency=places, joined_at=0.0)
    return Pooled(Member(joined), VllmEngine(joined.url), FACTS, RULE, Pauses(None))


def slots_of(*engines: Pooled, queue: int = 100, patience_seconds: float = 10.0) -> Slots:
    slots = Slots(queue=queue, patience_seconds=patience_seconds)
    slots.engines.update({one.joined.engine_id: one for one in engines})
    return slots


class Caller:
    """A session that asks for an engine, and holds it until it is told to let it go."""

    def __init__(self, slots: Slots, session_id: str, target: Target = POLICY, *, ticket: Ticket | None = None) -> None:
        self.session_id = session_id
        self.got: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._enough = asyncio.Event()
        self._task = asyncio.create_task(self._hold(slots.slot(target, session_id, ticket or Ticket())))
        TASKS.append(self._task)

    async def engine(self) -> str:
        """Wait for the engine's id; raise why there is none."""
        either: list[asyncio.Future[Any]] = [self.got, self._task]
        await asyncio.wait(either, timeout=2, return_when=asyncio.FIRST_COMPLETED)
        if not self.got.done() and self._task.done():
            self._task.result()
        return self.got.result()

    async def let_go(self) -> None:
        """End the call."""
        self._enough.set()
        await self._task

    async def leave(self) -> None:
        """Be cancelled."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _hold(self, slot: AbstractAsyncContextManager[tuple[Pooled, float]]) -> None:
        async with slot as (pooled, _):
            self.got.set_result(pooled.joined.engine_id)
            await self._enough.wait()


async def still_waits(caller: Caller) -> bool:
    await asyncio.sleep(AT_ONCE)
    return not caller.got.done()


async def test_engine_has_no_more_calls_than_it_takes_and_others_wait_in_order() -> None:
    slots = slots_of(engine("e1", places=2))
    one, two, three, four = (Caller(slots, name) for name in "abcd")
    assert [await one.engine(), await two.engine()] == ["e1", "e1"]
    assert await still_waits(three)
    await one.let_go()
    assert await three.engine() == "e1"
    assert await still_waits(four)
    assert slots.engines["e1"].open == 2


async def test_call_beyond_the_queue_does_not_come_in_before_there_is_room() -> None:
    slots = slots_of(engine("e1"), queue=1)
    first, waiting = Caller(slots, "a"), Caller(slots, "b")
    assert await still_waits(waiting)
    beyond = frozenset({POLICY})
    assert await slots.admission.ticket(beyond, AT_ONCE) is None
    held = asyncio.create_task(slots.admission.ticket(beyond, 2))
    await asyncio.sleep(0)
    await first.let_go()
    assert await held is not None


async def test_call_gives_its_ticket_back_when_it_has_an_engine_or_stands_in_line() -> None:
    """It takes one place at a time."""
    slots = slots_of(engine("e1"), queue=2)
    for name, waits in (("a", False), ("b", True), ("c", True)):
        ticket = await slots.admission.ticket(frozenset({POLICY}), AT_ONCE)
        assert ticket is not None
        assert await still_waits(Caller(slots, name, ticket=ticket)) is waits
    assert await slots.admission.ticket(frozenset({POLICY}), AT_ONCE) is None


async def test_call_that_leaves_the_line_leaves_its_place_to_others() -> None:
    """Also when it is cancelled in the moment of its turn."""
    slots = slots_of(engine("e1"))
    first, second, third = (Caller(slots, name) for name in "abc")
    await first.engine()
    await asyncio.sleep(0)
    await first.let_go()  # the turn is the second one's, which does not know it yet
    await second.leave()
    assert await third.engine() == "e1"
    assert slots.engines["e1"].open == 1


async def test_room_goes_to_those_whose_prefixes_are_there() -> None:
    """Both wait; the first in line has its cache elsewhere."""
    slots = slots_of(engine("e1"), engine("e2"))
    one, two = Caller(slots, "of-e1"), Caller(slots, "of-e2")
    assert [await one.engine(), await two.engine()] == ["e1", "e2"]
    again_two, again_one = Caller(slots, "of-e2"), Caller(slots, "of-e1")
    await asyncio.sleep(0)
    await one.let_go()
    assert await again_one.engine() == "e1"
    await two.let_go()
    assert await again_two.engine() == "e2"


async def test_nobody_is_passed_over_for_ever() -> None:
    """Its own engine is busy with one long call; after some others it takes what there is."""
    slots = slots_of(engine("e1"), engine("e2"))
    busy, long = Caller(slots, "of-e1"), Caller(slots, "of-e2")
    assert [await busy.engine(), await long.engine()] == ["e1", "e2"]
    first = Caller(slots, "of-e2")
    for number in range(PASSED_OVER):
        following = Caller(slots, "of-e1")
        await asyncio.sleep(0)
        await busy.let_go()
        assert await following.engine() == "e1", number
        busy = following
    Caller(slots, "of-e1")
    await asyncio.sleep(0)
    await busy.let_go()
    assert await first.engine() == "e1"


async def test_session_whose_engine_cannot_be_had_is_at_home_everywhere() -> None:
    e1, e2 = engine("e1"), engine("e2")
    slots = slots_of(e1, e2)
    one, two = Caller(slots, "of-e1"), Caller(slots, "of-e2")
    await asyncio.gather(one.engine(), two.engine())
    first, second = Caller(slots, "of-e2"), Caller(slots, "of-e1")
    await asyncio.sleep(0)
    e2.suspect()
    await one.let_go()
    assert await first.engine() == "e1"
    assert await still_waits(second)


async def test_engine_that_failed_a_call_is_asked_last_and_one_that_does_not_answer_not_at_all() -> None:
    """Although the session's prefixes are in its cache."""
    e1, e2 = engine("e1", places=9), engine("e2", places=1)
    slots = slots_of(e1, e2)
    assert await Caller(slots, "s").engine() == "e1"
    e1.avoid()
    assert await Caller(slots, "s").engine() == "e2"
    assert await Caller(slots, "t").engine() == "e1"
    e1.suspect()
    waiting = Caller(slots, "t")
    assert await still_waits(waiting)
    e1.silent_since = None
    slots.offer(e1)
    assert await waiting.engine() == "e1"


async def test_engine_that_has_left_gets_no_calls_when_its_last_one_ends() -> None:
    """Its connection is closed; the call waits for another."""
    slots = slots_of(engine("e1"))
    first, waiting = Caller(slots, "a"), Caller(slots, "b")
    await first.engine()
    del slots.engines["e1"]
    await first.let_go()
    assert await still_waits(waiting)
    slots.engines["e2"] = e2 = engine("e2")
    slots.offer(e2)
    assert await waiting.engine() == "e2"


async def test_call_waits_for_an_engine_to_come_back_but_not_for_ever() -> None:
    e1 = engine("e1")
    slots = slots_of(e1, patience_seconds=0.3)
    e1.suspect()
    early = Caller(slots, "a")
    await asyncio.sleep(0.2)
    late = Caller(slots, "b")
    with pytest.raises(NoEngine, match=r"no engine of policy has answered for"):
        await early.engine()
    assert not late.got.done()
    e1.silent_since = None
    slots.offer(e1)
    assert await late.engine() == "e1"


async def test_call_waits_for_a_busy_engine_as_long_as_it_takes() -> None:
    """Patience is for engines that do not answer."""
    e1, e2 = engine("e1"), engine("e2")
    slots = slots_of(e1, e2, patience_seconds=0.1)
    first, second = Caller(slots, "a"), Caller(slots, "b")
    await asyncio.gather(first.engine(), second.engine())
    e2.suspect()
    waiting = Caller(slots, "c")
    await asyncio.sleep(0.4)
    await first.let_go()
    assert await waiting.engine() == "e1"


async def test_draining_engine_gets_no_calls() -> None:
    member = Member(engine("e1").joined)
    slots = slots_of(Pooled(member, VllmEngine("http://127.0.0.1:1"), FACTS, RULE, Pauses(None)))
    member.draining = True
    assert await still_waits(Caller(slots, "a"))


async def test_frozen_engine_is_for_those_that_name_it() -> None:
    slots = slots_of(engine("e1"), engine("h1", policy=None))
    assert await Caller(slots, "a", Target(frozen="h1")).engine() == "h1"
    assert await Caller(slots, "a").engine() == "e1"
    assert await still_waits(Caller(slots, "b"))


class Choice:
    """An answer of a call that has an engine: waits for a place of its own there."""

    def __init__(self, slots: Slots, pooled: Pooled) -> None:
        self.got: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._enough = asyncio.Event()
        self.task = asyncio.create_task(self._hold(slots, pooled))
        TASKS.append(self.task)

    async def _hold(self, slots: Slots, pooled: Pooled) -> None:
        async with slots.another(pooled):
            self.got.set_result(pooled.joined.engine_id)
            await self._enough.wait()

    async def let_go(self) -> None:
        self._enough.set()
        await self.task


async def test_answers_of_one_call_take_a_place_each_and_stand_in_line_with_others() -> None:
    """Neither does a call of many answers keep the others out, nor they it."""
    e1 = engine("e1", places=2)
    slots = slots_of(e1)
    large = Caller(slots, "large")
    await large.engine()
    second, third, fourth = Choice(slots, e1), Choice(slots, e1), Choice(slots, e1)
    assert await second.got == "e1"
    small = Caller(slots, "small")
    fifth = Choice(slots, e1)
    await asyncio.sleep(AT_ONCE)
    assert (e1.open, third.got.done(), small.got.done()) == (2, False, False)
    await second.let_go()
    assert await third.got == "e1"
    await third.let_go()
    assert await fourth.got == "e1"
    await fourth.let_go()
    assert await small.engine() == "e1"
    assert not fifth.got.done()
    await small.let_go()
    assert await fifth.got == "e1"


async def test_answer_that_is_no_longer_wanted_leaves_the_line() -> None:
    """Also when it is cancelled in the moment of its turn."""
    e1 = engine("e1", places=2)
    slots = slots_of(e1)
    first, second = Caller(slots, "a"), Caller(slots, "b")
    await asyncio.gather(first.engine(), second.engine())
    early, late, waiting = Choice(slots, e1), Choice(slots, e1), Caller(slots, "c")
    await asyncio.sleep(0)
    late.task.cancel()
    await second.let_go()
    early.task.cancel()
    assert await waiting.engine() == "e1"
    assert e1.open == 2


async def test_answers_that_wait_do_not_fill_the_queue_of_calls() -> None:
    e1 = engine("e1")
    slots = slots_of(e1, queue=1)
    await Caller(slots, "a").engine()
    choices = [Choice(slots, e1) for _ in range(4)]
    await asyncio.sleep(0)
    assert await slots.admission.ticket(frozenset({POLICY}), AT_ONCE) is not None
    assert not any(choice.got.done() for choice in choices)


@pytest.fixture(autouse=True)
async def tasks_end() -> AsyncIterator[Awaitable[None] | None]:
    """Calls that are still open end with the test."""
    yield None
    for task in TASKS:
        task.cancel()
    await asyncio.gather(*TASKS, return_exceptions=True)
    TASKS.clear()
