"""Several gateways on real Kafka that join, leave, stop, freeze and die while calls are open.

The calls stand at the engine's gate until the test lets them pass, so that each is open when its partition moves.
"""

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.gateways import Gateways, gateways
from tests.support.waiting import until

from evener.engines.scripted import Rule, Script
from evener.engines.scripted.script import Wait

pytestmark = pytest.mark.kafka

SCRIPT = Script(rules=(Rule(match="slowly", say="one two three", wait=(Wait(before=2),)),), default=Rule(say="Hello."))


@pytest.fixture
async def world(tmp_path: Path, kafka_servers: str) -> AsyncIterator[Gateways]:
    async with gateways(tmp_path, kafka_servers, SCRIPT) as opened:
        yield opened


async def test_gateway_that_joins_gets_its_share_when_the_open_calls_there_have_ended(world: Gateways) -> None:
    """Nothing is sampled twice, nothing is sent again; new calls of what moves wait for the new owner, and all others go on."""
    await world.start("a")
    await world.serve("a")
    sessions = await world.sessions()
    for session in sessions.values():
        world.ask(session, "slowly")
    await world.engine.waiting(count=len(sessions))
    await world.start("b")
    await world.holds(lambda: len(world.of("a", releasing=True)) == 2)
    moving, staying = world.of("a", releasing=True), world.of("a")
    assert len(staying) == 2
    held = [world.ask(await world.session(number)) for number in moving]
    for number in staying:
        assert await world.ask(await world.session(number)).text() == "Hello."
    assert all(asked.waits for asked in held)

    world.engine.go(times=None)
    assert await world.serve("a", "b") == {"a": staying, "b": moving}
    for session in sessions.values():
        world.ask(session, "again")
    await world.answered()


async def test_gateway_that_is_asked_to_stop_finishes_its_calls_and_hands_its_partitions_over(world: Gateways) -> None:
    """SIGTERM throws nothing away, and exits 0. What the other gateway had stays with it."""
    await world.start("a", "b")
    had = await world.serve("a", "b")
    sessions = await world.sessions()
    for session in sessions.values():
        world.ask(session, "slowly")
    await world.engine.waiting(count=len(sessions))
    world.tell("b", signal.SIGTERM)
    await world.holds(lambda: world.of("b", releasing=True) == had["b"])
    held = [world.ask(await world.session(number)) for number in had["b"]]
    assert world.of("a") == had["a"]
    assert all(asked.waits for asked in held)

    world.engine.go(times=None)
    assert await world.programs["b"].ended() == 0
    await world.serve("a")
    for session in sessions.values():
        world.ask(session, "again")
    await world.answered()


async def test_partition_that_comes_back_while_it_is_handed_over_is_served_on(world: Gateways) -> None:
    """The gateway that was to have it died before it took it: the open calls go on as if nothing had happened."""
    await world.start("a")
    await world.serve("a")
    sessions = await world.sessions()
    for session in sessions.values():
        world.ask(session, "slowly")
    await world.engine.waiting(count=len(sessions))
    held = {number: world.owners.hold(number) for number in world.partitions}
    await world.start("b")
    await world.holds(lambda: len(world.of("a", releasing=True)) == 2)
    world.tell("b", signal.SIGKILL)
    await world.serve("a")
    assert {number: world.owners.hold(number) for number in world.partitions} == held
    for session in sessions.values():
        assert await world.ask(session).text() == "Hello."

    world.engine.go(times=None)
    await world.answered()


async def test_only_gateway_finishes_its_calls_when_it_is_asked_to_stop(world: Gateways) -> None:
    """There is nobody to hand over to; calls that come meanwhile are served by the next process."""
    await world.start("a")
    await world.serve("a")
    session = await world.session(0)
    slow = world.ask(session, "slowly")
    await world.engine.waiting()
    world.tell("a", signal.SIGTERM)
    await world.holds(lambda: len(world.of("a", releasing=True)) == len(world.partitions))
    held = world.ask(await world.session(0))
    world.engine.go(times=None)
    assert await slow.text() == "one two three"
    assert await world.programs["a"].ended() == 0
    assert held.waits

    await world.start("a")
    assert await held.text() == "Hello."
    world.ask(session, "again")
    await world.answered()


async def test_calls_of_a_killed_gateway_are_served_by_the_other(world: Gateways) -> None:
    """Its partitions move and no others; only its own open calls are sampled again."""
    await world.start("a", "b")
    had = await world.serve("a", "b")
    sessions = await world.sessions()
    for session in sessions.values():
        world.ask(session, "slowly")
    await world.engine.waiting(count=len(sessions))
    world.tell("b", signal.SIGKILL)
    await world.holds(lambda: len(world.of("a")) == len(world.partitions))
    await world.engine.waiting(count=len(sessions))
    world.engine.go(times=None)
    for asked in world.asked:
        assert await asked.text() == "one two three"

    again = {number: asked.sent_again for number, asked in zip(sessions, world.asked, strict=True)}
    assert {number for number, times in again.items() if times} == had["b"]
    assert len(world.engine.ledger) == len(sessions) + len(had["b"])


async def test_gateway_that_was_frozen_does_not_disturb_who_took_over_and_gets_a_share_again(world: Gateways) -> None:
    """When it wakes it still lists its old partitions, with a lower epoch: nobody believes it, and it gives them up."""
    await world.start("a", "b")
    frozen = min((await world.serve("a", "b"))["b"])
    sessions = await world.sessions()
    asked = world.ask(sessions[frozen], "slowly")
    await world.engine.waiting()
    world.tell("b", signal.SIGSTOP)
    await world.holds(lambda: len(world.of("a")) == len(world.partitions))
    await world.engine.waiting(count=2)
    world.engine.go(times=None)
    assert await asked.text() == "one two three"
    world.tell("b", signal.SIGCONT)  # with an answer that it would commit
    await world.serve("a", "b")
    for session in sessions.values():
        assert await world.ask(session, "again").text() == "Hello."


async def test_gateway_that_is_killed_and_started_again_continues(world: Gateways) -> None:
    """Whether or not the group noticed before it came back."""
    await world.start("a", "b")
    await world.serve("a", "b")
    sessions = await world.sessions()
    world.tell("b", signal.SIGKILL)
    await world.programs["b"].ended()
    await world.start("b")
    for session in sessions.values():
        assert await world.ask(session).text() == "Hello."

    await world.serve("a", "b")


async def test_gateway_that_reaches_no_engine_leaves_its_partitions_to_one_that_does(world: Gateways) -> None:
    """Its sessions would wait for ever beside an idle gateway. Alone it keeps them: nothing ends without an owner."""
    await world.start("lacks", policies="other")
    await world.serve("lacks")
    waiting = world.ask(await world.session(0))
    await world.start("a", policies="policy other")

    await world.serve("a")
    assert await waiting.text() == "Hello."


async def test_gateways_share_the_limit_of_an_engine(world: Gateways) -> None:
    """Two of them would give it twice as many calls as it takes."""
    await world.join("e1", world.engine.url, max_concurrency=2)
    await world.start("a", "b")
    await world.serve("a", "b")
    sessions = await world.sessions()
    for session in sessions.values():
        world.ask(session, "slowly")
    await world.engine.waiting(count=2)
    for name in ("a", "b"):
        assert await until(lambda: world.metric(name, "evener_calls_waiting"), lambda waiting: waiting == 1) == 1  # noqa: B023 - at once
    assert world.engine.sampling == 2

    world.engine.go(times=None)
    await world.answered()
