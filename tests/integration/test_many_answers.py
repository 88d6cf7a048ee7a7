"""Calls that ask for several answers (`n`), at an engine that takes few requests at once."""

import asyncio
import json
from pathlib import Path

from tests.integration.test_gateway import rebuilt
from tests.support.gateway import gateway

from evener.engines.scripted import Rule, Script, Wait
from evener.proto.sessions import SessionSealed

SCRIPT = Script(rules=(Rule(match="vote", say="Yes.", wait=(Wait(before=2),)),), default=Rule(say="Hello."))
VOTE = [{"role": "user", "content": "vote"}]
TAKEN = 3
"""Requests at once."""


async def test_answers_are_sampled_as_many_at_a_time_as_the_engine_takes(tmp_path: Path) -> None:
    """All eight come, none is asked for beyond the limit, and a small call beside them has its turn."""
    async with gateway(tmp_path, SCRIPT) as hand:
        await hand.join("e1", hand.engine.url, max_concurrency=TAKEN)
        await hand.fleet_is_read()
        capability = await hand.start("s1")
        voting = asyncio.create_task(hand.ask(capability, VOTE, n=8))
        await hand.engine.waiting(count=TAKEN)
        small = asyncio.create_task(hand.ask(await hand.start("s2"), [{"role": "user", "content": "hi"}]))
        for answered in range(8):
            await hand.engine.waiting(count=min(TAKEN, 8 - answered))
            assert hand.engine.sampling <= TAKEN
            hand.engine.go()
            await hand.engine.recorded(answered + 1)
        assert (await small).status == 200
        answer = json.loads((await voting).body)
        assert [choice["message"]["content"] for choice in answer["choices"]] == ["Yes."] * 8
        await hand.exit("s1")
        await hand.until("s1", SessionSealed)
        assert len((await rebuilt(hand, "s1")).rows) == 8
