"""A gateway process as a relay sees it: real HTTP and real frames, its behaviour is written by the test, and its requests are kept."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct
from tests.support.loop import forever, turns
from tests.support.waiting import eventually

from evener.dialects.canonical import AnswerChoice, CanonicalAnswer, Head, RequestError
from evener.dialects.openai_chat import OpenAIChat
from evener.proto.codec import encode_frame
from evener.proto.ids import answer_identity
from evener.proto.reasons import CallFailure
from evener.proto.relay import CAPABILITY, MOVING, OWNER, REQUEST_ID, STARTED, Admitted, Answer, AnyFrame, Waiting
from evener.proto.sessions import FinishReason

DIALECT = OpenAIChat()
HEAD = Head(answer_id="a1", created=0, model="policy", prompt_tokens=3)
WAIT_SECONDS = 0.1


class Seen(Struct, frozen=True, kw_only=True):
    """One request as it came."""

    path: str
    request_id: str
    capability: str
    started: bool
    headers: dict[str, str]
    body: dict[str, Any]
    at: float


class Talk:
    """One request under way: what a step of the script may do with it."""

    def __init__(self, request: web.Request, seen: Seen) -> None:
        self.seen = seen
        self._request = request
        self._response: web.StreamResponse | None = None

    async def say(self, frame: AnyFrame) -> None:
        """Send a frame."""
        await (await self._opened()).write(encode_frame(frame))

    async def say_half(self, frame: AnyFrame) -> None:
        """Send the first half of a frame."""
        data = encode_frame(frame)
        await (await self._opened()).write(data[: len(data) // 2])

    async def say_bytes(self, data: bytes) -> None:
        """Send bytes, each alone."""
        response = await self._opened()
        for byte in data:
            await response.write(bytes([byte]))
            await asyncio.sleep(0)  # for who reads

    def cut(self) -> None:
        """Lose the connection."""
        assert self._request.transport is not None
        self._request.transport.abort()

    async def _opened(self) -> web.StreamResponse:
        if self._response is None:
            self._response = web.StreamResponse()
            await self._response.prepare(self._request)
        return self._response


Step = Callable[[Talk], Awaitable[web.StreamResponse | None]]


class FramesGateway:
    """Plays its script, one step a request; the last step repeats."""

    def __init__(self) -> None:
        self.url = ""
        self.script: list[Step] = [reply("hello")]
        self.seen: list[Seen] = []
        self.disconnected: list[str] = []

    async def asked(self, count: int = 1) -> None:
        """Wait until so many requests have come."""
        await eventually(lambda: len(self.seen) >= count)

    async def told_of(self, count: int = 1) -> None:
        """Wait until it was told of so many harnesses that they disconnected."""
        await eventually(lambda: len(self.disconnected) >= count)

    async def serve(self, request: web.Request) -> web.StreamResponse:
        seen = Seen(
            path=request.path_qs.removeprefix("/serve"),
            request_id=request.headers[REQUEST_ID],
            capability=request.headers[CAPABILITY],
            started=STARTED in request.headers,
            headers={name.lower(): value for name, value in request.headers.items()},
            body=msgspec.json.decode(await request.read()),
            at=time.monotonic(),
        )
        self.seen.append(seen)
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        talk = Talk(request, seen)
        response = await step(talk)
        return response or await talk._opened()

    async def disconnect(self, request: web.Request) -> web.Response:
        assert request.headers[CAPABILITY]
        self.disconnected.append(request.match_info["request_id"])
        return web.Response(status=204)


def answer(seen: Seen, message: dict[str, Any]) -> Answer:
    """Render an answer as a gateway would: after the prologue, if it is streamed."""
    answer_id, created = answer_identity(seen.request_id)
    reason = FinishReason.STOP
    canonical = CanonicalAnswer(
        answer_id=answer_id,
        created=created,
        model=seen.body["model"],
        choices=[AnswerChoice(message={"role": "assistant", "content": "", **message}, finish_reason=reason, key=f"{seen.request_id}x0")],
        prompt_tokens=3,
        cached_tokens=None,
        completion_tokens=2,
    )
    request = DIALECT.parse(seen.path, msgspec.json.encode(seen.body))
    render = DIALECT.events if request.stream else DIALECT.answer
    return Answer(status=200, body=render(request, canonical))


def reply(text: str = "", *, seconds: float = 0.0, waits: float = 0.0, tool: tuple[str, dict[str, Any]] | None = None) -> Step:
    """Admit, wait for `waits` seconds and say so as they pass, sample for `seconds`, answer."""

    async def step(talk: Talk) -> None:
        await talk.say(Admitted(prompt_tokens=3))
        for _ in range(round(waits / WAIT_SECONDS)):
            await asyncio.sleep(WAIT_SECONDS)
            await talk.say(Waiting(seconds=WAIT_SECONDS))
        await asyncio.sleep(seconds)
        message: dict[str, Any] = {"content": text}
        if tool is not None:
            message["tool_calls"] = [{"id": f"call{talk.seen.request_id}", "name": tool[0], "arguments": tool[1]}]
        await talk.say(answer(talk.seen, message))

    return step


def held(text: str, go: asyncio.Event) -> Step:
    """Admit, sample until it is let go, answer."""

    async def step(talk: Talk) -> None:
        await talk.say(Admitted(prompt_tokens=3))
        await go.wait()
        await talk.say(answer(talk.seen, {"content": text}))

    return step


def byte_by_byte(text: str) -> Step:
    """Answer, and let every byte of it come alone."""

    async def step(talk: Talk) -> None:
        await talk.say_bytes(frames(talk.seen, text))

    return step


def ended_after(count: int) -> Step:
    """End the response in good order, after so many bytes of an answer."""

    async def step(talk: Talk) -> None:
        await (await talk._opened()).write(frames(talk.seen, "never seen")[:count])

    return step


def frames(seen: Seen, text: str) -> bytes:
    """Return all that a gateway says of a call."""
    said: tuple[AnyFrame, ...] = (Admitted(prompt_tokens=3), Waiting(seconds=0.0), answer(seen, {"content": text}))
    return b"".join(encode_frame(frame) for frame in said)


async def cut_before_admission(talk: Talk) -> None:
    """Die at once."""
    talk.cut()


async def cut_after_admission(talk: Talk) -> None:
    """Die while the engine samples."""
    await talk.say(Admitted(prompt_tokens=3))
    await turns()
    talk.cut()


async def cut_within_the_answer(talk: Talk) -> None:
    """Die after the commit, while the answer leaves."""
    await talk.say(Admitted(prompt_tokens=3))
    await talk.say_half(answer(talk.seen, {"content": "never seen" * 100}))
    talk.cut()


async def silence(talk: Talk) -> None:
    """Accept, and say nothing: a full queue, or a frozen process."""
    await talk._opened()
    await forever()


async def admitted_silence(talk: Talk) -> None:
    """Sample for ever."""
    await talk.say(Admitted(prompt_tokens=3))
    await forever()


async def overloaded(_: Talk) -> web.StreamResponse:
    """Refuse before any frame."""
    return web.Response(status=503, headers={"retry-after": "1"})


async def moving(_: Talk) -> web.StreamResponse:
    """Hand the partition over."""
    return web.Response(status=503, headers={MOVING: "1"})


def elsewhere(url: str) -> Step:
    """Name another owner."""

    async def step(_: Talk) -> web.StreamResponse:
        return web.Response(status=307, headers={OWNER: url})

    return step


def told(status: int, message: str) -> Step:
    """Say something to the relay, without frames."""

    async def step(_: Talk) -> web.StreamResponse:
        return web.json_response({"error": {"message": message, "field": None}}, status=status)

    return step


def refuse(status: int, message: str, *, admitted: bool = False, failure: CallFailure | None = None) -> Step:
    """End the call with an error in the harness's dialect."""

    async def step(talk: Talk) -> None:
        if admitted:
            await talk.say(Admitted(prompt_tokens=3))
        error = RequestError(message, status=status)
        events = talk.seen.body.get("stream") and (admitted or talk.seen.started)
        body = DIALECT.stream_error(HEAD, error) if events else DIALECT.error(error)
        await talk.say(Answer(status=status, body=body, failure=failure, detail=message))

    return step


@asynccontextmanager
async def frames_gateway() -> AsyncIterator[FramesGateway]:
    """Serve on loopback."""
    gateway = FramesGateway()
    application = web.Application()
    application.router.add_post("/serve/{path:.*}", gateway.serve)
    application.router.add_post("/calls/{request_id}/disconnect", gateway.disconnect)
    large: dict[str, Any] = {"max_field_size": 1 << 20, "max_headers": 1000}
    runner = web.AppRunner(application, handler_cancellation=True, access_log=None, shutdown_timeout=0.1, **large)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    gateway.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield gateway
    finally:
        await runner.cleanup()
