"""What of an answer is certain, letter by letter, in each dialect: a client ends up with the same as in `buffered`."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.dialects import test_anthropic_messages_answer as anthropic
from tests.unit.dialects import test_google_generate_answer as google
from tests.unit.dialects import test_openai_chat_answer as chat
from tests.unit.dialects import test_openai_responses_answer as responses
from tests.unit.dialects.arbitrary import answer, held, live
from tests.unit.templates.test_parsers import ANALYSIS, PARSERS, PARTS, PREAMBLE

from evener.dialects.canonical import CanonicalRequest, Dialect, Streamed
from evener.proto.ids import tool_call_id
from evener.templates.parsers import AnswerParser
from evener.tokens.digests import Message

Read = Callable[[bytes], Any]
"""What a strict client makes of a stream."""


@pytest.mark.parametrize("family", PARSERS)
@settings(max_examples=60)
@given(st.lists(PARTS, max_size=8))
@example([PREAMBLE, ANALYSIS, "<|channel|>final<|message|>Four."])
@example(["<think>\nHm.\n</think>\n\nI look."])
def test_what_leaves_live_adds_up_to_what_hold_says(family: str, parts: list[str]) -> None:
    """Also where a model reasons on after some text."""
    text = "".join(parts)
    whole, pieces = spoken(PARSERS[family], text), streamed(PARSERS[family], text)
    same(chat.CHAT, chat.asked(), chat.assembled, whole, pieces)
    same(anthropic.MESSAGES, anthropic.asked(), anthropic.assembled, whole, pieces)
    same(google.GOOGLE, google.asked(), sent_back, whole, pieces)
    responses.assert_well_formed(live(responses.RESPONSES, responses.asked(), answer(whole), pieces), answer(whole))


def spoken(parser: AnswerParser, text: str) -> Message:
    """Return the message that a text spells."""
    found = parser.parse(text, end="<|return|>", tools=[])
    calls = [{"id": tool_call_id("c1", 0, at), "name": name, "arguments": given} for at, (name, given) in enumerate(found.calls)]
    message: Message = {"role": "assistant", "content": found.content}
    return message | ({"reasoning": found.reasoning} if found.reasoning else {}) | ({"tool_calls": calls} if calls else {})


def streamed(parser: AnswerParser, text: str) -> list[Streamed]:
    """Return what leaves of a text that grows by letters."""
    pieces, reasoning, said = list[Streamed](), "", ""
    for end in range(1, len(text) + 1):
        thought, content = parser.certain(text[:end])
        if (len(reasoning), len(said)) != (len(thought), len(content)):
            pieces.append(Streamed(reasoning=thought[len(reasoning) :], text=content[len(said) :]))
        reasoning, said = thought, content
    return pieces


def same(dialect: Dialect, asked: CanonicalRequest, read: Read, whole: Message, pieces: list[Streamed]) -> None:
    """Compare what a client makes of both streams."""
    assert read(live(dialect, asked, answer(whole), pieces)) == read(held(dialect, asked, answer(whole)))


def sent_back(body: bytes) -> Message:
    """Return what Google's client says of an answer in its next request."""
    return google.returned(*(candidate["content"] for candidate in google.candidates(body)))
