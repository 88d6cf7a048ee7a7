"""Clients of scripted engines."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest
from tests.unit.engines.scripted_client import Client
from tokenizers import Tokenizer

from evener.engines.scripted import ScriptedServer

Connect = Callable[[ScriptedServer], Client]
"""Returns a client that ends with the test."""


@pytest.fixture
async def client(smollm_tokenizer: Tokenizer) -> AsyncIterator[Connect]:
    async with AsyncExitStack() as stack:

        def connect(server: ScriptedServer) -> Client:
            opened = Client(server.url, smollm_tokenizer)
            stack.push_async_callback(opened.aclose)
            return opened

        yield connect
