"""Answers on their way to a harness."""

import asyncio
import threading
from typing import Any

import msgspec
import pytest
from tests.support.world import World, user

from evener.dialects.canonical import CanonicalRequest
from evener.dialects.openai_chat import OpenAIChat
from evener.proto.codec import decode
from evener.proto.ids import new_request_id
from evener.proto.relay import Answer
from evener.proto.sessions import CallClosed, CallOpened
from evener.provider_gateway import answers
from evener.provider_gateway.answers import _answer, rendered
from evener.provider_gateway.feed import Answered
from evener.provider_gateway.request import ParsedRequest
from evener.provider_gateway.threads import SHORT_BYTES


async def test_loop_goes_on_while_a_long_answer_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred votes of thousands of words are megabytes of JSON."""
    world, go_on = World(), threading.Event()
    world.ask([user("hi")], "word " * SHORT_BYTES)
    events = [decode(record) for record in world.log]
    (opened,) = [event for event in events if isinstance(event, CallOpened)]
    (closed,) = [event for event in events if isinstance(event, CallClosed)]
    canonical = CanonicalRequest(dialect="openai_chat", model="m", messages=(user("hi"),), tools=(), stream=False, requested_params={})
    request = ParsedRequest(request_id=new_request_id(), dialect=OpenAIChat(), canonical=canonical, body_digest="d")

    def unhurried(*args: Any, **kwargs: Any) -> Answer:
        assert go_on.wait(60), "the loop waits for the answer"
        return rendered(*args, **kwargs)

    monkeypatch.setattr(answers, "rendered", unhurried)
    writing = asyncio.create_task(_answer(request, Answered(opened=opened, closed=closed), recorded=False))
    await asyncio.sleep(0)
    assert not writing.done()
    go_on.set()

    assert msgspec.json.decode((await writing).body)["choices"][0]["message"]["content"].startswith("word word")
