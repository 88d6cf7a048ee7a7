"""Tools that the policy's chat template does not render: served, and told wherever somebody looks."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tests.integration.test_gateway import SCRIPT, TOOLS, rebuilt
from tests.support.gateway import POLICY, Hand, gateway

from evener.proto.sessions import CallOpened, SessionSealed
from evener.provider_gateway.config import Config

USER = {"role": "user", "content": "Say hello."}


@pytest.fixture
async def hand(tmp_path: Path) -> AsyncIterator[Hand]:
    own = msgspec.structs.replace(POLICY, template="own")
    async with gateway(tmp_path, SCRIPT, config=Config(policies=(own,))) as opened:
        yield opened


async def test_calls_whose_tools_the_policy_never_saw_are_counted(hand: Hand) -> None:
    """SmolLM2's own template leaves tools out without an error: the record of each such call and the accounting says so."""
    capability = await hand.start("s1")
    await hand.say(capability, [USER], tools=TOOLS)
    await hand.say(capability, [USER, {"role": "user", "content": "Again."}])
    await hand.exit("s1")
    await hand.until("s1", SessionSealed)

    opened = [event for event in await hand.log("s1") if isinstance(event, CallOpened)]
    assert [event.tools_hidden for event in opened] == [True, False]
    assert (await rebuilt(hand, "s1")).accounting.calls_without_tools == 1
