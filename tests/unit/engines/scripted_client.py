"""A client of one scripted engine, in text."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import aiohttp
import numpy as np
from tests.support.server_sent_events import values_in
from tokenizers import Tokenizer

from evener.engines.answers import whole
from evener.engines.port import Chunk, GenerateRequest
from evener.engines.vllm import VllmEngine
from evener.proto.spec import Sampling

END = 2


class Client:
    """Asks one scripted engine by ids, with prompts given as text; and over bare HTTP."""

    def __init__(self, url: str, tokenizer: Tokenizer) -> None:
        self.engine = VllmEngine(url)
        self.tokenizer = tokenizer
        self._url = url
        self._http = aiohttp.ClientSession()

    async def aclose(self) -> None:
        await self.engine.aclose()
        await self._http.close()

    def stream(self, prompt: str, request_id: str = "c1") -> AsyncGenerator[Chunk, None]:
        ids = np.asarray(self.tokenizer.encode(prompt).ids, np.int32)
        return self.engine.generate(
            GenerateRequest(request_id=request_id, ids=ids, sampling=Sampling(seed=3), max_tokens=200, stop_ids=(END,))
        )

    async def ask(self, prompt: str, request_id: str = "c1") -> Chunk:
        async with aclosing(self.stream(prompt, request_id)) as chunks:
            return await whole(chunks)

    async def text(self, prompt: str) -> str:
        return str(self.tokenizer.decode((await self.ask(prompt)).ids.tolist(), skip_special_tokens=False))

    async def post(self, path: str, body: Any = None) -> Any:
        """Return the answer to a POST: JSON, the JSON of each event, or None without a body."""
        async with self._http.post(self._url + path, json=body) as response:
            body = await response.read()
        if response.content_type == "text/event-stream":
            return values_in(body)
        return json.loads(body) if body else None

    async def get(self, path: str) -> Any:
        async with self._http.get(self._url + path) as response:
            return await response.json()
