"""Transport retries of harnesses, at the gateway: the twin's answer, its sampling, or a new sample that supersedes it."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tests.integration.test_gateway import rebuilt
from tests.support.gateway import Hand, gateway
from tests.support.held import Hold
from tests.support.server_sent_events import events_in

from evener.engines.scripted import Rule, Script, Wait
from evener.proto.ids import new_request_id
from evener.proto.reasons import ExclusionReason
from evener.proto.relay import STEP, Admitted, AnyFrame
from evener.proto.sessions import CallClosed, CallDelivered, CallOpened, CallUndelivered, RootReason, SessionSealed
from evener.proto.spec import Quirks
from evener.proto.trajectories import TrajectoryBuilt

QUIRKS = Quirks(retry_header="x-stainless-retry-count")
MARKED = {"x-stainless-retry-count": "1"}
FIRST = {"x-stainless-retry-count": "0"}
SCRIPT = Script(
    rules=(
        Rule(match="slowly", say="one two three four five six seven eight", wait=(Wait(before=4),)),
        Rule(match="wrongly", say="one two three four five six seven eight", wait=(Wait(before=4),), report="short"),
    ),
    default=Rule(say="Hello."),
)
HELLO = [{"role": "user", "content": "hi"}]
SLOWLY = [{"role": "user", "content": "slowly"}]


@pytest.fixture
async def hand(tmp_path: Path) -> AsyncIterator[Hand]:
    async with gateway(tmp_path, SCRIPT) as opened:
        yield opened


async def sealed(hand: Hand, session_id: str) -> TrajectoryBuilt:
    await hand.exit(session_id)
    await hand.until(session_id, SessionSealed)
    trajectory: TrajectoryBuilt = await rebuilt(hand, session_id)
    return trajectory


async def test_marked_retry_of_an_answered_call_gets_its_answer_under_its_own_id(hand: Hand) -> None:
    """Sampled once, trained once; the answer says whom it is for."""
    capability = await hand.start("s1", quirks=QUIRKS)
    first = await hand.ask(capability, HELLO, passed_on=FIRST)
    retry = new_request_id()
    again = await hand.ask(capability, HELLO, retry, passed_on=MARKED)
    assert len(hand.engine.ledger) == 1
    one, two = (msgspec.json.decode(answer.body) for answer in (first, again))
    assert one["choices"] == two["choices"]
    assert two["id"] == f"chatcmpl-{retry}" != one["id"]
    assert (await hand.until("s1", CallDelivered)).request_id == retry
    assert (await sealed(hand, "s1")).accounting.delivered > 0


async def test_equal_request_without_a_mark_is_a_new_sample(hand: Hand) -> None:
    """A voting harness."""
    capability = await hand.start("s1", quirks=QUIRKS)
    await hand.ask(capability, HELLO, passed_on=FIRST)
    await hand.ask(capability, HELLO, passed_on=FIRST)
    assert len(await hand.engine.recorded(2)) == 2
    assert len((await sealed(hand, "s1")).rows) == 2


async def test_answer_that_nobody_received_goes_to_the_retry_and_is_trained(hand: Hand) -> None:
    """Without a mark: its twin's connection is gone. A leaving retry makes it an orphan again."""
    capability = await hand.start("s1")
    request_id, retry = new_request_id(), new_request_id()
    await hand.ask(capability, HELLO, request_id)
    await hand.disconnect(capability, request_id)
    await hand.ask(capability, HELLO, retry)
    assert len(hand.engine.ledger) == 1
    assert (await sealed(hand, "s1")).accounting.delivered > 0

    capability = await hand.start("s2")
    await hand.ask(capability, HELLO, request_id := new_request_id())
    await hand.disconnect(capability, request_id)
    await hand.ask(capability, HELLO, retry := new_request_id())
    await hand.disconnect(capability, retry)
    assert (await sealed(hand, "s2")).accounting.excluded.keys() == {ExclusionReason.ORPHAN}


async def test_marked_retry_joins_its_twin_and_keeps_it_alive_when_the_twin_leaves(hand: Hand) -> None:
    """The client opens its second connection before the first one is known to be gone."""
    capability = await hand.start("s1", quirks=QUIRKS)
    request_id = new_request_id()
    first = await hand.admitted(capability, SLOWLY, request_id)
    second = await hand.admitted(capability, SLOWLY, passed_on=MARKED)
    await hand.disconnect(capability, request_id)
    hand.engine.go(times=None)
    one, two = await asyncio.gather(first, second)
    assert (one.status, two.status) == (200, 200)
    assert len(hand.engine.ledger) == 1
    log = await hand.log("s1")
    assert sum(isinstance(event, CallClosed) for event in log) == 1
    assert [event.request_id for event in log if isinstance(event, CallUndelivered)] == [request_id]
    trajectory = await sealed(hand, "s1")
    assert trajectory.accounting.excluded == {}


async def test_marked_retry_that_leaves_before_its_twin_is_answered_was_not_delivered_to(hand: Hand) -> None:
    """Its relay may still listen."""
    capability = await hand.start("s1", quirks=QUIRKS)
    first = await hand.admitted(capability, SLOWLY)
    retry, frames, joined = new_request_id(), list[AnyFrame](), asyncio.Event()

    async def listen() -> None:
        async for frame in hand.frames(capability, {"model": "m", "messages": SLOWLY}, retry, passed_on=MARKED):
            frames.append(frame)
            joined.set()

    second = asyncio.create_task(listen())
    await joined.wait()
    await hand.disconnect(capability, retry)
    hand.engine.go(times=None)
    assert (await first).status == 200
    await second
    assert [type(frame) for frame in frames] == [Admitted]
    assert len(hand.engine.ledger) == 1
    assert not any(isinstance(event, CallDelivered) for event in await hand.log("s1"))


async def test_marked_retry_of_an_aborted_call_is_sampled_again_and_supersedes_it(hand: Hand) -> None:
    """The first connection broke in mid-answer."""
    capability = await hand.start("s1", quirks=QUIRKS)
    request_id = new_request_id()
    asking = await hand.admitted(capability, SLOWLY, request_id)
    await hand.engine.waiting()
    await hand.disconnect(capability, request_id)
    await asking
    hand.engine.go(times=None)
    assert (await hand.ask(capability, SLOWLY, passed_on=MARKED)).status == 200
    first, second = (event for event in await hand.log("s1") if isinstance(event, CallOpened))
    assert second.retry_of == first.call_id
    trajectory = await sealed(hand, "s1")
    assert trajectory.accounting.excluded.keys() == {ExclusionReason.ORPHAN}
    assert len(trajectory.rows) == 1


async def test_sub_agent_is_recognised_by_its_header_where_its_prompt_is_the_same(hand: Hand) -> None:
    """Codex sends one prompt for all its agents; a conversation without the header is no sub-agent's."""
    capability = await hand.start("s1", quirks=Quirks(sub_agent_header="x-openai-subagent"))
    system = {"role": "system", "content": "You are an agent."}
    await hand.ask(capability, [system, *HELLO])
    await hand.ask(capability, [system, {"role": "user", "content": "the part"}], passed_on={"x-openai-subagent": "collab_spawn"})
    await hand.ask(capability, [system, {"role": "user", "content": "another"}])
    opened = [event for event in await hand.log("s1") if isinstance(event, CallOpened)]
    assert [event.placement.root for event in opened] == [RootReason.FIRST, RootReason.SUB_AGENT, RootReason.FIRST]
    assert [event.marks for event in opened] == [(), ("x-openai-subagent",), ()]


async def test_calls_have_the_step_that_the_relay_names(hand: Hand) -> None:
    """Each step of a task has a harness of its own: a conversation that begins in the next is no sub-agent's."""
    capability = await hand.start("s1")
    for step in (1, 2):
        await hand.ask(capability, [{"role": "user", "content": f"step {step}"}], passed_on={STEP: str(step)})
    opened = [event for event in await hand.log("s1") if isinstance(event, CallOpened)]
    assert [event.step for event in opened] == [1, 2]


@pytest.mark.parametrize("streams", [(True, False), (False, True)])
async def test_error_of_a_shared_call_has_the_form_of_each_request(hand: Hand, streams: tuple[bool, bool]) -> None:
    """A stream that is open ends with an event; a request that is not streamed gets a body."""
    capability = await hand.start("s1", quirks=QUIRKS)
    messages = [{"role": "user", "content": "wrongly"}]
    first = await hand.admitted(capability, messages, stream=streams[0], passed_on=FIRST)
    second = await hand.admitted(capability, messages, stream=streams[1], passed_on=MARKED)
    hand.engine.go(times=None)
    answers = await asyncio.gather(first, second)
    assert len(hand.engine.ledger) == 1
    assert [answer.status for answer in answers] == [503, 503]
    for answer, stream in zip(answers, streams, strict=True):
        told = events_in(answer.body)[0].value() if stream else msgspec.json.decode(answer.body)
        assert "service unavailable" in told["error"]["message"]


async def test_answer_that_is_being_delivered_to_a_retry_is_part_of_the_seal(hand: Hand, hold: Hold) -> None:
    """The harness exits while the retry's delivery is committed: the rows are cut after that, not before."""
    capability = await hand.start("s1")
    request_id = new_request_id()
    await hand.ask(capability, HELLO, request_id)
    await hand.disconnect(capability, request_id)
    delivery = hold("gateway.commit")
    retry = asyncio.create_task(hand.ask(capability, HELLO))
    await delivery.reached()
    await hand.exit("s1")
    await hand.log_is_read("s1")
    delivery.let_go()
    assert (await retry).status == 200
    seal = await hand.until("s1", SessionSealed)
    trajectory = await rebuilt(hand, "s1")
    assert trajectory.rows_digest == seal.rows_digest
    assert trajectory.accounting.delivered > 0
    assert [type(event) for event in await hand.log("s1")][-2:] == [CallDelivered, SessionSealed]
