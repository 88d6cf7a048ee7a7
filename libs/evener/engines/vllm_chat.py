"""vLLM's chat endpoint as an engine: messages in, with the ids of prompt and answer reported (`return_token_ids`).

This is for servers that take no ids for agents' calls. This endpoint does not report which weights sampled a token. The check at start
works with ids, and uses /v1/completions of the same server.
"""

import base64
import json
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from evener.engines.answers import chunk
from evener.engines.connection import PLAIN_LINK, EngineLink, HttpRefusal, encoded
from evener.engines.port import PROBE_PREFIX, Chunk, EngineFacts, GenerateRequest
from evener.engines.vllm_http import FINISH_REASONS, MISSING, VLLM_NEUTRAL, VllmHttp, known_logprob, version_number
from evener.proto.sessions import FinishReason
from evener.proto.spec import Sampling

CHAT: Final = "/v1/chat/completions"
COMPLETIONS_PATH: Final = "/v1/completions"
CHAT_FINISH: Final = FINISH_REASONS | {"tool_calls": FinishReason.STOP}
IDS: Final[dict[str, Any]] = {"return_token_ids": True, "return_tokens_as_token_ids": True}
"""The second parameter names the id of each logprob, which proves that both belong together."""


class VllmChatEngine(VllmHttp):
    """An engine behind vLLM's chat endpoint. `generate` needs messages; versions are unknown."""

    def __init__(self, url: str, *, vision: bool = False, link: EngineLink = PLAIN_LINK) -> None:
        """`vision`: the model takes images."""
        super().__init__(url, link=link)
        self._vision: Final = vision

    async def facts(self) -> EngineFacts:
        context = await self._context_length()
        version = await self._version()
        return EngineFacts(context_length=context, reports_versions=False, renders=True, vision=self._vision, version=version)

    def generate(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        """Sample after the request's messages; without messages, after its ids and in one chunk."""
        return self._complete(request) if request.messages is None else self._to_its_end(CHAT, self._parts(request))

    async def top_logprobs(self, ids: NDArray[np.int32], sampling: Sampling, count: int) -> tuple[int, dict[int, float]]:
        # the sampled token comes beside the most likely ones: one more, and the best are those asked for
        choice = await self._completion(f"{PROBE_PREFIX}-{secrets.token_hex(8)}", ids, sampling, 1, logprobs=count + 1)
        with self._http.reading(COMPLETIONS_PATH, choice):
            (sampled,) = choice["token_ids"]
            told = {_id(name): known_logprob(value) for name, value in choice["logprobs"]["top_logprobs"][0].items()}
            best = sorted(told, key=lambda token: -told[token])[:count]
            return int(sampled), {token: told[token] for token in best}

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
        """Yield the chunks of a streamed answer. The first has the prompt's ids."""
        prompt: NDArray[np.int32] | None = None
        given = False
        async with aclosing(self._events(CHAT, partial(encoded, self._streamed, request))) as batches:
            async for lines in batches:
                for event in map(self._event, lines):
                    prompt = self._prompt(event) if prompt is None else prompt
                    part = self._part(event)
                    if part is not None:
                        yield part if given else structs.replace(part, prompt_ids=prompt)
                        given = True

    def _event(self, line: bytes) -> dict[str, Any]:
        event = self._http.parse(line, CHAT)
        if not isinstance(event, dict) or "error" in event:
            raise self._event_error(CHAT, line)
        return event

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
            logprobs = [known_logprob(each["logprob"]) for each in content]
            return chunk(ids, logprobs, finish_reason=None if reason is None else CHAT_FINISH[reason])

    async def _complete(self, request: GenerateRequest) -> AsyncGenerator[Chunk, None]:
        choice = await self._completion(
            request.request_id, request.ids, request.sampling, request.max_tokens, logprobs=0, stop_ids=request.stop_ids
        )
        with self._http.reading(COMPLETIONS_PATH, choice):
            ids = [int(token) for token in choice["token_ids"]]
            logprobs = choice["logprobs"]
            if [_id(name) for name in logprobs["tokens"]] != ids:
                raise self._http.rubbish(COMPLETIONS_PATH, choice)
            told = [known_logprob(value) for value in logprobs["token_logprobs"]]
            part = chunk(ids, told, finish_reason=CHAT_FINISH[choice["finish_reason"]])
            whole = structs.replace(part, prompt_ids=np.asarray(choice["prompt_token_ids"], np.int32))
        yield whole

    async def _completion(
        self, name: str, ids: NDArray[np.int32], sampling: Sampling, max_tokens: int, *, logprobs: int, stop_ids: Sequence[int] = ()
    ) -> dict[str, Any]:
        """Return the one choice of a request by ids, sent under this request id."""
        asked = {"request_id": name, "prompt": ids.tolist(), "logprobs": logprobs, "stop_token_ids": list(stop_ids)}
        answer = await self._post(COMPLETIONS_PATH, self._body(sampling, max_tokens) | asked, samples=True)
        with self._http.reading(COMPLETIONS_PATH, answer):
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
        return VLLM_NEUTRAL | IDS | structs.asdict(sampling) | {"max_tokens": max_tokens}


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
