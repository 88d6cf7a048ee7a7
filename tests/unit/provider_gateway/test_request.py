"""Bodies are read off the loop where they are large."""

import asyncio
import json
import threading

import pytest

from evener.dialects.canonical import CanonicalRequest, RequestError
from evener.dialects.openai_chat import OpenAIChat
from evener.proto.relay import REQUEST_ID
from evener.proto.spec import Quirks
from evener.provider_gateway.request import READ_AT_ONCE_BYTES, body_digest, read_request

PATH = "/v1/chat/completions"
HEADERS = {REQUEST_ID: "r1"}


class Unhurried(OpenAIChat):
    """Reads nothing before the loop has done something else."""

    def __init__(self) -> None:
        self.meanwhile = threading.Event()

    def parse(self, path: str, body: bytes) -> CanonicalRequest:
        assert self.meanwhile.wait(60), "the loop waits for the body"
        return super().parse(path, body)


def body(role: str, length: int) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": role, "content": "x" * length}]}).encode()


async def test_loop_goes_on_while_a_large_body_is_read() -> None:
    """Other sessions' calls do not wait for it."""
    dialect = Unhurried()
    reading = asyncio.create_task(read_request(dialect, PATH, body("user", READ_AT_ONCE_BYTES), HEADERS, Quirks()))
    await asyncio.sleep(0)  # it has begun
    assert not reading.done()
    dialect.meanwhile.set()
    request = await reading
    assert len(request.canonical.messages[0]["content"]) == READ_AT_ONCE_BYTES
    assert request.body_digest == body_digest(request.canonical)


@pytest.mark.parametrize("length", [1, READ_AT_ONCE_BYTES])
async def test_what_is_wrong_in_a_body_is_told_however_large_it_is(length: int) -> None:
    with pytest.raises(RequestError) as refused:
        await read_request(OpenAIChat(), PATH, body("robot", length), HEADERS, Quirks())
    assert refused.value.field == "messages[0].role"
