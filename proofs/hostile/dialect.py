"""The four dialects as inputs need them: where to ask, a valid request with everything in it, and the shapes of what comes back."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct
from proofs.hostile.input import Unexpected
from proofs.hostile.running import Answered

Json = dict[str, Any]
SCHEMA: Final[Json] = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
BAD_REQUEST, TOO_LONG, SERVER_ERROR = 400, 500, 500


class Dialect(Struct, frozen=True, kw_only=True):
    """One of the four dialects."""

    name: str
    path: str
    valid: Json
    """A request that is answered, with all fields that are read."""
    text: Callable[[str], Json]
    """Makes a request of one user message."""
    error: Callable[[Json], str]
    """Returns the message of an error. Raises KeyError, TypeError for another shape."""
    answer: Callable[[Json], object]
    """Returns what was answered. Raises KeyError, TypeError, IndexError for another shape."""
    counting: str | None = None
    """The path at which tokens are only counted."""

    def check(self, answered: Answered, *, refused: bool | None) -> None:
        """Raise Unexpected unless it is an answer (`refused`: a refusal; None: either) in the dialect's shape."""
        said = f"{answered.status} {answered.body[:300]!r}"
        if answered.status >= SERVER_ERROR:
            msg = f"a fault of ours: {said}"
            raise Unexpected(msg)
        is_refused = answered.status >= BAD_REQUEST
        if refused is not None and refused is not is_refused:
            msg = f"{'answered' if refused else 'refused'}: {said}"
            raise Unexpected(msg)
        if not is_refused and answered.headers.get("Content-Type", "").startswith("text/event-stream"):
            return
        try:
            body = msgspec.json.decode(answered.body)
            right = bool(self.error(body)) if is_refused else self.answer(body) is not None
        except (msgspec.DecodeError, LookupError, TypeError, AttributeError):
            right = False
        if not right:
            msg = f"in no shape of {self.name}: {said}"
            raise Unexpected(msg)


def _google_error(body: Json) -> str:
    error = body["error"]
    assert isinstance(error["code"], int)
    assert error["status"]
    return str(error["message"])


def _anthropic_error(body: Json) -> str:
    assert body["type"] == "error"
    assert body["error"]["type"]
    return str(body["error"]["message"])


CHAT: Final = Dialect(
    name="OpenAI Chat",
    path="/v1/chat/completions",
    valid={
        "model": "policy",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "name": "u", "content": [{"type": "text", "text": "Read it."}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "text"},
        ],
        "tools": [{"type": "function", "function": {"name": "read", "description": "Reads.", "parameters": SCHEMA, "strict": False}}],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "max_tokens": 10,
        "temperature": 1,
        "top_p": 1,
        "seed": 1,
        "n": 1,
        "stream": False,
        "stream_options": {"include_usage": True},
        "response_format": {"type": "text"},
        "user": "u",
        "metadata": {"a": "b"},
    },
    text=lambda text: {"model": "policy", "messages": [{"role": "user", "content": text}]},
    error=lambda body: str(body["error"]["message"]),
    answer=lambda body: body["choices"][0]["message"],
)
RESPONSES: Final = Dialect(
    name="OpenAI Responses",
    path="/v1/responses",
    valid={
        "model": "policy",
        "instructions": "Be brief.",
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Read it."}]},
            {"type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "function_call", "call_id": "c1", "name": "read", "arguments": '{"path": "a"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "text"},
        ],
        "tools": [{"type": "function", "name": "read", "description": "Reads.", "parameters": SCHEMA, "strict": False}],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "max_output_tokens": 10,
        "temperature": 1,
        "top_p": 1,
        "stream": False,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "reasoning": {"effort": "low"},
        "text": {"format": {"type": "text"}},
        "metadata": {"a": "b"},
    },
    text=lambda text: {"model": "policy", "input": text},
    error=lambda body: str(body["error"]["message"]),
    answer=lambda body: body["output"],
)
ANTHROPIC: Final = Dialect(
    name="Anthropic Messages",
    path="/v1/messages",
    valid={
        "model": "policy",
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Read it."}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "a"}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "text"}]}]},
        ],
        "tools": [{"name": "read", "description": "Reads.", "input_schema": SCHEMA}],
        "tool_choice": {"type": "auto"},
        "max_tokens": 10,
        "temperature": 1,
        "top_p": 1,
        "top_k": 5,
        "stream": False,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "metadata": {"user_id": "u"},
    },
    text=lambda text: {"model": "policy", "max_tokens": 10, "messages": [{"role": "user", "content": text}]},
    error=_anthropic_error,
    answer=lambda body: body.get("content", body.get("input_tokens")),
    counting="/v1/messages/count_tokens",
)
GOOGLE: Final = Dialect(
    name="Google",
    path="/v1beta/models/policy:generateContent",
    valid={
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "contents": [
            {"role": "user", "parts": [{"text": "Read it."}]},
            {"role": "model", "parts": [{"functionCall": {"name": "read", "args": {"path": "a"}}}]},
            {"role": "user", "parts": [{"functionResponse": {"name": "read", "response": {"output": "text"}}}]},
        ],
        "tools": [{"functionDeclarations": [{"name": "read", "description": "Reads.", "parametersJsonSchema": SCHEMA}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
        "generationConfig": {"maxOutputTokens": 10, "temperature": 1, "topP": 1, "topK": 5, "seed": 1, "candidateCount": 1},
        "safetySettings": [],
    },
    text=lambda text: {"contents": [{"role": "user", "parts": [{"text": text}]}]},
    error=_google_error,
    answer=lambda body: body["candidates"] if "candidates" in body else body["totalTokens"],
    counting="/v1beta/models/policy:countTokens",
)
DIALECTS: Final = (CHAT, RESPONSES, ANTHROPIC, GOOGLE)


def with_fields(dialect: Dialect, **fields: Any) -> Mapping[str, Any]:
    """Return the valid request with other fields at its top."""
    return {**dialect.valid, **fields}
