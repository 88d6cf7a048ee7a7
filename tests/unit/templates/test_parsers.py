"""Sampled text to messages: whole blocks are calls, everything else is what the model wrote."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evener.templates.parsers import Parser, split_calls

PARSER = Parser(tool_calls=True, thinks=True)
GOOD = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
CALL = {"name": "f", "arguments": {"a": 1}}


def parse(text: str, parser: Parser = PARSER) -> dict[str, Any]:
    return parser.parse(text, call_id="c1", choice=2)


def test_call_gets_its_derived_id() -> None:
    assert parse(GOOD + "\n" + GOOD)["tool_calls"] == [{"id": "callc1x2x0", **CALL}, {"id": "callc1x2x1", **CALL}]


def test_text_around_calls_is_kept() -> None:
    message = parse(f"  First.\n{GOOD}\nThen.\n{GOOD}\n")
    assert message["content"] == "  First.\nThen."
    assert len(message["tool_calls"]) == 2


def test_call_alone_has_empty_content() -> None:
    assert parse(f"\n{GOOD}")["content"] == ""


@pytest.mark.parametrize(
    "inside",
    [
        '{"name": "f", "arguments": {"a": 1}',
        '{"name": "f", "arguments": "{}"}',
        '{"name": "f"}',
        '{"arguments": {}}',
        '{"name": "", "arguments": {}}',
        '{"name": "f", "arguments": {"a": NaN}}',
        '{"name": "f", "arguments": {"a": 1e999}}',
        '{"name": "f", "arguments": {"a": "\\ud83d"}}',
        '{"name": "f", "arguments": {}} trailing',
        '["f"]',
        "9" * 5000,
        "[" * 100_000,
        "",
    ],
)
def test_broken_block_stays_text(inside: str) -> None:
    """The harness sees what the model wrote, and the model meets the consequences."""
    text = f"a\n<tool_call>\n{inside}\n</tool_call> "
    assert parse(text) == {"role": "assistant", "content": text}


def test_unclosed_block_stays_text() -> None:
    text = GOOD.removesuffix("</tool_call>")
    assert parse(text) == {"role": "assistant", "content": text}


def test_good_block_after_a_broken_one_is_a_call() -> None:
    message = parse(f"<tool_call>oops</tool_call>\n{GOOD}")
    assert message["content"] == "<tool_call>oops</tool_call>"
    assert len(message["tool_calls"]) == 1


def test_closing_mark_inside_an_argument_closes_nothing() -> None:
    arguments = {"text": "</tool_call>"}
    block = f"<tool_call>{json.dumps({'name': 'f', 'arguments': arguments})}</tool_call>"
    assert parse(block)["tool_calls"][0]["arguments"] == arguments


def test_reasoning_comes_before_the_answer() -> None:
    message = parse("<think>\nHm, 2 + 2.\n</think>\n\nFour.")
    assert message == {"role": "assistant", "content": "Four.", "reasoning": "Hm, 2 + 2."}


def test_blank_reasoning_is_none() -> None:
    assert parse("<think>\n\n</think>\n\nFour.") == {"role": "assistant", "content": "Four."}


def test_reasoning_cut_by_length_has_no_content() -> None:
    assert parse("<think>\nHm") == {"role": "assistant", "content": "", "reasoning": "Hm"}


def test_answer_that_begins_inside_its_reasoning() -> None:
    """Some templates open the reasoning in the generation prompt."""
    inside = Parser(tool_calls=True, thinks=True, thinking=True)
    assert parse("Hm\n</think>\n\nFour.", inside) == {"role": "assistant", "content": "Four.", "reasoning": "Hm"}


def test_think_later_in_the_text_is_text() -> None:
    assert parse("I <think>so</think>.") == {"role": "assistant", "content": "I <think>so</think>."}


def test_parser_of_nothing_keeps_everything() -> None:
    text = f"<think>a</think>{GOOD}"
    assert parse(text, Parser(tool_calls=False, thinks=False)) == {"role": "assistant", "content": text}


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["<tool_call>", "</tool_call>", "<think>", "</think>", GOOD, "{", "}", '"', "\n", "a"]), max_size=12).map(
        "".join
    )
)
def test_any_text_parses(text: str) -> None:
    """No text crashes it, and without a call nothing is changed."""
    content, calls = split_calls(text)
    assert calls or content == text
    parse(text)
