"""Whatever a policy samples as a call, the harness can send it back: in every dialect, as the same call."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evener.dialects.canonical import AnswerChoice, CanonicalAnswer, Dialect
from evener.dialects.registry import dialect_for
from evener.proto.sessions import FinishReason
from evener.templates import calls
from evener.templates.parsers import Tagged

PATHS = ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1beta/models/m:generateContent"]
PARSER = Tagged(calls=calls.CALL_FORMATS["hermes"], thinks=True)
ASKED = {"role": "user", "content": "x"}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), inner, max_size=3),
    max_leaves=6,
)


def nested(depth: int, inner: Any) -> Any:
    """Put a value into lists and objects."""
    for level in range(depth):
        inner = [inner] if level % 2 else {"a": inner}
    return inner


def sampled(value: Any) -> dict[str, Any]:
    """Return the message of an answer that calls a tool."""
    spelled = json.dumps({"name": "f", "arguments": {"a": value}})
    answer = PARSER.parse(f"<tool_call>\n{spelled}\n</tool_call>", end="", tools=())
    called = [{"id": f"callc1x0x{at}", "name": name, "arguments": arguments} for at, (name, arguments) in enumerate(answer.calls)]
    return {"role": "assistant", "content": answer.content} | ({"tool_calls": called} if called else {})


def history(path: str, body: Any) -> dict[str, Any]:
    """Return a request that carries an answer back."""
    match path:
        case "/v1/chat/completions":
            return {"model": "m", "messages": [ASKED, body["choices"][0]["message"], ASKED]}
        case "/v1/responses":
            return {"model": "m", "input": [ASKED, *body["output"], ASKED]}
        case "/v1/messages":
            said = {"role": "assistant", "content": body["content"]}
            return {"model": "m", "max_tokens": 1, "messages": [ASKED, said, ASKED]}
        case _:
            asked = {"role": "user", "parts": [{"text": "x"}]}
            return {"contents": [asked, body["candidates"][0]["content"], asked]}


def sent_back(path: str, dialect: Dialect, message: dict[str, Any]) -> dict[str, Any]:
    """Return what the gateway reads when the harness sends an answer back."""
    first = dialect.parse(path, json.dumps(history(path, EMPTY[path])).encode())
    choice = AnswerChoice(message=message, finish_reason=FinishReason.STOP, key="c1x0")
    answer = CanonicalAnswer(
        answer_id="a", created=1, model="m", choices=[choice], prompt_tokens=1, cached_tokens=None, completion_tokens=1
    )
    again = dialect.parse(path, json.dumps(history(path, json.loads(dialect.answer(first, answer)))).encode())
    return again.messages[1]


EMPTY: dict[str, Any] = {
    "/v1/chat/completions": {"choices": [{"message": {"role": "assistant", "content": "y"}}]},
    "/v1/responses": {"output": [{"role": "assistant", "content": "y"}]},
    "/v1/messages": {"content": [{"type": "text", "text": "y"}]},
    "/v1beta/models/m:generateContent": {"candidates": [{"content": {"role": "model", "parts": [{"text": "y"}]}}]},
}


@pytest.mark.parametrize("path", PATHS)
@given(depth=st.integers(0, 130), inner=VALUES)
def test_sampled_call_is_read_again_however_it_nests(path: str, depth: int, inner: Any) -> None:
    """Beyond 100 levels it was answered, and each later request of the session was refused."""
    dialect = dialect_for(path)
    assert dialect is not None
    message = sampled(nested(depth, inner))
    back = sent_back(path, dialect, message)

    assert [call["arguments"] for call in back.get("tool_calls", ())] == [call["arguments"] for call in message.get("tool_calls", ())]
    assert back["content"].strip() == message["content"].strip()


@pytest.mark.parametrize(("depth", "is_call"), [(calls.MAX_NESTED - 2, True), (calls.MAX_NESTED - 1, False)])
def test_call_that_nests_too_deep_is_text(depth: int, *, is_call: bool) -> None:
    """As any other block that is broken."""
    message = sampled(nested(depth, 1))

    assert ("tool_calls" in message) is is_call
    assert message["content"].startswith("<tool_call>") is not is_call
