"""When the relay sends a call again, how soon, and when it must not."""

from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from tests.integration.test_relay import harness
from tests.support.frames_gateway import DIALECT, FramesGateway, Talk, cut_after_admission, frames_gateway, reply
from tests.support.loop import turns

from evener.dialects.canonical import NOTHING_STREAMED, Head
from evener.proto.ids import answer_identity
from evener.proto.relay import Admitted, Delta


@pytest.fixture
async def gateway() -> AsyncIterator[FramesGateway]:
    async with frames_gateway() as opened:
        yield opened


async def half_an_answer(talk: Talk) -> None:
    """Stream the beginning of a live answer, and die."""
    await talk.say(Admitted(prompt_tokens=3))
    answer_id, created = answer_identity(talk.seen.request_id)
    head = Head(answer_id=answer_id, created=created, model="policy", prompt_tokens=3)
    await talk.say(Delta(body=DIALECT.delta(head, "key", NOTHING_STREAMED, text="FIRST HALF")))
    await turns()  # until the relay has it
    talk.cut()


async def test_live_answer_that_is_lost_half_way_ends_in_an_error_and_is_not_asked_for_again(gateway: FramesGateway) -> None:
    """Another sampling would contradict what was seen. The gateway hears that nobody has the answer, should it have one."""
    gateway.script = [half_an_answer, reply("ANOTHER ANSWER")]
    async with harness(gateway) as agent:
        events = await agent.events()
    said = [event["choices"][0]["delta"].get("content") for event in events if event.get("choices")]
    assert "".join(filter(None, said)) == "FIRST HALF"
    assert [event["error"]["message"] for event in events if "error" in event] == ["the answer was lost half-way"]
    assert len(gateway.seen) == 1
    assert gateway.disconnected == [gateway.seen[0].request_id]


async def test_pauses_grow_although_each_try_was_admitted(gateway: FramesGateway) -> None:
    """What a call needs may be away for a while: its tries are not used up in a second."""
    gateway.script = [cut_after_admission] * 4 + [reply("hello")]
    async with harness(gateway) as agent:
        assert await agent.text() == "hello"
    pauses = [after.at - before.at for before, after in pairwise(gateway.seen)]
    assert [pause > least for pause, least in zip(pauses, (0.1, 0.2, 0.4, 0.8), strict=True)] == [True] * 4
