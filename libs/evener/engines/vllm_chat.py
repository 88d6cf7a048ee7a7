"""vLLM's chat endpoint as an engine: messages in, with the ids of prompt and answer reported (`return_token_ids`).

This is for servers that take no ids for agents' calls. This endpoint does not report which weights sampled a token. The check at start
works with ids, and uses /v1/completions of the same server.
"""

import base64
import json
import math
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from evener.engines.answers import chunk
from evener.engines.connection import EngineHttp, HttpRefusal, encoded
from evener.engines.port import HEALTH_SECONDS, PROBE, Chunk, EngineFacts, GenerateRequest
from evener.engines.vllm import (
    DONE,
    NEUTRAL,
    UNKNOWN_LOGPROB,
    encode_there,
    event_error,
    overflow,
    served_model,
    unfinished,
    version_number,
)
from evener.proto.sessions import FinishReason
from evener.proto.spec import Sampling

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
FINISH: Final = {
    "stop": FinishReason.STOP,
    "tool_calls": FinishReason.STOP,
    "length": FinishReason.LENGTH,
    "abort": FinishReason.ABORTED,
}
MISSING: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})
IDS: Final[dict[str, Any]] = {"return_token_ids": True, "return_tokens_as_token_ids": True}
"""The second parameter names the id of each logprob, which proves that both belong together."""
WITH_TEXT: Final = {name: value for name, value in NEUTRAL.items() if name != "detokenize"}


class VllmChatEngine:
    """An engine behind vLLM's chat endpoint. `generate` needs messages; versions are unknown."""

    def __init__(self, url: str, model: str | None = None, *, kind: str = "vllm_chat", vision: bool = False) -> None:
        """`model`: the served model's name. None: the first that the server lists. `vision`: the model takes images."""
        self._http: Final = EngineHttp(url)
        self._model: Final = model
        self._kind: Final = kind
        self._vision: Final = vision

    async def health(self, seconds: float = HEALTH_SECONDS) -> None:
        await self._http.health(seconds)

    async def facts(self) -> EngineFacts:
        model, context = await served_model(self._http, self._model)
        version = await self._version()
        return EngineFacts(
            kind=self._kind,
            model=model,
            context_length=context,
            reports_versions=False,
            renders=True,
            vision=self._vision,
            version=version,
        )

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """Sample after the request's messages; without messages, after its ids and in one chunk."""
        if request.messages is None:
            yield await self._complete(request)
            return
        ended = False
        async with aclosing(self._parts(request)) as parts:
            async for part in parts:  # to [DONE], so that the connection is used again
                ended = ended or part.finish_reason is not None
                yield part
        if not ended:
            raise unfinished(self._http, CHAT)

    async def tokenize(self, text: str) -> list[int]:
        return await encode_there(self._http, text, self._name())

    async def top_logprobs(self, ids: NDArray[np.int32], sampling: Sampling, count: int) -> tuple[int, dict[int, float]]:
        # the sampled token comes beside the most likely ones: one more, and the best are those asked for
        choice = await self._completion(f"{PROBE}-{secrets.token_hex(8)}", ids, sampling, 1, logprobs=count + 1)
        with self._http.reading(COMPLETIONS, choice):
            (sampled,) = choice["token_ids"]
            told = {_id(name): _logprob(value) for name, value in choice["logprobs"]["top_logprobs"][0].items()}
            best = sorted(told, key=lambda token: -told[token])[:count]
            return int(sampled), {token: told[token] for token in best}

    async def aclose(self) -> None:
        await self._http.aclose()

    def _streamed(self, request: GenerateRequest) -> bytes:
        body = self._body(request.sampling, request.max_tokens) | {
            "messages": [_message(message, request.images) for message in request.messages or ()],
            "logprobs": True,
            "top_logprobs": 0,
            "stop_token_ids": list(request.stop_ids),
            "request_id": request.request_id,
            "stream": True,
            "stream_interval": request.stream_interval,
        }
        if request.tools:  # shown to the model; its answer is not parsed, and not constrained
            body |= {"tools": [{"type": "function", "function": tool} for tool in request.tools], "tool_choice": "none"}
        return msgspec.json.encode(body)

    async def _parts(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """Yield the chunks of a streamed answer up to [DONE]. The first has the prompt's ids."""
        prompt: NDArray[np.int32] | None = None
        given = False
        async with aclosing(self._events(request)) as events:
            async for event in events:
                prompt = self._prompt(event) if prompt is None else prompt
                part = self._part(event)
                if part is not None:
                    yield part if given else structs.replace(part, prompt_ids=prompt)
                    given = True

    async def _events(self, request: GenerateRequest) -> AsyncGenerator[dict[str, Any], None]:
        try:
            async with aclosing(self._http.events(CHAT, partial(encoded, self._streamed, request))) as batches:
                async for data in batches:
                    for line in data:
                        if line == DONE:
                            return
                        event = self._http.parse(line, CHAT)
                        if not isinstance(event, dict) or "error" in event:
                            raise event_error(self._http, CHAT, line.decode())
                        yield event
        except HttpRefusal as refusal:
            raise overflow(refusal.body) or refusal from None

    def _prompt(self, event: dict[str, Any]) -> NDArray[np.int32]:
        with self._http.reading(CHAT, event):
            return np.asarray([int(token) for token in event["prompt_token_ids"]], np.int32)

    def _part(self, event: dict[str, Any]) -> Chunk | None:
        """Return the tokens of an event, None if it has none and ends nothing."""
        with self._http.reading(CHAT, event):
            (choice,) = event["choices"]
            ids = [int(token) for token in choice.get("token_ids") or ()]
            content = (choice["logprobs"] or {"content": None})["content"] or ()
            if [_id(each["token"]) for each in content] != ids:
                raise self._http.rubbish(CHAT, event)
            reason = choice["finish_reason"]
            if not ids and reason is None:
                return None
            return chunk(ids, [_logprob(each["logprob"]) for each in content], finish_reason=None if reason is None else FINISH[reason])

    async def _complete(self, request: GenerateRequest) -> Chunk:
        choice = await self._completion(
            request.request_id, request.ids, request.sampling, request.max_tokens, logprobs=0, stop_ids=request.stop_ids
        )
        with self._http.reading(COMPLETIONS, choice):
            ids = [int(token) for token in choice["token_ids"]]
            logprobs = choice["logprobs"]
            if [_id(name) for name in logprobs["tokens"]] != ids:
                raise self._http.rubbish(COMPLETIONS, choice)
            told = [_logprob(value) for value in logprobs["token_logprobs"]]
            part = chunk(ids, told, finish_reason=FINISH[choice["finish_reason"]])
            return structs.replace(part, prompt_ids=np.asarray(choice["prompt_token_ids"], np.int32))

    async def _completion(
        self, name: str, ids: NDArray[np.int32], sampling: Sampling, max_tokens: int, *, logprobs: int, stop_ids: Sequence[int] = ()
    ) -> dict[str, Any]:
        """Return the one choice of a request by ids, sent under this request id."""
        asked = {"request_id": name, "prompt": ids.tolist(), "logprobs": logprobs, "stop_token_ids": list(stop_ids)}
        try:
            answer = await self._http.post(COMPLETIONS, self._body(sampling, max_tokens) | asked, samples=True)
        except HttpRefusal as refusal:
            raise overflow(refusal.body) or refusal from None
        with self._http.reading(COMPLETIONS, answer):
            (choice,) = answer["choices"]
            return dict(choice)

    async def _version(self) -> int:
        """Return the version that the server's control endpoint reports, 0 if it has none."""
        try:
            answer = await self._http.get("/weight_info")
        except HttpRefusal as refusal:
            if refusal.status in MISSING:
                return 0
            raise
        with self._http.reading("/weight_info", answer):
            return version_number(str(answer["weight_version"]))

    def _body(self, sampling: Sampling, max_tokens: int) -> dict[str, Any]:
        params = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "seed": sampling.seed,
            "max_tokens": max_tokens,
        }
        return WITH_TEXT | IDS | params | self._name()

    def _name(self) -> dict[str, str]:
        return {} if self._model is None else {"model": self._model}


def _message(message: dict[str, Any], images: Mapping[str, tuple[str, bytes]]) -> dict[str, Any]:
    """Return a canonical message in OpenAI's shape."""
    role, content = message["role"], message.get("content", "")
    if not isinstance(content, str):
        content = [part if part["type"] == "text" else _image(*images[part["digest"]]) for part in content]
    sent = {"role": "system" if role == "developer" else role, "content": content}
    if "reasoning" in message:
        sent["reasoning"] = message["reasoning"]
    if "tool_calls" in message:
        sent["tool_calls"] = [_call(call) for call in message["tool_calls"]]
    return sent | {name: message[name] for name in ("tool_call_id", "name") if name in message}


def _image(media_type: str, data: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{base64.b64encode(data).decode()}"}}


def _call(call: dict[str, Any]) -> dict[str, Any]:
    arguments = call["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": text}}


def _id(name: str) -> int:
    """Return the id in a token's name, `token_id:7`. Raises ValueError."""
    return int(name.removeprefix("token_id:"))


def _logprob(value: float) -> float:
    return math.nan if value <= UNKNOWN_LOGPROB else float(value)
