"""What a call costs the event loop while it is open: three tasks in the gateway, one more for each further answer, and one in its relay."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.integration.sdk import NONCE, Served, served
from tests.support.builders import listing
from tests.support.ports import closed_port
from tests.support.tasks import tasks_of
from tests.support.waiting import eventually

from evener.engines.scripted import Rule, Script, Wait
from evener.proto.spec import Streaming

SCRIPT = Script(rules=(Rule(match="at the gate", say="one two three four", wait=(Wait(before=3),)),), default=Rule(say="Hello."))
CALLS = 5


def counted() -> tuple[int, int]:
    return tasks_of("provider_gateway"), tasks_of("sandbox_runner")


async def ask(session: Served, text: str, **fields: Any) -> int:
    """Ask as a harness does; return the status when the whole answer has come."""
    body = {"model": "policy", "messages": [{"role": "user", "content": text}], **fields}
    headers = {"authorization": f"Bearer {NONCE}"}
    async with session.hand.http.post(f"{session.url}/v1/chat/completions", json=body, headers=headers) as answer:
        await answer.read()
        return answer.status


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("streaming", list(Streaming))
async def test_open_call_has_three_tasks_in_the_gateway_and_one_in_its_relay(tmp_path: Path, streaming: Streaming, *, stream: bool) -> None:
    """The server's and the one that waits for the relay to go are two of the three; the relay's is its server's."""
    async with served(tmp_path, SCRIPT, streaming=streaming) as session:
        assert await ask(session, "hi", stream=stream) == 200
        before = counted()
        asking = [asyncio.create_task(ask(session, f"at the gate {number}", stream=stream)) for number in range(CALLS)]
        await session.hand.engine.waiting(count=CALLS)
        await eventually(lambda: counted() == (before[0] + 3 * CALLS, before[1] + CALLS))
        session.hand.engine.go(times=CALLS)
        assert await asyncio.gather(*asking) == [200] * CALLS
        await eventually(lambda: counted() == before)


async def test_further_answers_have_a_task_each(tmp_path: Path) -> None:
    """A call for n answers has 3 + (n - 1) tasks in the gateway."""
    async with served(tmp_path, SCRIPT) as session:
        assert await ask(session, "hi") == 200
        before = counted()
        asking = asyncio.create_task(ask(session, "at the gate", n=CALLS))
        await session.hand.engine.waiting(count=CALLS)
        await eventually(lambda: counted() == (before[0] + 3 + CALLS - 1, before[1] + 1))
        session.hand.engine.go(times=CALLS)
        assert await asking == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_relay_that_pauses_between_tries_has_one_task(tmp_path: Path, *, stream: bool) -> None:
    """No gateway is at the address of the partition's owner."""
    async with served(tmp_path, SCRIPT) as session:
        assert await ask(session, "hi") == 200
        before = tasks_of("sandbox_runner", "service")
        session.owners.read([listing("h", f"http://127.0.0.1:{closed_port()}", 0, 1, epoch=9)])
        with capture_logs() as logged:
            asking = asyncio.create_task(ask(session, "hi", stream=stream))
            await eventually(lambda: any(entry["event"] == "call_sent_again" for entry in logged))
        assert tasks_of("sandbox_runner", "service") == before + 1
        asking.cancel()
