"""What tests of dialects draw: damaged bodies of requests, canonical answers, and ways to stream them."""

import copy
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from hypothesis import strategies as st

from evener.dialects.canonical import (
    NOTHING_STREAMED,
    AnswerChoice,
    CanonicalAnswer,
    CanonicalRequest,
    Dialect,
    Head,
    RequestError,
    Streamed,
    text_of,
)
from evener.proto.ids import answer_key, tool_call_id
from evener.proto.sessions import FinishReason
from evener.tokens.digests import Message, canonical_json, message_digest

HEAD: Final = Head(answer_id="a1", created=1700000000, model="policy", prompt_tokens=10)
PIECES: Final = (Streamed(reasoning="H"), Streamed(reasoning="m."), Streamed(text="On "), Streamed(text="it"))
"""The pieces of an answer that is being streamed."""
WORDS: Final = (
    *("type", "role", "id", "name", "content", "text", "data", "url", "image_url", "tools", "tool_calls", "parts", "stream"),
    *("user", "assistant", "model", "tool", "message", "reasoning", "function", "custom", "input_image", "base64", "data:", "auto", ""),
)
JSON: Final = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text("aé😀\n\ud83d"), st.sampled_from(WORDS)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(WORDS), inner, max_size=4)),
    max_leaves=6,
)
TEXT: Final = st.text(st.characters(exclude_categories=["Cs"]))
BREAKING_TEXT: Final = st.one_of(TEXT, st.text("ab \n\r\u2028\u2029\x85é😀"))
ARGUMENTS: Final = st.one_of(
    st.dictionaries(TEXT, st.recursive(st.one_of(st.none(), st.booleans(), st.integers(), TEXT), st.lists, max_leaves=4), max_size=3),
    st.sampled_from(["{broken", "[1]", "é😀"]),
)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Draw an answer as a policy gives it."""
    message: Message = {"role": "assistant", "content": draw(BREAKING_TEXT)}
    if (reasoning := draw(BREAKING_TEXT)).strip():
        message["reasoning"] = reasoning
    calls = draw(st.lists(st.tuples(st.sampled_from(["f", "g"]), ARGUMENTS), max_size=3))
    if calls:
        message["tool_calls"] = [
            {"id": tool_call_id("c1", 0, index), "name": name, "arguments": arguments} for index, (name, arguments) in enumerate(calls)
        ]
    return message


def answer(*given: Message, finish: FinishReason = FinishReason.STOP, cached: int | None = 3, reasoning_tokens: int = 2) -> CanonicalAnswer:
    """Return a canonical answer with these messages."""
    choices = [AnswerChoice(message=message, finish_reason=finish, key=answer_key("c1", at)) for at, message in enumerate(given)]
    return CanonicalAnswer(
        answer_id="a1",
        created=1700000000,
        model="policy",
        choices=choices,
        prompt_tokens=10,
        cached_tokens=cached,
        completion_tokens=5,
        reasoning_tokens=reasoning_tokens,
    )


@st.composite
def cuts(draw: st.DrawFn, text: str) -> list[str]:
    """Draw a way to cut a text into pieces that are not empty."""
    at = sorted(draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=4)))
    pieces = [text[start:end] for start, end in zip([0, *at], [*at, len(text)], strict=True)]
    return [piece for piece in pieces if piece]


@st.composite
def beginnings(draw: st.DrawFn, message: Message) -> list[Streamed]:
    """Draw what of an answer leaves before its end, piece by piece: any part of it, cut anywhere, reasoning first."""
    pieces = [Streamed(reasoning=piece) for piece in draw(cuts(message.get("reasoning", "")))]
    pieces += [Streamed(text=piece) for piece in draw(cuts(text_of(message)))]
    return pieces[: draw(st.integers(0, len(pieces)))]


def held(dialect: Dialect, request: CanonicalRequest, given: CanonicalAnswer) -> bytes:
    """Return a stream as the relay sends it in `buffered`."""
    return dialect.prologue(HEAD) + dialect.keep_alive(HEAD) + dialect.events(request, given)


def live(dialect: Dialect, request: CanonicalRequest, given: CanonicalAnswer, pieces: Iterable[Streamed]) -> bytes:
    """Return a stream as it is sent in `live`: these pieces of the first choice before its end."""
    key, left, events = given.choices[0].key, NOTHING_STREAMED, [dialect.prologue(HEAD)]
    for piece in pieces:
        events += [dialect.delta(HEAD, key, left, reasoning=piece.reasoning, text=piece.text), dialect.keep_alive(HEAD)]
        left = Streamed(reasoning=left.reasoning + piece.reasoning, text=left.text + piece.text)
    return b"".join(events) + dialect.events(request, given, left)


@st.composite
def damaged(draw: st.DrawFn, bodies: list[dict[str, Any]]) -> bytes:
    """Draw a body with any value anywhere, or anything missing."""
    body = copy.deepcopy(draw(st.sampled_from(bodies)))
    for _ in range(draw(st.integers(1, 3))):
        if not (left := list(places(body))):
            break
        container, key = draw(st.sampled_from(left))
        if draw(st.booleans()):
            container[key] = draw(JSON)
        else:
            del container[key]
    return json.dumps(body).encode()


@st.composite
def scratched(draw: st.DrawFn, bodies: list[dict[str, Any]]) -> bytes:
    """Draw a body with some bytes replaced."""
    whole = json.dumps(draw(st.sampled_from(bodies)), ensure_ascii=False).encode()
    at, instead = draw(st.integers(0, len(whole))), draw(st.binary(max_size=4))
    return whole[:at] + instead + whole[at + len(instead) :]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (container, key) of every value inside."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield value, key
        yield from places(item)


def check_error(dialect: Dialect, refused: RequestError) -> None:
    """A refusal has words and a shape."""
    assert refused.message
    assert isinstance(json.loads(dialect.error(refused)), Mapping)


def take(dialect: Dialect, path: str, body: bytes) -> None:
    """Parse: what is refused is told; what is accepted can be recorded, and the relay has read it the same way."""
    hints = dialect.hints(path, body)
    try:
        request = dialect.parse(path, body)
    except RequestError as refused:
        check_error(dialect, refused)
        return
    assert (hints.model, hints.stream) == (request.model, request.stream)
    for message, digest in zip(request.messages, request.digests or (None,) * len(request.messages), strict=True):
        assert digest in (None, message_digest(message))
    canonical_json((request.tools, dict(request.requested_params)))
