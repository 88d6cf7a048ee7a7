"""Whose fault it is that a request has no answer, as the relay reports it: a fault of Evener's is never reported as the end of the
session."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Final

import pytest
from tests.integration.test_relay import BODY, NONCE, Harness, harness
from tests.support.builders import listing
from tests.support.frames_gateway import (
    FramesGateway,
    Step,
    Talk,
    admitted_silence,
    cut_after_admission,
    elsewhere,
    frames_gateway,
    held,
    overloaded,
    refuse,
    reply,
    silence,
    told,
)
from tests.support.loop import forever, turns
from tests.support.waiting import eventually

from evener.proto.reasons import CallFailure, ExitCause
from evener.proto.relay import Admitted, Answer, Waiting
from evener.proto.sessions import Failures
from evener.runtime.byte_budget import ByteBudget
from evener.sandbox_runner.sessions import Exit

UNKNOWING: Final = {
    401: "capability with a wrong signature",
    404: "session s is not known here",
    400: "header x-evener-request-id is missing",
    403: "a proxy on the way",
}
"""What gateways say that are misconfigured, or own the partition no more."""


@pytest.fixture
async def gateway() -> AsyncIterator[FramesGateway]:
    async with frames_gateway() as opened:
        yield opened


@pytest.mark.parametrize("status", UNKNOWING)
async def test_gateway_that_does_not_know_the_session_is_asked_again_and_its_harness_sees_nothing(
    gateway: FramesGateway, status: int
) -> None:
    """Our misconfiguration is not the end of the session: another gateway takes the partition over, or somebody mends this one."""
    gateway.script = [told(status, UNKNOWING[status])] * 2 + [reply("hello")]
    async with harness(gateway) as agent:
        assert await agent.text() == "hello"
        assert (agent.report.unanswered, agent.report.failures) == (None, ())
    assert len({seen.request_id for seen in gateway.seen}) == 1
    assert len(gateway.seen) == 3


async def test_the_owner_that_fleet_names_is_asked_after_one_that_does_not_know_the_session(gateway: FramesGateway) -> None:
    """The partition moved while the wrong one was asked."""
    async with frames_gateway() as other, harness(gateway) as agent:
        gateway.script = [told(401, "capability with a wrong signature")]
        asking = asyncio.create_task(agent.text())
        await gateway.asked()
        agent.owners.read([listing(other.url, other.url, 0, epoch=2)])
        assert await asking == "hello"


async def test_gateway_that_never_knows_the_session_is_reported_as_eveners_fault_with_its_message(gateway: FramesGateway) -> None:
    """After the limit the harness is told to try again later, and the attempt is run again."""
    gateway.script = [told(401, "capability with a wrong signature")]
    async with harness(gateway, admission_seconds=2.0) as agent, agent.post() as response:
        assert (response.status, (await response.json())["error"]["message"]) == (503, "no gateway admits the call now; try again")
        [failed] = agent.report.failures
        assert (told_at_exit(agent, 1).unanswered, failed.reason, failed.count) == (CallFailure.OVERLOADED, CallFailure.OVERLOADED, 1)
        assert failed.detail.endswith(f"({gateway.url}: status 401: capability with a wrong signature)")


@pytest.mark.parametrize("step", [told(401, "wrong key"), overloaded, silence, elsewhere("http://127.0.0.1:9")])
async def test_harness_that_leaves_a_request_that_no_gateway_admitted_may_have_left_for_that(gateway: FramesGateway, step: object) -> None:
    """Its own time-out is shorter than the relay's. An answer to a later request shows that it went on."""
    gateway.script = [step]  # type: ignore[list-item]
    async with harness(gateway, in_vain_seconds=0.0) as agent:
        asking = asyncio.create_task(agent.text())
        await gateway.asked()
        await turns()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await eventually(lambda: agent.report.left_in_vain)
        gateway.script = [reply("hello")]
        assert await agent.text() == "hello"
        assert told_at_exit(agent, 0).later_requests == (gateway.seen[-1].request_id,)


async def test_harness_that_leaves_while_its_engine_is_paused_may_have_left_for_that(gateway: FramesGateway) -> None:
    """It waited for new weights, or for the log, as its gateway said; its call was admitted, and perhaps sampled in part."""
    paused = asyncio.Event()

    async def pause(talk: Talk) -> None:
        await talk.say(Admitted(prompt_tokens=3))
        await talk.say(Waiting(seconds=0.1))
        paused.set()
        await forever()

    gateway.script = [pause]
    async with harness(gateway, in_vain_seconds=0.0, told_seconds=60.0) as agent:
        asking = asyncio.create_task(agent.text())
        await paused.wait()
        await turns()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await eventually(lambda: agent.report.left_in_vain)
        for code in (0, 1):
            assert told_at_exit(agent, code).unanswered is CallFailure.OVERLOADED


async def test_body_for_which_there_is_no_room_is_waited_for_unread(gateway: FramesGateway) -> None:
    """The agents of a machine send large bodies at the same time: together they would take its memory."""
    go = asyncio.Event()
    gateway.script = [held("first", go), reply("second")]
    async with harness(gateway, bodies=ByteBudget(100)) as agent:
        first = asyncio.create_task(agent.text())
        await gateway.asked()
        second = asyncio.create_task(agent.text())
        await agent.clock_stands()
        assert len(gateway.seen) == 1
        go.set()
        assert (await first, await second) == ("first", "second")
        assert agent.report.failures == ()


async def test_body_that_waits_for_room_too_long_is_refused_as_ours(gateway: FramesGateway) -> None:
    bodies = ByteBudget(10, shares=2)
    await bodies.share().take(10)
    async with harness(gateway, bodies=bodies, admission_seconds=0.01) as agent, agent.post() as response:
        assert response.status == 503
        assert told_at_exit(agent, 1).unanswered is CallFailure.OVERLOADED


async def test_harness_that_leaves_a_body_that_waits_for_room_may_have_left_for_that(gateway: FramesGateway) -> None:
    bodies = ByteBudget(10, shares=2)
    held_bytes = await bodies.share().take(10)
    async with harness(gateway, bodies=bodies, in_vain_seconds=0.0) as agent:
        leaving = asyncio.create_task(agent.text())
        await agent.clock_stands()
        leaving.cancel()
        await eventually(lambda: agent.report.left_in_vain)
        held_bytes.release()
        assert await agent.text() == "hello"


def told_at_exit(agent: Harness, code: int) -> Exit:
    """Return the relay's report if the harness exits now."""
    left = Exit(cause=ExitCause.EXITED, exit_code=code)
    left.tell(agent.report)
    return left


async def test_an_answer_beside_a_request_that_was_not_served_does_not_excuse_it(gateway: FramesGateway) -> None:
    """The harness may end for the one without the other, with any exit code. What it asks for afterwards shows that it went on."""
    go = asyncio.Event()
    gateway.script = [held("a title", go), refuse(503, "the log cannot be written"), reply("hello")]
    async with harness(gateway) as agent:
        title = asyncio.create_task(agent.text())
        await gateway.asked()
        async with agent.post() as response:
            assert response.status == 503
        go.set()
        assert await title == "a title"
        for code in (0, 1):
            left = told_at_exit(agent, code)
            assert (left.unanswered, left.later_requests) == (CallFailure.OVERLOADED, ())
        await agent.text()
        assert told_at_exit(agent, 0).later_requests == (gateway.seen[-1].request_id,)


async def test_counted_prompt_is_no_answer_to_what_was_not_served(gateway: FramesGateway) -> None:
    """Nothing was sampled for it."""

    async def counted(talk: Talk) -> None:
        await talk.say(Answer(status=200, body=b'{"input_tokens": 3}'))

    gateway.script = [refuse(503, "the log cannot be written"), counted]
    async with harness(gateway) as agent:
        for status, path in ((503, "/v1/messages"), (200, "/v1/messages/count_tokens")):
            async with agent.post({**BODY, "max_tokens": 9}, path=path) as response:
                assert response.status == status
        assert told_at_exit(agent, 1).unanswered is CallFailure.OVERLOADED


@pytest.mark.parametrize("steps", [[silence, admitted_silence], [admitted_silence, silence]], ids=["first", "last"])
async def test_harness_that_leaves_several_requests_may_have_left_for_the_one_in_vain(gateway: FramesGateway, steps: list[Step]) -> None:
    """Whichever of them the relay notices last."""
    gateway.script = list(steps)
    async with harness(gateway, in_vain_seconds=0.0) as agent:
        asking = []
        for count in range(1, len(steps) + 1):
            asking.append(asyncio.create_task(agent.text()))
            await gateway.asked(count)
        await turns()
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await gateway.told_of(len(steps))
        assert agent.report.left_in_vain is not None


async def test_answer_lost_half_way_is_reported_as_ours(gateway: FramesGateway) -> None:
    """A harness that dies of it did not fail."""
    gateway.script = [cut_after_admission]
    async with harness(gateway, call_seconds=0.5) as agent, agent.post() as response:
        assert response.status == 504
        assert told_at_exit(agent, 1).unanswered is CallFailure.OVERLOADED


async def test_refusals_are_counted_by_reason_with_what_the_last_one_was_told(gateway: FramesGateway) -> None:
    """What a gateway refused, and what never came to one."""
    refused = CallFailure.REFUSED
    gateway.script = [refuse(400, "logprobs: not served", failure=refused), refuse(400, "stop: not served", failure=refused)]
    async with harness(gateway) as agent:
        for _ in range(2):
            async with agent.post() as response:
                assert response.status == 400
        gateway.script = [reply("hello")]
        await agent.text()
        assert agent.report.failures == (Failures(reason=refused, count=2, detail="stop: not served"),)
        assert agent.report.unanswered is None


@pytest.mark.parametrize(
    ("path", "encoding", "body", "reason"),
    [
        ("/v1/chat/completions", "br", b"{}", CallFailure.REFUSED),
        ("/v1/chat/completions", "gzip", gzip.compress(b"", mtime=0) * 101, CallFailure.REFUSED),
        ("/v1/chat/completions", "gzip", b"{}", CallFailure.MALFORMED),
        ("/v1/chat/completions", "gzip", gzip.compress(b"{}", mtime=0)[:-1], CallFailure.MALFORMED),
        ("/v1/chat/completions", "identity", b" " * 5000, CallFailure.CONTEXT_OVERFLOW),
        ("/v1/embeddings", "identity", b"{}", CallFailure.REFUSED),
        ("/v1/completions", "identity", b"{}", CallFailure.REFUSED),
        ("/openai/v1/completions", "identity", b"{}", CallFailure.REFUSED),
        ("/v1beta/models/m:embedContent", "identity", b"{}", CallFailure.REFUSED),
        ("/v1/responses/compact", "identity", b"{}", CallFailure.REFUSED),
        ("/api/chat", "identity", b"{}", CallFailure.REFUSED),
        ("/v1/threads/x/runs", "identity", b"{}", CallFailure.REFUSED),
        ("/v1/conversations", "identity", b"{}", CallFailure.REFUSED),
        ("/v1/files", "identity", b"{}", CallFailure.REFUSED),
        ("/v1beta/cachedContents", "identity", b"{}", CallFailure.REFUSED),
        ("/v1/traces/x", "identity", b"{}", None),
        ("/api/event_logging/batch", "identity", b"{}", None),
        ("/v1/traces", "identity", b"{}", None),
    ],
)
async def test_what_the_relay_itself_refuses_is_reported(
    gateway: FramesGateway, path: str, encoding: str, body: bytes, reason: CallFailure | None
) -> None:
    """No gateway learns of the request, and the log has no call for it."""
    async with harness(gateway) as agent:
        headers = {"authorization": f"Bearer {NONCE}", "content-encoding": encoding}
        async with agent.http.post(agent.url + path, data=body, headers=headers) as response:
            assert response.status in {400, 404, 413}
        assert [failed.reason for failed in agent.report.failures] == ([] if reason is None else [reason])
    assert gateway.seen == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/embeddings"])
async def test_orphan_with_a_wrong_key_leaves_no_trace(gateway: FramesGateway, path: str) -> None:
    """A harness of an earlier session that meets a reused port says nothing about this one."""
    async with harness(gateway) as agent:
        async with agent.http.post(agent.url + path, json=BODY, headers={"authorization": "Bearer evkother"}) as response:
            assert response.status in {401, 404}
        assert (agent.report.failures, agent.report.unanswered, agent.report.left_in_vain) == ((), None, None)
    assert gateway.seen == []


LONG = "a" * 70_000
SERVED = ({"x-turn-metadata": LONG[:40_000]}, {f"x-{number}": "v" for number in range(400)})
UNPARSED = (
    f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-turn-metadata: {LONG}\r\n\r\n",
    f"POST /v1/chat/completions?x={LONG} HTTP/1.1\r\nhost: x\r\n\r\n",
    "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + "".join(f"x-{number}: v\r\n" for number in range(600)) + "\r\n",
    "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n: no name\r\n\r\n",
    "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
)


@pytest.mark.parametrize("headers", SERVED, ids=["long", "many"])
async def test_headers_beyond_what_is_usual_are_served(gateway: FramesGateway, headers: dict[str, str]) -> None:
    async with harness(gateway) as agent, agent.post(headers={"authorization": f"Bearer {NONCE}", **headers}) as response:
        assert response.status == 200
        assert agent.report.failures == ()


@pytest.mark.parametrize("request_lines", UNPARSED, ids=["header", "address", "headers", "no name", "two lengths"])
async def test_request_that_is_refused_before_it_is_parsed_is_reported(gateway: FramesGateway, request_lines: str) -> None:
    """Its harness may fail for that, after turns that were answered."""
    async with harness(gateway) as agent:
        await agent.text()
        said = await raw(agent.url, request_lines.encode())
        assert said.split()[1] == b"400"
        assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["type"] == "invalid_request_error"
        assert [(failed.reason, failed.count) for failed in agent.report.failures] == [(CallFailure.REFUSED, 1)]
        assert await agent.text() == "hello"


async def test_bytes_that_are_not_http_belong_to_no_request(gateway: FramesGateway) -> None:
    """The agent looks at the ports of its machine."""
    async with harness(gateway) as agent:
        await raw(agent.url, bytes.fromhex("16030100a5010000a10303") + bytes(200))
        assert agent.report.failures == ()


async def raw(url: str, data: bytes) -> bytes:
    """Send bytes and return what comes back until the relay closes the connection."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        writer.write(data)
        return await reader.read()
    finally:
        writer.close()
