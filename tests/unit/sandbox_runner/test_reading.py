"""What the relay reads of a body."""

import asyncio
import threading

import pytest

from evener.dialects.canonical import RequestHints
from evener.dialects.openai_chat import OpenAIChat
from evener.sandbox_runner.failed_requests import FailedRequests
from evener.sandbox_runner.gateway_client import RelayedCall
from evener.sandbox_runner.request_body import PARSED_AT_ONCE_BYTES, read_hints

PATH = "/v1/chat/completions"


class Unhurried(OpenAIChat):
    """Reads nothing before the loop has done something else."""

    def __init__(self) -> None:
        self.meanwhile = threading.Event()

    def hints(self, path: str, body: bytes) -> RequestHints:
        assert self.meanwhile.wait(60), "the loop waits for the body"
        return super().hints(path, body)


@pytest.mark.parametrize("key", [b"text", b"\\ud800"])
async def test_loop_continues_while_a_large_body_is_looked_at(key: bytes) -> None:
    """Other harnesses' streams do not wait for it."""
    dialect = Unhurried()
    body = b'{"' + key + b'": "' + b"x" * PARSED_AT_ONCE_BYTES + b'", "stream": true, "model": "m"}'
    reading = asyncio.create_task(read_hints(dialect, PATH, body))
    await asyncio.sleep(0)
    assert not reading.done()
    dialect.meanwhile.set()

    assert await reading == RequestHints(stream=True, model="m")


async def test_loop_continues_while_a_large_body_is_recognised() -> None:
    """A retry of a request that was not served is known by its bytes, of which there may be 32 MB."""
    body = b"x" * (PARSED_AT_ONCE_BYTES + 1)
    call = RelayedCall(path=PATH, body=body, headers={"retry": "1"}, request_id="r1", capability="", partition=0)
    failed = FailedRequests("retry")
    recognising = asyncio.create_task(failed.digest(call))
    await asyncio.sleep(0)
    assert not recognising.done()

    digest = await recognising
    failed.note(call, digest)
    assert failed.original(call, digest) == "r1"
    assert failed.original(call, digest) is None
