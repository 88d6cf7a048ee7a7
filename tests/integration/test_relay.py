"""The relay between a real HTTP client, the harness, and gateways that fail in every way they can."""

import asyncio
import gzip
import socket
import zlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry
from tests.support.builders import listing
from tests.support.frames_gateway import (
    FramesGateway,
    Step,
    Talk,
    admitted_silence,
    answer,
    byte_by_byte,
    cut_after_admission,
    cut_before_admission,
    cut_within_the_answer,
    elsewhere,
    ended_after,
    frames,
    frames_gateway,
    held,
    moving,
    overloaded,
    refuse,
    reply,
    silence,
    told,
)
from tests.support.server_sent_events import DONE, events_from, events_in
from tests.support.waiting import eventually
from yarl import URL

from evener.proto.reasons import CallFailure
from evener.proto.relay import Admitted, Waiting
from evener.proto.sessions import Failures
from evener.sandbox_runner.clock import AgentClock
from evener.sandbox_runner.exchange import Limits
from evener.sandbox_runner.gateway_client import GatewayClient
from evener.sandbox_runner.relay import Opening, Report, open_relay
from evener.sandboxes.port import LOOPBACK
from evener.service.owners import Owners
from evener.service.telemetry import metrics

NONCE = "evknonce"
LIMITS = Limits(admission_seconds=60, call_seconds=60, keep_alive_seconds=0.05, body_bytes=4096)
BODY = {"model": "policy", "messages": [{"role": "user", "content": "hi"}]}
LARGE = 16 << 20
"""Bytes of an answer that no buffers on the way hold."""


class Harness:
    """A client of the relay."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self.url = ""
        self.http = http
        self.now = 0.0
        """The time, which passes only when a test says so."""
        self.clock = AgentClock(lambda: self.now)
        self.owners = Owners()
        self.report = Report()

    async def clock_stands(self, *, stands: bool = True) -> None:
        """Wait until a call waits for something that is not the agent's doing; or until none does."""
        await eventually(lambda: bool(self.clock._waiting) is stands)

    def post(self, body: dict[str, Any] = BODY, *, path: str = "/v1/chat/completions", headers: dict[str, str] | None = None) -> Any:
        return self.http.post(self.url + path, json=body, headers=headers or {"authorization": f"Bearer {NONCE}"})

    async def text(self) -> str:
        """Ask, and return the answer's text."""
        async with self.post() as response:
            assert response.status == 200, await response.text()
            content: str = (await response.json())["choices"][0]["message"]["content"]
            return content

    async def events(self, **fields: Any) -> list[dict[str, Any]]:
        """Ask for a stream, and return its events; [DONE] is an empty one."""
        async with self.post({**BODY, "stream": True, **fields}) as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "text/event-stream"
            return [{} if event.data == DONE else event.value() for event in events_in(await response.read())]


@asynccontextmanager
async def harness(*gateways: FramesGateway, limits: Limits = LIMITS, **changes: Any) -> AsyncIterator[Harness]:
    """Open a relay whose session stands in partition 0, owned by the first gateway."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())
        agent = Harness(http)
        agent.owners.read(listing(gateway.url, gateway.url, 0) for gateway in gateways[:1])
        opening = Opening(
            session_id="s",
            nonce=NONCE,
            capability="cap",
            partition=0,
            models=("policy",),
            trace={"traceparent": "ours"},
            listening=socket.create_server((LOOPBACK, 0)),
        )
        for name, value in changes.items():
            limits = msgspec.structs.replace(limits, **{name: value})
        client, counted = GatewayClient(http, agent.owners), metrics(CollectorRegistry())
        relay = open_relay(opening, client, agent.clock, limits, metrics=counted, report=agent.report)
        agent.url = await stack.enter_async_context(relay)
        yield agent


@pytest.fixture
async def gateway() -> AsyncIterator[FramesGateway]:
    async with frames_gateway() as opened:
        yield opened


async def test_a_request_is_passed_on_with_its_capability_and_without_its_key(gateway: FramesGateway) -> None:
    """The gateway sees the harness's body, path and harmless headers; the nonce stays here."""
    async with harness(gateway) as agent:
        own = {"x-retry-count": "1", "x-evener-capability": "forged", "traceparent": "the harness's", "tracestate": "its=1"}
        headers = {"authorization": f"Bearer {NONCE}", **own}
        async with agent.post(path="/s/anything/v1/chat/completions?beta=true", headers=headers) as response:
            assert (await response.json())["choices"][0]["message"]["content"] == "hello"

    [seen] = gateway.seen
    assert (seen.path, seen.capability, seen.body) == ("/v1/chat/completions?beta=true", "cap", BODY)
    assert seen.headers["x-retry-count"] == "1"
    assert (seen.headers["traceparent"], seen.headers.get("tracestate")) == ("ours", None)
    assert NONCE not in str(seen.headers)


@pytest.mark.parametrize(
    "header",
    [
        {"authorization": f"Bearer {NONCE}"},
        {"authorization": f"bearer {NONCE}"},
        {"authorization": f"BEARER  {NONCE}"},
        {"x-api-key": NONCE},
        {"x-goog-api-key": NONCE},
    ],
)
async def test_the_key_may_come_in_any_dialects_header(gateway: FramesGateway, header: dict[str, str]) -> None:
    """A harness sends its key as its own client does."""
    async with harness(gateway) as agent, agent.post(headers=header) as response:
        assert response.status == 200


@pytest.mark.parametrize("header", [{"x-none": "x"}, {"authorization": "Bearer its-own"}])
async def test_the_key_may_be_in_the_base_url(gateway: FramesGateway, header: dict[str, str]) -> None:
    """For a harness that sends no key, or one that is not ours to choose; the gateway sees neither."""
    async with harness(gateway) as agent:
        async with agent.post(path=f"/s/{NONCE}/v1/chat/completions?beta=true", headers=header) as response:
            assert response.status == 200
        for name in (NONCE[:-1], f"{NONCE}x", "s"):
            async with agent.post(path=f"/s/{name}/v1/chat/completions", headers=header) as response:
                assert response.status == 401

    [seen] = gateway.seen
    assert seen.path == "/v1/chat/completions?beta=true"
    assert NONCE not in str(seen.headers)


async def test_an_orphan_with_another_key_is_refused_and_leaves_no_trace(gateway: FramesGateway) -> None:
    """It meets a reused port with the nonce of a dead start."""
    async with harness(gateway) as agent:
        for headers in ({"authorization": "Bearer evkother"}, {"x-api-key": ""}, {"x-none": "x"}):
            async with agent.post(headers=headers) as response:
                assert response.status == 401
                assert "opens no session" in (await response.json())["error"]["message"]

    assert gateway.seen == []


@pytest.mark.parametrize("failure", [cut_before_admission, cut_after_admission, cut_within_the_answer, overloaded])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_gateway_that_fails_is_asked_again_under_the_same_id(gateway: FramesGateway, failure: Step, *, stream: bool) -> None:
    """In `buffered` the harness notices nothing."""
    gateway.script = [failure, failure, reply("hello")]
    async with harness(gateway) as agent:
        if stream:
            events = await agent.events()
            assert [event["choices"][0]["delta"].get("content") for event in events if event][-2:] == ["hello", None]
        else:
            assert await agent.text() == "hello"

    assert len(gateway.seen) == 3
    assert len({seen.request_id for seen in gateway.seen}) == 1
    assert [seen.started for seen in gateway.seen][1:] == [stream and failure in {cut_after_admission, cut_within_the_answer}] * 2
    assert gateway.disconnected == []


@pytest.mark.parametrize("stream", [False, True])
async def test_frames_may_come_byte_by_byte(gateway: FramesGateway, *, stream: bool) -> None:
    """Wherever the network divides them."""
    gateway.script = [byte_by_byte("hello \u00e9")]
    async with harness(gateway) as agent:
        if stream:
            events = await agent.events()
            assert "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event) == "hello \u00e9"
        else:
            assert await agent.text() == "hello \u00e9"

    assert len(gateway.seen) == 1


async def test_a_gateway_that_ends_after_any_byte_of_its_frames_is_asked_again(gateway: FramesGateway) -> None:
    """The part of its answer that arrived is not taken for the whole."""
    at_once, ends = asyncio.Semaphore(20), dict[str, int]()

    async def once(talk: Talk) -> None:
        again = talk.seen.request_id in ends
        end = ends.setdefault(talk.seen.request_id, len(ends))
        await (reply("hello") if again else ended_after(end))(talk)

    async def ask(agent: Harness) -> str:
        async with at_once:
            return await agent.text()

    async with harness(gateway) as agent:
        await agent.text()
        whole = len(frames(gateway.seen.pop(), "never seen"))
        gateway.script = [once]
        texts = await asyncio.gather(*(ask(agent) for _ in range(whole)))

    assert texts == ["hello"] * whole
    assert len(gateway.seen) == 2 * whole


async def test_another_request_has_another_id(gateway: FramesGateway) -> None:
    """Equal requests are new samples: only the relay's own re-send repeats an id."""
    async with harness(gateway) as agent:
        await agent.text()
        await agent.text()

    assert len({seen.request_id for seen in gateway.seen}) == 2


async def test_a_frozen_owner_is_left_when_fleet_names_another(gateway: FramesGateway) -> None:
    """Its connection stays open and silent for ever."""
    gateway.script = [admitted_silence]
    async with frames_gateway() as heir, harness(gateway) as agent:
        asking = asyncio.create_task(agent.text())
        await gateway.asked()
        agent.owners.read([listing(heir.url, heir.url, 0, epoch=2)])
        assert await asyncio.wait_for(asking, 60) == "hello"

        assert heir.seen[0].request_id == gateway.seen[0].request_id


async def test_a_request_that_a_gateway_could_not_serve_is_reported_with_the_exit(gateway: FramesGateway) -> None:
    """Its log cannot be written, so that nothing but the relay knows of it: the harness did not fail by itself."""
    gateway.script = [refuse(503, "the log cannot be written"), reply("hello")]
    async with harness(gateway) as agent:
        async with agent.post(BODY) as response:
            assert response.status == 503
        assert agent.report.unanswered is not None
        assert agent.report.unanswered.reason is CallFailure.OVERLOADED
        await agent.text()
        assert len(agent.report.unanswered.later_requests) == 1


async def test_a_gateway_that_does_not_own_the_session_says_who_does(gateway: FramesGateway) -> None:
    """`fleet` lags behind; the redirection holds although `fleet` still names the first."""
    async with frames_gateway() as owner, harness(gateway) as agent:
        gateway.script = [elsewhere(owner.url)]
        assert await agent.text() == "hello"
        assert (len(gateway.seen), len(owner.seen)) == (1, 1)


async def test_a_call_waits_for_the_next_owner_of_a_partition_that_is_handed_over(gateway: FramesGateway) -> None:
    """Its agent does not pay for that, nothing of it is lost, and the first owner is not asked again and again."""
    gateway.script = [moving]
    async with frames_gateway() as heir, harness(gateway) as agent:
        asking = asyncio.create_task(agent.text())
        await gateway.asked()
        agent.owners.read([listing(gateway.url, gateway.url, 0, releasing=True)])
        await agent.clock_stands()
        asking_too = asyncio.create_task(agent.text())
        agent.now += 100
        agent.owners.read([listing(gateway.url, gateway.url)])
        agent.owners.read([listing(heir.url, heir.url, 0, epoch=2)])
        assert await asyncio.wait_for(asking, 60) == await asyncio.wait_for(asking_too, 60) == "hello"
        assert (len(gateway.seen), len(heir.seen)) == (1, 2)

    assert agent.clock.seconds() == 0


async def test_a_handover_takes_nothing_from_the_time_for_admission(gateway: FramesGateway) -> None:
    """Calls in flight may take longer than that, and the harness of another call is not to notice."""
    async with frames_gateway() as heir, harness(gateway, admission_seconds=0.5) as agent, harness(admission_seconds=0.5) as other:
        agent.owners.read([listing(gateway.url, gateway.url, 0, releasing=True)])
        asking = asyncio.create_task(agent.text())
        await agent.clock_stands()
        async with other.post() as response:  # its partition has no owner
            assert response.status == 503
        assert not asking.done()
        agent.owners.read([listing(gateway.url, gateway.url), listing(heir.url, heir.url, 0, epoch=2)])
        assert await asyncio.wait_for(asking, 60) == "hello"
        assert gateway.seen == []


async def test_an_owner_that_hands_over_is_asked_for_what_it_has_begun(gateway: FramesGateway) -> None:
    """The connection broke, and the call is still in flight there."""
    gateway.script = [cut_after_admission, reply("hello")]
    async with frames_gateway() as other, harness(gateway) as agent:
        asking = asyncio.create_task(agent.text())
        await gateway.asked()
        agent.owners.read([listing(gateway.url, gateway.url, 0, releasing=True)])
        assert await asyncio.wait_for(asking, 60) == "hello"
        assert other.seen == []


async def test_a_call_waits_for_an_owner(gateway: FramesGateway) -> None:
    """Nobody owns the partition between a gateway's death and its heir's take-over."""
    async with harness() as agent:
        asking = asyncio.create_task(agent.text())
        await agent.clock_stands()
        agent.owners.read([listing(gateway.url, gateway.url, 0)])
        assert await asyncio.wait_for(asking, 60) == "hello"


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_is_not_admitted_gets_503_before_any_header(gateway: FramesGateway, *, stream: bool) -> None:
    """One harness gives up after 60 s without headers; the gateway hears that nobody waits any more."""
    gateway.script = [silence]
    async with harness(gateway, admission_seconds=1.0) as agent:
        asking = asyncio.ensure_future(agent.post({**BODY, "stream": stream}))
        await agent.clock_stands()
        agent.now += 1000
        async with await asking as response:
            assert (response.status, response.headers["retry-after"]) == (503, "5")
            assert (await response.json())["error"]["type"] == "overloaded_error"
        assert agent.clock.seconds() == 0
        assert agent.report.unanswered is not None
        assert agent.report.unanswered.reason is CallFailure.OVERLOADED
        gateway.script = [reply("hello")]
        await agent.text()
        assert len(agent.report.unanswered.later_requests) == 1

    assert gateway.disconnected == [gateway.seen[0].request_id]


async def test_an_admitted_call_may_take_longer_than_admission(gateway: FramesGateway) -> None:
    """Once headers are out the relay goes on until the call's own limit, whatever is lost on the way."""
    gateway.script = [cut_after_admission, silence]
    async with harness(gateway, admission_seconds=1.0, call_seconds=3.0) as agent:
        events = await agent.events()

    assert events[-1]["error"]["message"] == "the call took too long"


async def test_a_stream_opens_at_admission_and_is_kept_alive(gateway: FramesGateway) -> None:
    """Prologue, harmless chunks, then everything at once; id and time are those of the gateway's answer."""
    go = asyncio.Event()
    gateway.script = [held("hello", go)]
    async with harness(gateway) as agent, agent.post({**BODY, "stream": True}) as response:
        assert response.status == 200
        events = []
        async for event in events_from(response.content):
            events.append(event)
            if len(events) == 6:
                go.set()

    chunks = [event.value() for event in events if event.data != DONE]
    deltas = [event["choices"][0]["delta"] for event in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[1:-2] == [{}] * (len(deltas) - 3)
    assert len(deltas) >= 6
    assert deltas[-2:] == [{"content": "hello"}, {}]
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert {(event["id"], event["created"], event["model"]) for event in chunks} == {
        (f"chatcmpl-{gateway.seen[0].request_id}", chunks[0]["created"], "policy")
    }


async def test_nothing_follows_the_end_of_an_answer_that_is_read_slowly(gateway: FramesGateway) -> None:
    """Harmless events stop where the answer begins: after the end one would be harmful, and between its halves too."""
    gateway.script = [reply("x" * LARGE)]
    async with harness(gateway, keep_alive_seconds=0.001) as agent, agent.post({**BODY, "stream": True}) as response:
        *_, text, finish, done = [event.data for event in events_in(await response.read())]

    assert ("x" * LARGE in text, '"finish_reason":"stop"' in finish, done) == (True, True, DONE)


async def test_errors_reach_the_harness_in_the_form_that_still_fits(gateway: FramesGateway) -> None:
    """A status and a body before the headers, an event after them, also when the gateway that opened the stream is gone."""
    async with harness(gateway) as agent:
        for stream in (False, True):
            gateway.script = [refuse(400, "no such model")]
            async with agent.post({**BODY, "stream": stream}) as response:
                assert (response.status, (await response.json())["error"]["message"]) == (400, "no such model")

        gateway.script = [refuse(400, "too long", admitted=True)]
        assert (await agent.events())[-1]["error"]["message"] == "too long"
        gateway.script = [cut_after_admission, refuse(400, "budget")]
        assert (await agent.events())[-1]["error"]["message"] == "budget"


async def test_a_session_that_has_ended_ends_its_harness(gateway: FramesGateway) -> None:
    """400 is the one status after which no harness tries again."""
    gateway.script = [told(410, "session s has ended")]
    async with harness(gateway) as agent, agent.post() as response:
        assert (response.status, (await response.json())["error"]["message"]) == (400, "session s has ended")
        assert (agent.report.unanswered, agent.report.failures) == (None, ())


@pytest.mark.parametrize("stream", [False, True])
async def test_a_harness_that_leaves_is_reported(gateway: FramesGateway, *, stream: bool) -> None:
    """Only the relay knows that the harness left; the gateway aborts the call."""
    gateway.script = [admitted_silence]
    async with harness(gateway) as agent:
        asking = asyncio.create_task(agent.events() if stream else agent.text())
        await gateway.asked()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await gateway.told_of()

    assert gateway.disconnected == [gateway.seen[0].request_id]


async def test_closing_the_relay_ends_what_is_open(gateway: FramesGateway) -> None:
    """The session is over: its calls are aborted at the gateway."""
    gateway.script = [admitted_silence]
    async with harness(gateway) as agent:
        asking = asyncio.create_task(agent.text())
        await gateway.asked()
    with pytest.raises(aiohttp.ClientError):
        await asking

    assert gateway.disconnected == [gateway.seen[0].request_id]


async def test_the_agents_clock_counts_sampling_and_no_waits(gateway: FramesGateway) -> None:
    """Not the time until admission, not what the gateway reports as waits, not the time without a gateway."""
    async with harness() as agent:

        async def cut(talk: Talk) -> None:
            agent.now += 10  # not admitted yet
            await talk.say(Admitted(prompt_tokens=3))
            await agent.clock_stands(stands=False)
            agent.now += 100
            talk.cut()

        async def refused(talk: Talk) -> web.StreamResponse:
            agent.now += 1000  # lost
            return await overloaded(talk)

        async def answered(talk: Talk) -> None:
            await talk.say(Admitted(prompt_tokens=3))
            await agent.clock_stands(stands=False)
            agent.now += 10_000
            await talk.say(Waiting(seconds=10_000))
            agent.now += 100_000
            await talk.say(answer(talk.seen, {"content": "x"}))

        asking = asyncio.create_task(agent.text())
        await agent.clock_stands()
        agent.now += 1  # no owner
        gateway.script = [cut, refused, answered]
        agent.owners.read([listing(gateway.url, gateway.url, 0)])
        await asking

    assert agent.clock.seconds() == 100 + 100_000


async def test_a_call_that_is_cut_off_ends_its_wait() -> None:
    """A harness that leaves while it waits must not stop the clock for good."""
    async with harness() as agent:
        asking = asyncio.create_task(agent.text())
        await agent.clock_stands()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await agent.clock_stands(stands=False)
        agent.now += 1
        assert agent.clock.seconds() == 1


async def test_a_request_that_is_too_large_is_refused_in_the_dialect(gateway: FramesGateway) -> None:
    """None of its bytes are kept in memory."""
    async with harness(gateway) as agent, agent.post({**BODY, "x": "x" * 5000}) as response:
        assert (response.status, "above 4096 bytes" in (await response.json())["error"]["message"]) == (413, True)

    assert gateway.seen == []


PLAIN = msgspec.json.encode(BODY)
MEMBERS = gzip.compress(PLAIN[:9], mtime=0) + gzip.compress(b"", mtime=0) + gzip.compress(PLAIN[9:], mtime=0)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(PLAIN, mtime=0)),
        ("GZIP", gzip.compress(PLAIN, mtime=0)),
        ("gzip", MEMBERS),
        ("deflate", zlib.compress(PLAIN)),
        ("identity", PLAIN),
    ],
)
async def test_a_compressed_request_is_decoded(gateway: FramesGateway, encoding: str, body: bytes) -> None:
    """The gateway gets it plain."""
    async with harness(gateway) as agent:
        headers = {"authorization": f"Bearer {NONCE}", "content-encoding": encoding}
        async with agent.http.post(f"{agent.url}/v1/chat/completions", data=body, headers=headers) as response:
            assert response.status == 200

    [seen] = gateway.seen
    assert seen.body == BODY
    assert "content-encoding" not in seen.headers


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1beta/models/m:generateContent"])
@pytest.mark.parametrize(
    ("encoding", "body", "told"),
    [
        ("gzip", b"{}", (400, "content-encoding: the body is not valid gzip")),
        ("gzip", gzip.compress(b"{}", mtime=0)[:-1], (400, "content-encoding: the body's gzip ends too soon")),
        ("gzip", gzip.compress(b"{}", mtime=0) + b"{}", (400, "content-encoding: the body is not valid gzip")),
        ("gzip", gzip.compress(b"", mtime=0) * 101, (400, "content-encoding: the body's gzip has more than 100 members")),
        ("gzip", MEMBERS[:-1], (400, "content-encoding: the body's gzip ends too soon")),
        ("deflate", b"{}", (400, "content-encoding: the body is not valid deflate")),
        ("deflate", zlib.compress(b"{}")[:-1], (400, "content-encoding: the body's deflate ends too soon")),
        ("deflate", zlib.compress(b"{}") + b"{}", (400, "content-encoding: the body is not valid deflate")),
        ("br", b"{}", (400, "content-encoding: br is not served")),
        ("zstd", b"{}", (400, "content-encoding: zstd is not served")),
        ("gzip, gzip", b"{}", (400, "content-encoding: gzip, gzip is not served")),
        ("gzip", gzip.compress(b" " * 5000, mtime=0), (413, "above 4096 bytes")),
        ("gzip", gzip.compress(b" " * 3000, mtime=0) * 2, (413, "above 4096 bytes")),
        ("deflate", zlib.compress(b" " * 5000), (413, "above 4096 bytes")),
    ],
)
async def test_a_request_that_cannot_be_decoded_is_refused_in_the_dialect(
    gateway: FramesGateway, path: str, encoding: str, body: bytes, told: tuple[int, str]
) -> None:
    """It names the header; what grows beyond all limits is not unpacked."""
    async with harness(gateway) as agent:
        headers = {"authorization": f"Bearer {NONCE}", "content-encoding": encoding}
        async with agent.http.post(agent.url + path, data=body, headers=headers) as response:
            assert (response.status, response.content_type) == (told[0], "application/json")
            assert told[1] in (await response.json())["error"]["message"]

    assert gateway.seen == []


async def test_a_header_that_is_no_text_is_refused_and_can_be_reported(gateway: FramesGateway) -> None:
    """An agent may send any bytes; an exit that cannot be encoded would be lost, and its session run again and again."""
    async with harness(gateway) as agent:
        at = URL(agent.url)
        reader, writer = await asyncio.open_connection(at.host, at.port)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: relay\r\nauthorization: Bearer {NONCE}\r\nconnection: close\r\n"
        writer.write(head.encode() + b"content-length: 2\r\ncontent-encoding: \xff\xfe\r\n\r\n{}")
        answer = await reader.read()
        writer.close()

        assert answer.startswith(b"HTTP/1.1 400 "), answer
        assert b"content-encoding" in answer.partition(b"\r\n\r\n")[2]
        [failed] = agent.report.failures
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(failed), type=Failures) == failed


async def test_request_that_is_no_model_call_is_answered_by_the_relay(gateway: FramesGateway) -> None:
    """The list of models, Claude's sign of life, everything else."""
    async with harness(gateway) as agent:
        async with agent.http.get(f"{agent.url}/v1/models") as response:
            assert [model["id"] for model in (await response.json())["data"]] == ["policy"]
        async with agent.http.head(f"{agent.url}/api/hello") as response:
            assert response.status == 200
        async with agent.post(path="/v1/embeddings") as response:
            told = (await response.json())["error"]
            assert (response.status, told["type"]) == (404, "not_found_error")
            assert "POST /v1/embeddings is not served; these are: POST /v1/chat/completions, " in told["message"]

    assert gateway.seen == []
