"""A gateway that lets its partitions go while a call is being sampled, and takes them over again."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support import builders
from tests.support.gateway import POLICY, Hand, gateway
from tests.support.waiting import eventually

from evener.engines.scripted import Rule, Script, Wait
from evener.proto.ids import new_request_id
from evener.proto.reasons import CallFailure
from evener.proto.sessions import CallClosed, CallFailed, CallOpened, SessionStarted
from evener.proto.spec import Streaming
from evener.proto.topics import Topic
from evener.provider_gateway.config import Config
from evener.provider_gateway.timings import GatewayTimings
from evener.service.owners import GATEWAY

SCRIPT = Script(rules=(Rule(match="at the gate", say="one two three four five six", wait=(Wait(before=4),), times=1),))
MESSAGES = [{"role": "user", "content": "at the gate"}]


@pytest.fixture
async def hand(tmp_path: Path) -> AsyncIterator[Hand]:
    config = Config(policies=(POLICY,), handover_seconds=0.1)
    async with gateway(tmp_path, SCRIPT, config=config, timings=GatewayTimings(outreached=0.0)) as opened:
        yield opened


async def other_gateway(hand: Hand, *, stopping: bool = False) -> None:
    """Let there be a gateway that reaches more engines, or let it stop."""
    beat = builders.heartbeat(GATEWAY, "other", at=time.time(), address="http://other", reaches=(POLICY.name, "more"), stopping=stopping)
    await hand.events.send(Topic.FLEET, "other", beat)


@pytest.mark.parametrize("streaming", Streaming)
async def test_tokens_of_a_call_that_a_handover_breaks_off_are_in_the_log(hand: Hand, streaming: Streaming) -> None:
    """The next owner samples the call again, and cannot know what was sampled before."""
    capability, request_id = await hand.start("s1", streaming=streaming), new_request_id()
    asking = asyncio.create_task(hand.ask(capability, MESSAGES, request_id, stream=True))
    await hand.at_the_gate()
    await other_gateway(hand)
    await asyncio.gather(asking, return_exceptions=True)
    (entry,) = await hand.engine.recorded(1)
    await eventually(lambda: not hand.ready()["partitions"])

    failed = await hand.until("s1", CallFailed)
    assert failed.reason is CallFailure.OWNER_LOST
    assert 0 < failed.sampled_tokens <= len(entry.sampled_ids)
    await other_gateway(hand, stopping=True)
    await eventually(lambda: hand.ready()["partitions"])
    assert (await hand.ask(capability, MESSAGES, request_id, stream=True)).status == 200
    assert [type(event) for event in await hand.log("s1")] == [SessionStarted, CallOpened, CallFailed, CallOpened, CallClosed]
