"""Sampled text to messages: whole blocks are calls, everything else is what the model wrote."""

import json
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evener.templates import calls
from evener.templates.calls import WholeJson
from evener.templates.harmony import Harmony
from evener.templates.kept_thinking import without_thought
from evener.templates.parsers import AnswerParser, ParsedAnswer, Tagged
from evener.tokens.numbers import MAX_DIGITS, MAX_FLOAT

PARSER = Tagged(calls=calls.CALL_FORMATS["hermes"], thinks=True)
INSIDE = Tagged(calls=calls.CALL_FORMATS["functions"], thinks=True, thinking=True)
GOOD = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
CALL = ("f", {"a": 1})
TOOLS = [
    {
        "name": "f",
        "parameters": {"properties": {"s": {"type": "string"}, "n": {"type": "integer"}, "o": {"type": "object"}}},
    }
]


def marked(name: str) -> str:
    """Spell a control token of DeepSeek."""
    return f"<\uff5c{name}\uff5c>".replace(" ", "\u2581")


def parse(text: str, parser: AnswerParser = PARSER, end: str = "") -> ParsedAnswer:
    return parser.parse(text, end=end, tools=TOOLS)


def test_text_around_calls_is_kept() -> None:
    answer = parse(f"  First.\n{GOOD}\nThen.\n{GOOD}\n")
    assert answer == ParsedAnswer(content="  First.\nThen.", calls=(CALL, CALL))


def test_call_alone_has_empty_content() -> None:
    assert parse(f"\n{GOOD}").content == ""


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
        f'{{"name": "f", "arguments": {{"a": {"9" * (MAX_DIGITS + 1)}}}}}',
        f'{{"name": "f", "arguments": {{"a": 0.{"1" * MAX_FLOAT}}}}}',
        "[" * 100_000,
        "",
    ],
)
def test_broken_block_stays_text(inside: str) -> None:
    """The harness sees what the model wrote, and the model meets the consequences."""
    text = f"a\n<tool_call>\n{inside}\n</tool_call> "
    assert parse(text) == ParsedAnswer(content=text)


def test_unclosed_block_stays_text() -> None:
    text = GOOD.removesuffix("</tool_call>")
    assert parse(text) == ParsedAnswer(content=text)


def test_good_block_after_a_broken_one_is_a_call() -> None:
    assert parse(f"<tool_call>oops</tool_call>\n{GOOD}") == ParsedAnswer(content="<tool_call>oops</tool_call>", calls=(CALL,))


def test_closing_mark_inside_an_argument_closes_nothing() -> None:
    arguments = {"text": "</tool_call>"}
    block = f"<tool_call>{json.dumps({'name': 'f', 'arguments': arguments})}</tool_call>"
    assert parse(block).calls == (("f", arguments),)


def test_reasoning_comes_before_the_answer() -> None:
    assert parse("<think>\nHm, 2 + 2.\n</think>\n\nFour.") == ParsedAnswer(content="Four.", reasoning="Hm, 2 + 2.")


def test_blank_reasoning_is_none() -> None:
    assert parse("<think>\n\n</think>\n\nFour.") == ParsedAnswer(content="Four.")


def test_reasoning_cut_by_length_has_no_content() -> None:
    assert parse("<think>\nHm") == ParsedAnswer(reasoning="Hm")


def test_answer_that_begins_inside_its_reasoning() -> None:
    """Some templates open the reasoning in the generation prompt."""
    assert parse("Hm\n</think>\n\nFour.", INSIDE) == ParsedAnswer(content="Four.", reasoning="Hm")


def test_think_later_in_the_text_is_text() -> None:
    assert parse("I <think>so</think>.") == ParsedAnswer(content="I <think>so</think>.")


def test_parser_of_nothing_keeps_everything() -> None:
    text = f"<think>a</think>{GOOD}"
    assert parse(text, Tagged(calls=None, thinks=False)) == ParsedAnswer(content=text)


def test_functions_have_values_of_their_declared_types() -> None:
    """Without quotes only the tool's schema tells a number from a text."""
    block = (
        "<tool_call>\n<function=f>\n<parameter=s>\n5\n</parameter>\n<parameter=n>\n5\n</parameter>\n"
        '<parameter=o>\n{"a": [1]}\n</parameter>\n<parameter=x>\ntwo\nlines\n</parameter>\n</function>\n</tool_call>'
    )
    found = Tagged(calls=calls.CALL_FORMATS["functions"], thinks=False)
    assert parse("Look.\n\n" + block, found) == ParsedAnswer(
        content="Look.", calls=(("f", {"s": "5", "n": 5, "o": {"a": [1]}, "x": "two\nlines"}),)
    )


@pytest.mark.parametrize(
    "block",
    [
        "<tool_call>\n<function=f>\n<parameter=s>\n5\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n</tool_call>",
        "<tool_call>\n<function=>\n</function>\n</tool_call>",
        "<tool_call>\n<function=f>\n</function>\n",
        "<tool_call><function=f>" + "<parameter=a></parameter>" * 5000,
    ],
)
def test_broken_function_stays_text(block: str) -> None:
    """And costs no more than reading it."""
    assert parse(block, Tagged(calls=calls.CALL_FORMATS["functions"], thinks=False)) == ParsedAnswer(content=block)


OPEN = "<tool_call><function=f><parameter=a>"
CPU_SECONDS = 5.0
"""A bar for what takes a tenth of a second, and much longer if its time grows with the square of the number of blocks."""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("functions", OPEN * 30_000),
        ("functions", OPEN * 30_000 + "</parameter>"),
        ("functions", OPEN * 5_000 + "</parameter><parameter=a>" * 5_000),
        ("functions", OPEN * 5_000 + "</parameter><parameter=a>" * 5_000 + "</function>"),
        ("keys", "<tool_call>f<arg_key>a</arg_key><arg_value>" * 30_000),
        ("hermes", "<tool_call>" * 30_000 + " " * 600_000),
        ("hermes", ("<tool_call>" + " " * 20) * 60_000),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "' * 30_000),
        ("deepseek", (marked("tool calls begin") + marked("tool call begin") + "f" + marked("tool sep") + "{") * 30_000),
    ],
)
def test_blocks_that_never_close_take_no_longer_than_others(name: str, text: str) -> None:
    """Eight thousand took five seconds, in which no other thread ran; as many fit into one answer."""
    before = time.thread_time()
    assert parse(text, Tagged(calls=calls.CALL_FORMATS[name], thinks=False)) == ParsedAnswer(content=text)
    assert time.thread_time() - before < CPU_SECONDS


PIECES = st.sampled_from([OPEN, "<parameter=b>", "1", "</parameter>", "</function>", "</tool_call>", " "])


@given(st.lists(PIECES, max_size=30).map("".join))
def test_a_block_that_follows_broken_ones_is_read_as_if_it_stood_alone(text: str) -> None:
    """What was learnt from the blocks before it changes nothing."""
    functions = calls.CALL_FORMATS["functions"]
    assert isinstance(functions, calls.Blocks)
    found: list[calls.Found] = []
    at = 0
    while (start := text.find("<tool_call>", at)) >= 0:
        at = start + len("<tool_call>")
        if block := functions.reader(text, {})(at):
            found += block[0]
            at = block[1]
    assert functions.split(text, [])[1] == tuple(found)


@given(st.lists(st.sampled_from(["<think>", "</think>", " \n", "a"]), max_size=10).map("".join))
def test_a_turn_without_its_reasoning(turn: str) -> None:
    """As the pattern says, which takes time that grows with the square of the number of marks."""
    assert without_thought(turn) == re.sub(r"\s*<think>.*?</think>\s*", "", turn, count=1, flags=re.DOTALL)


def test_a_turn_of_marks_is_looked_at_once() -> None:
    """Twenty thousand took half a minute."""
    before = time.thread_time()
    assert without_thought("<think>" * 60_000) == "<think>" * 60_000
    assert without_thought(" " * 400_000 + "a") == " " * 400_000 + "a"
    assert time.thread_time() - before < CPU_SECONDS


def test_keys_and_values_are_a_call() -> None:
    """As GLM spells them."""
    block = "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>5</arg_value>\n<arg_key>s</arg_key>\n<arg_value>5</arg_value>\n</tool_call>"
    assert parse(block, Tagged(calls=calls.CALL_FORMATS["keys"], thinks=False)).calls == (("f", {"n": 5, "s": "5"}),)


@pytest.mark.parametrize("before", ["", "<|python_tag|>", " \n"])
def test_answer_that_is_json_is_a_call(before: str) -> None:
    """As Llama 3 spells it."""
    parser = Tagged(calls=WholeJson(), thinks=False)
    assert parse(before + '{"name": "f", "parameters": {"a": 1}}\n', parser) == ParsedAnswer(calls=(CALL,))


@pytest.mark.parametrize(
    "text",
    [
        'Sure: {"name": "f", "parameters": {"a": 1}}',
        '{"name": "f", "parameters": {"a": 1}} there',
        '{"name": "f"}',
        '<|python_tag|>print("hi")',
    ],
)
def test_answer_with_json_in_it_is_text(text: str) -> None:
    assert parse(text, Tagged(calls=WholeJson(), thinks=False)) == ParsedAnswer(content=text)


DEEPSEEK_OLD = marked("tool call begin") + "function" + marked("tool sep") + 'f\n```json\n{"a": 1}\n```' + marked("tool call end")
DEEPSEEK_NEW = marked("tool call begin") + "f" + marked("tool sep") + '{"a": 1}' + marked("tool call end")


@pytest.mark.parametrize("call", [DEEPSEEK_OLD, DEEPSEEK_NEW])
def test_calls_of_deepseek(call: str) -> None:
    parser = Tagged(calls=calls.CALL_FORMATS["deepseek"], thinks=False)
    begin, end = marked("tool calls begin"), marked("tool calls end")

    assert parse(f"Look.{begin}{call}\n{call}{end}", parser) == ParsedAnswer(content="Look.", calls=(CALL, CALL))
    assert parse(f"Look.{begin}{call}", parser) == ParsedAnswer(content=f"Look.{begin}{call}")


ANALYSIS = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
PREAMBLE = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
COMMENTARY = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"


@pytest.mark.parametrize("header", [COMMENTARY, " to=functions.f<|channel|>commentary json<|message|>"])
def test_harmony_call(header: str) -> None:
    """A preamble is text; analysis is reasoning; a call counts if it was ended as one."""
    text = ANALYSIS + PREAMBLE + header + '{"a": 1}'
    answer = parse(text, Harmony(), end="<|call|>")

    assert answer == ParsedAnswer(reasoning="Hm.", content="I look.", calls=(CALL,))
    assert not parse(text, Harmony()).calls


def test_harmony_final_is_the_text() -> None:
    text = ANALYSIS + "<|channel|>final<|message|>Four."
    assert parse(text, Harmony(), end="<|return|>") == ParsedAnswer(reasoning="Hm.", content="Four.")


def test_harmony_may_reason_on_after_a_preamble_but_not_after_its_final() -> None:
    """So the text can leave with the first letter of `final`."""
    text = PREAMBLE + ANALYSIS + "<|channel|>final<|message|>Four.<|end|><|start|>assistant"
    again = "<|channel|>analysis<|message|>So?"

    assert parse(text + again, Harmony(), end="<|return|>") == ParsedAnswer(reasoning="Hm.", content="I look.\nFour.\nSo?")
    [(begin, end)] = Harmony().reasoning_spans(text + again)
    assert text[begin:end] == "<|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>"


def test_harmony_without_its_form_is_text() -> None:
    assert parse("Four.", Harmony(), end="<|return|>") == ParsedAnswer(content="Four.")


def test_reasoning_is_counted_with_its_marks() -> None:
    assert PARSER.reasoning_spans("<think>\nHm\n</think>\n\nFour.") == [(0, 19)]
    assert PARSER.reasoning_spans("Four.") == []
    assert Harmony().reasoning_spans(ANALYSIS + "<|channel|>final<|message|>Four.") == [(0, ANALYSIS.index("<|start|>"))]


PARSERS: dict[str, AnswerParser] = {
    "hermes": PARSER,
    "hermes, inside": Tagged(calls=calls.CALL_FORMATS["hermes"], thinks=True, thinking=True),
    "functions, inside": INSIDE,
    "keys": Tagged(calls=calls.CALL_FORMATS["keys"], thinks=True),
    "json": Tagged(calls=WholeJson(), thinks=False),
    "deepseek": Tagged(calls=calls.CALL_FORMATS["deepseek"], thinks=True),
    "harmony": Harmony(),
    "none": Tagged(calls=None, thinks=True),
}
PARTS = st.sampled_from(
    [
        *'<>{}|"a \n',
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        GOOD,
        "<function=f>",
        "</function>",
        '{"name": "f", "parameters": {}}',
        "<|python_tag|>",
        "<|channel|>",
        "analysis",
        "final",
        "commentary",
        " to=functions.f",
        "<|message|>",
        "<|end|>",
        "<|call|>",
        "<|start|>assistant",
        ANALYSIS,
        PREAMBLE,
        "<|channel|>final<|message|>Four.",
        COMMENTARY,
        marked("tool calls begin"),
        DEEPSEEK_NEW,
        marked("tool calls end"),
    ]
)


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=400)
@given(st.lists(PARTS, max_size=12), st.integers(0, 200), st.integers(0, 200), st.sampled_from(["", "<|call|>", "<|return|>"]))
def test_what_is_certain_never_changes(name: str, parts: list[str], first: int, second: int, end: str) -> None:
    """Whatever was streamed is a beginning of what the whole answer says, and grows; once there is text the reasoning is whole."""
    parser, text = PARSERS[name], "".join(parts)
    earlier, later = sorted((first, second))
    whole = parser.parse(text, end=end, tools=[])
    early, late = parser.certain(text[:earlier]), parser.certain(text[:later])
    for before, after, final in zip(early, late, (whole.reasoning, whole.content), strict=True):
        assert after.startswith(before)
        assert final.startswith(after)
    assert not early[1] or early[0] == whole.reasoning


@pytest.mark.parametrize(
    ("name", "text", "certain"),
    [
        ("hermes", "<think>\nHm, so\n</thi", ("Hm, so", "")),
        ("hermes", "<think>\nHm\n</think>\n\nI look. \n<tool", ("Hm", "I look.")),
        ("functions, inside", "Hm", ("Hm", "")),
        ("json", '{"name"', ("", "")),
        ("harmony", ANALYSIS + "<|channel|>final<|message|>Fo", ("Hm.", "Fo")),
        ("harmony", ANALYSIS + PREAMBLE, ("Hm.", "")),
        ("harmony", ANALYSIS + PREAMBLE + "<|channel|>final<|message|>Fo", ("Hm.", "I look.\nFo")),
    ],
)
def test_text_is_streamed_as_soon_as_it_is_certain(name: str, text: str, certain: tuple[str, str]) -> None:
    assert PARSERS[name].certain(text) == certain
