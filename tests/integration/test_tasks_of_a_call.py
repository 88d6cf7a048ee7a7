"""What a call costs the event loop while it is open: three tasks in the gateway at most, and one in its relay."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.integration.sdk import NONCE, served
from tests.support.tasks import tasks_of

from evener.engines.scripted import Rule, Script, Wait
from evener.proto.spec import Streaming

SCRIPT = Script(rules=(Rule(match="at the gate", say="one two three four", wait=(Wait(before=3),)),), default=Rule(say="Hello."))
CALLS = 5


def counted() -> tuple[int, int]:
    return tasks_of("provider_gateway"), tasks_of("sandbox_runner")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("streaming", list(Streaming))
async def test_open_call_has_three_tasks_in_the_gateway_and_one_in_its_relay(tmp_path: Path, streaming: Streaming, *, stream: bool) -> None:
    """The server's and the one that waits for the relay to go are two of the three; the relay's is its server's."""
    async with served(tmp_path, SCRIPT, streaming=streaming) as session:

        async def ask(text: str) -> None:
            body: dict[str, Any] = {"model": "policy", "stream": stream, "messages": [{"role": "user", "content": text}]}
            headers = {"authorization": f"Bearer {NONCE}"}
            async with session.hand.http.post(f"{session.url}/v1/chat/completions", json=body, headers=headers) as answer:
                assert answer.status == 200
                await answer.read()

        await ask("hi")
        before = counted()
        asking = [asyncio.create_task(ask(f"at the gate {number}")) for number in range(CALLS)]
        await session.hand.engine.waiting(count=CALLS)
        async with asyncio.timeout(60):
            while (opened := counted()) != (before[0] + 3 * CALLS, before[1] + CALLS):
                assert all(now >= then for now, then in zip(opened, before, strict=True)), opened
                await asyncio.sleep(0.05)
        session.hand.engine.go(times=CALLS)
        await asyncio.gather(*asking)
        async with asyncio.timeout(60):
            while counted() != before:  # noqa: ASYNC110 - of no task that a test could wait for
                await asyncio.sleep(0.01)
