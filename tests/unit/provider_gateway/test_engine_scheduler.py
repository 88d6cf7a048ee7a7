"""Who gets an engine, and who waits for it: limits, the order of those who wait, prefix caches, engines that do not answer."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from tests.support.loop import LoopTime, turns

from evener.engines.port import ContextOverflow, EngineError, EngineFacts, EngineUnreachable, LogprobRule
from evener.engines.vllm import VllmEngine
from evener.proto.fleet import EngineJoined
from evener.proto.spec import Target
from evener.provider_gateway.engine_handle import EngineHandle, EngineSlots, Pauses, RegisteredEngine
from evener.provider_gateway.engine_scheduler import PASSED_OVER, AdmissionPermit, EngineScheduler, NoEngine

POLICY = Target(policy="policy")
A, B = frozenset({Target(policy="a")}), frozenset({Target(policy="b")})
FACTS = EngineFacts(context_length=100, reports_versions=True, version=0)
RULE = LogprobRule(any_temperature=False, filters=False)
AT_ONCE = 0.05
TASKS: list[asyncio.Task[None]] = []
"""The tasks of callers, kept until the test ends: the loop holds no reference to a task that waits."""


def engine(name: str, *, places: int = 1, policy: str | None = "policy") -> EngineHandle:
    joined = EngineJoined(engine_id=name, kind="vllm", url="http://127.0.0.1:1", policy=policy, max_concurrency=places, joined_at=0.0)
    return EngineHandle(RegisteredEngine(joined), VllmEngine(joined.url), FACTS, RULE, Pauses(None))


def scheduler_of(*engines: EngineHandle, queue: int = 100, patience_seconds: float = 10.0) -> EngineScheduler:
    scheduler = EngineScheduler(queue=queue, patience_seconds=patience_seconds)
    scheduler.engines.update({one.joined.engine_id: one for one in engines})
    return scheduler


class Caller:
    """A session that asks for an engine, and holds it until it is told to let it go."""

    def __init__(
        self, scheduler: EngineScheduler, session_id: str, target: Target = POLICY, *, permit: AdmissionPermit | None = None
    ) -> None:
        self.session_id = session_id
        self.got: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._enough = asyncio.Event()
        self._task = asyncio.create_task(self._hold(scheduler.slots(target, session_id, permit or AdmissionPermit())))
        TASKS.append(self._task)

    async def engine(self) -> str:
        """Wait for the engine's id; raise why there is none."""
        either: list[asyncio.Future[Any]] = [self.got, self._task]
        await asyncio.wait(either, timeout=60, return_when=asyncio.FIRST_COMPLETED)
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

    @property
    def cancelled(self) -> bool:
        return self._task.cancelled()

    async def _hold(self, leased: AbstractAsyncContextManager[EngineSlots]) -> None:
        async with leased as slots:
            self.got.set_result(slots.engine.joined.engine_id)
            await self._enough.wait()


async def still_waits(caller: Caller) -> bool:
    await turns()
    return not caller.got.done()


async def test_engine_has_no_more_calls_than_it_takes_and_others_wait_in_order() -> None:
    scheduler = scheduler_of(engine("e1", places=2))
    one, two, three, four = (Caller(scheduler, name) for name in "abcd")
    assert [await one.engine(), await two.engine()] == ["e1", "e1"]
    assert await still_waits(three)
    await one.let_go()
    assert await three.engine() == "e1"
    assert await still_waits(four)
    assert scheduler.engines["e1"].taken == 2


async def test_call_beyond_the_queue_does_not_come_in_before_there_is_room() -> None:
    scheduler = scheduler_of(engine("e1"), queue=1)
    first, waiting = Caller(scheduler, "a"), Caller(scheduler, "b")
    assert await still_waits(waiting)
    beyond = frozenset({POLICY})
    assert await scheduler.admit(beyond, AT_ONCE) is None
    held = asyncio.create_task(scheduler.admit(beyond, 60))
    await asyncio.sleep(0)
    await first.let_go()
    assert await held is not None


async def test_call_releases_its_permit_when_it_has_an_engine_or_stands_in_line() -> None:
    """It takes one place at a time."""
    scheduler = scheduler_of(engine("e1"), queue=2)
    for name, waits in (("a", False), ("b", True), ("c", True)):
        permit = await scheduler.admit(frozenset({POLICY}), AT_ONCE)
        assert permit is not None
        assert await still_waits(Caller(scheduler, name, permit=permit)) is waits
    assert await scheduler.admit(frozenset({POLICY}), AT_ONCE) is None


async def test_call_that_leaves_the_line_leaves_its_place_to_others() -> None:
    """Also when it is cancelled in the moment of its turn."""
    scheduler = scheduler_of(engine("e1"))
    first, second, third = (Caller(scheduler, name) for name in "abc")
    await first.engine()
    await asyncio.sleep(0)
    await first.let_go()  # the turn is the second one's, which does not know it yet
    await second.leave()
    assert await third.engine() == "e1"
    assert scheduler.engines["e1"].taken == 1


async def test_room_goes_to_those_whose_prefixes_are_there() -> None:
    """Both wait; the first in line has its cache elsewhere."""
    scheduler = scheduler_of(engine("e1"), engine("e2"))
    one, two = Caller(scheduler, "of-e1"), Caller(scheduler, "of-e2")
    assert [await one.engine(), await two.engine()] == ["e1", "e2"]
    again_two, again_one = Caller(scheduler, "of-e2"), Caller(scheduler, "of-e1")
    await asyncio.sleep(0)
    await one.let_go()
    assert await again_one.engine() == "e1"
    await two.let_go()
    assert await again_two.engine() == "e2"


async def test_nobody_is_passed_over_for_ever() -> None:
    """Its own engine is busy with one long call; after some others it takes what there is."""
    scheduler = scheduler_of(engine("e1"), engine("e2"))
    busy, long = Caller(scheduler, "of-e1"), Caller(scheduler, "of-e2")
    assert [await busy.engine(), await long.engine()] == ["e1", "e2"]
    first = Caller(scheduler, "of-e2")
    for number in range(PASSED_OVER):
        following = Caller(scheduler, "of-e1")
        await asyncio.sleep(0)
        await busy.let_go()
        assert await following.engine() == "e1", number
        busy = following
    Caller(scheduler, "of-e1")
    await asyncio.sleep(0)
    await busy.let_go()
    assert await first.engine() == "e1"


async def test_session_whose_engine_cannot_be_had_is_at_home_everywhere() -> None:
    e1, e2 = engine("e1"), engine("e2")
    scheduler = scheduler_of(e1, e2)
    one, two = Caller(scheduler, "of-e1"), Caller(scheduler, "of-e2")
    await asyncio.gather(one.engine(), two.engine())
    first, second = Caller(scheduler, "of-e2"), Caller(scheduler, "of-e1")
    await asyncio.sleep(0)
    e2.suspect()
    await one.let_go()
    assert await first.engine() == "e1"
    assert await still_waits(second)


async def test_engine_that_failed_a_call_is_asked_last_and_one_that_does_not_answer_not_at_all() -> None:
    """Although the session's prefixes are in its cache."""
    e1, e2 = engine("e1", places=9), engine("e2", places=1)
    scheduler = scheduler_of(e1, e2)
    assert await Caller(scheduler, "s").engine() == "e1"
    e1.avoid()
    assert await Caller(scheduler, "s").engine() == "e2"
    assert await Caller(scheduler, "t").engine() == "e1"
    e1.suspect()
    waiting = Caller(scheduler, "t")
    assert await still_waits(waiting)
    e1.silent_since = None
    scheduler.offer(e1)
    assert await waiting.engine() == "e1"


async def test_engine_that_has_left_gets_no_calls_when_its_last_one_ends() -> None:
    """Its connection is closed; the call waits for another."""
    scheduler = scheduler_of(engine("e1"))
    first, waiting = Caller(scheduler, "a"), Caller(scheduler, "b")
    await first.engine()
    del scheduler.engines["e1"]
    await first.let_go()
    assert await still_waits(waiting)
    scheduler.engines["e2"] = e2 = engine("e2")
    scheduler.offer(e2)
    assert await waiting.engine() == "e2"


async def test_call_waits_for_an_engine_to_come_back_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    e1, time = engine("e1"), LoopTime(monkeypatch)
    scheduler = scheduler_of(e1, patience_seconds=3)
    e1.suspect()
    early = Caller(scheduler, "a")
    await time.pass_by(2)
    late = Caller(scheduler, "b")
    await time.pass_by(2)
    with pytest.raises(NoEngine, match=r"no engine of policy has answered for"):
        await early.engine()
    assert not late.got.done()
    e1.silent_since = None
    scheduler.offer(e1)
    assert await late.engine() == "e1"


async def test_call_waits_for_a_busy_engine_as_long_as_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience is for engines that do not answer."""
    e1, e2, time = engine("e1"), engine("e2"), LoopTime(monkeypatch)
    scheduler = scheduler_of(e1, e2, patience_seconds=3)
    first, second = Caller(scheduler, "a"), Caller(scheduler, "b")
    await asyncio.gather(first.engine(), second.engine())
    e2.suspect()
    waiting = Caller(scheduler, "c")
    await time.pass_by(4)
    await first.let_go()
    assert await waiting.engine() == "e1"


async def test_draining_engine_gets_no_calls() -> None:
    registered = RegisteredEngine(engine("e1").joined)
    scheduler = scheduler_of(EngineHandle(registered, VllmEngine("http://127.0.0.1:1"), FACTS, RULE, Pauses(None)))
    registered.draining = True
    assert await still_waits(Caller(scheduler, "a"))


async def test_frozen_engine_is_for_those_that_name_it() -> None:
    scheduler = scheduler_of(engine("e1"), engine("h1", policy=None))
    assert await Caller(scheduler, "a", Target(frozen="h1")).engine() == "h1"
    assert await Caller(scheduler, "a").engine() == "e1"
    assert await still_waits(Caller(scheduler, "b"))


class Choice:
    """An answer of a call that has an engine: waits for a place of its own there."""

    def __init__(self, scheduler: EngineScheduler, engine: EngineHandle) -> None:
        self.got: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._enough = asyncio.Event()
        self.task = asyncio.create_task(self._hold(scheduler, engine))
        TASKS.append(self.task)

    async def _hold(self, scheduler: EngineScheduler, engine: EngineHandle) -> None:
        async with scheduler.another(engine):
            self.got.set_result(engine.joined.engine_id)
            await self._enough.wait()

    async def let_go(self) -> None:
        self._enough.set()
        await self.task


async def test_answers_of_one_call_take_a_place_each_and_stand_in_line_with_others() -> None:
    """Neither does a call of many answers keep the others out, nor they it."""
    e1 = engine("e1", places=2)
    scheduler = scheduler_of(e1)
    large = Caller(scheduler, "large")
    await large.engine()
    second, third, fourth = Choice(scheduler, e1), Choice(scheduler, e1), Choice(scheduler, e1)
    assert await second.got == "e1"
    small = Caller(scheduler, "small")
    fifth = Choice(scheduler, e1)
    await turns()
    assert (e1.taken, third.got.done(), small.got.done()) == (2, False, False)
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
    scheduler = scheduler_of(e1)
    first, second = Caller(scheduler, "a"), Caller(scheduler, "b")
    await asyncio.gather(first.engine(), second.engine())
    early, late, waiting = Choice(scheduler, e1), Choice(scheduler, e1), Caller(scheduler, "c")
    await asyncio.sleep(0)
    late.task.cancel()
    await second.let_go()
    early.task.cancel()
    assert await waiting.engine() == "e1"
    assert e1.taken == 2


async def test_answers_that_wait_do_not_fill_the_queue_of_calls() -> None:
    e1 = engine("e1")
    scheduler = scheduler_of(e1, queue=1)
    await Caller(scheduler, "a").engine()
    choices = [Choice(scheduler, e1) for _ in range(4)]
    await asyncio.sleep(0)
    assert await scheduler.admit(frozenset({POLICY}), AT_ONCE) is not None
    assert not any(choice.got.done() for choice in choices)


async def test_calls_that_come_at_once_cannot_share_one_place() -> None:
    """Each is let in before it is placed, and takes the place itself only then."""
    scheduler = scheduler_of(engine("e1", policy="a"), queue=0)
    permits = [await scheduler.admit(A, 0.01) for _ in range(3)]
    assert [permit is not None for permit in permits] == [True, False, False]


async def test_held_calls_come_in_by_order_of_arrival_as_slots_free() -> None:
    """A later one does not overtake them; one for other engines is not held up."""
    e1 = engine("e1", places=4, policy="a")
    e1.taken = 4
    scheduler, came = scheduler_of(e1, engine("e2", policy="b"), queue=0), list[str]()

    async def come(name: str) -> None:
        if await scheduler.admit(A, 60.0) is not None:
            came.append(name)

    held = [asyncio.create_task(come(name)) for name in ("first", "second", "third")]
    await turns()
    other = await scheduler.admit(B, 0.01)
    assert other is not None
    other.release()
    e1.taken = 3
    scheduler.offer(e1)
    await turns()
    assert came == ["first"]
    e1.taken = 2
    held.append(asyncio.create_task(come("late")))
    await turns()
    assert came == ["first"]
    scheduler.offer(e1)
    await turns()
    assert came == ["first", "second"]
    e1.taken = 0
    scheduler.offer(e1)
    await asyncio.gather(*held)
    assert came == ["first", "second", "third", "late"]


async def test_permit_that_is_released_lets_the_next_one_in_once() -> None:
    """A call that needs no engine, or has one now."""
    scheduler = scheduler_of(engine("e1", policy="a"), queue=0)
    first = await scheduler.admit(A, 0.01)
    assert first is not None
    second, third = (asyncio.create_task(scheduler.admit(A, 1.0)) for _ in range(2))
    await turns()
    first.release()
    first.release()
    assert await second is not None
    assert await third is None


@pytest.mark.parametrize("late", [True, False])
async def test_call_that_goes_away_while_it_is_held_takes_no_place(*, late: bool) -> None:
    """Also in the moment when it is let in: its place is the next one's."""
    e1 = engine("e1", policy="a")
    e1.taken = 1
    scheduler = scheduler_of(e1, queue=0)
    gone, waits = (asyncio.create_task(scheduler.admit(A, 60.0)) for _ in range(2))
    await turns()
    if not late:
        gone.cancel()
        await asyncio.wait({gone})
    e1.taken = 0
    scheduler.offer(e1)
    if late:
        gone.cancel()
    assert await waits is not None


async def test_engine_that_is_given_up_ends_what_its_calls_do_with_the_reason() -> None:
    """Its calls are to go elsewhere; those at others go on, and nobody is given it before it answers."""
    e1, e2 = engine("e1"), engine("e2")
    scheduler = scheduler_of(e1, e2)
    one, two = Caller(scheduler, "a"), Caller(scheduler, "b")
    assert [await one.engine(), await two.engine()] == ["e1", "e2"]
    e1.give_up()
    with pytest.raises(EngineUnreachable, match="engine e1 is gone"):
        await one.let_go()
    assert (e1.taken, e1.holders, e1.usable) == (0, set(), False)
    assert await still_waits(Caller(scheduler, "c"))
    await two.let_go()


async def test_call_that_is_cancelled_as_its_engine_is_given_up_is_cancelled() -> None:
    """Its harness left: it is not asked again elsewhere."""
    e1 = engine("e1")
    caller = Caller(scheduler_of(e1), "a")
    await caller.engine()
    e1.give_up()
    await caller.leave()
    assert caller.cancelled
    assert e1.taken == 0


@pytest.mark.parametrize(
    ("error", "silent", "avoided"),
    [(EngineUnreachable("x"), True, True), (EngineError("x"), False, True), (ContextOverflow("x"), False, False)],
)
async def test_engine_is_judged_by_how_its_calls_end(error: EngineError, *, silent: bool, avoided: bool) -> None:
    """One that does not answer gets no calls, one that failed is asked last; a prompt that is too long says nothing of it."""
    e1 = engine("e1")
    with pytest.raises(EngineError):
        async with scheduler_of(e1).slots(POLICY, "s", AdmissionPermit()):
            raise error
    assert (e1.silent_since is not None, e1.failed_at > 0) == (silent, avoided)


@pytest.fixture(autouse=True)
async def tasks_end() -> AsyncIterator[Awaitable[None] | None]:
    """Calls that are still open end with the test."""
    yield None
    for task in TASKS:
        task.cancel()
    await asyncio.gather(*TASKS, return_exceptions=True)
    TASKS.clear()
