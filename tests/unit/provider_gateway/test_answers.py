"""Answers on their way to a harness."""

import asyncio
import threading
from collections.abc import AsyncGenerator

import msgspec
from structlog.testing import capture_logs
from tests.support.world import World, user

from evener.dialects.canonical import CanonicalAnswer, CanonicalRequest
from evener.dialects.openai_chat import OpenAIChat
from evener.proto.codec import decode
from evener.proto.ids import new_request_id
from evener.proto.reasons import CallFailure
from evener.proto.relay import Admitted, Answer, AnyFrame
from evener.proto.sessions import CallClosed, CallOpened
from evener.provider_gateway.answers import _answer, request_frames
from evener.provider_gateway.core import ParsedRequest
from evener.provider_gateway.inflight import Answered
from evener.provider_gateway.session import SessionRuntime
from evener.provider_gateway.threads import SHORT_BYTES


def asked(dialect: OpenAIChat | None = None) -> ParsedRequest:
    canonical = CanonicalRequest(dialect="openai_chat", model="m", messages=(user("hi"),), tools=(), stream=False, requested_params={})
    return ParsedRequest(request_id=new_request_id(), dialect=dialect or OpenAIChat(), canonical=canonical, body_digest="d")


class Unhurried(OpenAIChat):
    """Writes no answer before it is told to go on."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def answer(self, request: CanonicalRequest, answer: CanonicalAnswer) -> bytes:
        assert self.go_on.wait(60), "the loop waits for the answer"
        return super().answer(request, answer)


async def test_loop_continues_while_a_long_answer_is_written() -> None:
    """A hundred votes of thousands of words are megabytes of JSON."""
    world, dialect = World(), Unhurried()
    world.ask([user("hi")], "word " * SHORT_BYTES)
    events = [decode(record) for record in world.log]
    (opened,) = [event for event in events if isinstance(event, CallOpened)]
    (closed,) = [event for event in events if isinstance(event, CallClosed)]
    writing = asyncio.create_task(_answer(asked(dialect), Answered(opened=opened, closed=closed), recorded=False))
    await asyncio.sleep(0)
    assert not writing.done()
    dialect.go_on.set()

    assert msgspec.json.decode((await writing).body)["choices"][0]["message"]["content"].startswith("word word")


async def test_bug_on_the_way_of_an_answer_is_reported_in_the_dialect_and_logged() -> None:
    """After the headers of the gateway's response, an exception would only cut the connection."""

    async def frames() -> AsyncGenerator[AnyFrame, None]:
        yield Admitted(prompt_tokens=1)
        raise KeyError

    with capture_logs() as logged:
        told = [frame async for frame in request_frames(frames(), SessionRuntime("s1"), asked(), 30.0)]
    assert isinstance(told[1], Answer)
    assert (told[1].status, told[1].failure) == (503, CallFailure.ENGINE_ERROR)
    assert b"the gateway failed" in told[1].body
    assert [(entry["event"], entry["session_id"]) for entry in logged] == [("call_crashed", "s1")]
