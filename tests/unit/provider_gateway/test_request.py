"""Bodies are read off the loop where they are large."""

import asyncio
import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from evener.dialects.canonical import CanonicalRequest, RequestError
from evener.dialects.openai_chat import OpenAIChat
from evener.proto.relay import REQUEST_ID
from evener.proto.spec import Quirks
from evener.provider_gateway.core import body_digest
from evener.provider_gateway.http import READ_AT_ONCE_BYTES, read_request

PATH = "/v1/chat/completions"
HEADERS = {REQUEST_ID: "r1"}


class Unhurried(OpenAIChat):
    """Reads nothing before the loop has done something else."""

    def __init__(self) -> None:
        self.meanwhile = threading.Event()

    def parse(self, path: str, body: bytes) -> CanonicalRequest:
        assert self.meanwhile.wait(60), "the loop waits for the body"
        return super().parse(path, body)


class Parts(Sequence[bytes]):
    """A body in two parts that notes which thread reads them last."""

    def __init__(self, body: bytes) -> None:
        self._parts = (body[:10], body[10:])
        self.joined_in: threading.Thread | None = None

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: Any) -> Any:
        self.joined_in = threading.current_thread()
        return self._parts[index]


def body(role: str, length: int) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": role, "content": "x" * length}]}).encode()


async def test_loop_continues_while_a_large_body_is_read() -> None:
    """Other sessions' calls do not wait for it."""
    dialect = Unhurried()
    reading = asyncio.create_task(read_request(dialect, PATH, [body("user", READ_AT_ONCE_BYTES)], HEADERS, Quirks()))
    await asyncio.sleep(0)  # it has begun
    assert not reading.done()
    dialect.meanwhile.set()
    request = await reading
    assert len(request.canonical.messages[0]["content"]) == READ_AT_ONCE_BYTES
    assert request.body_digest == body_digest(request.canonical)


async def test_large_body_is_joined_in_the_thread_that_parses_it() -> None:
    """Four of 30 MB at the same time stopped the loop for 77 ms."""
    parts = Parts(body("user", READ_AT_ONCE_BYTES))
    await read_request(OpenAIChat(), PATH, parts, HEADERS, Quirks())
    assert parts.joined_in is not threading.current_thread()


@pytest.mark.parametrize("length", [1, READ_AT_ONCE_BYTES])
async def test_what_is_wrong_in_a_body_is_told_however_large_it_is(length: int) -> None:
    with pytest.raises(RequestError) as refused:
        await read_request(OpenAIChat(), PATH, [body("robot", length)], HEADERS, Quirks())
    assert refused.value.field == "messages[0].role"
