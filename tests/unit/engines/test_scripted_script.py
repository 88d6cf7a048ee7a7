"""The language of scripts: what is said, how it is spelled and tokenised, in which order, and what is wrong with a script."""

import json
from pathlib import Path

import pytest
from tests.support.engines import Play
from tests.unit.engines.conftest import Connect
from tokenizers import Tokenizer

from evener.engines.scripted import Rule, Script, ScriptError, Step, ToolCall
from evener.engines.scripted.prompt import Prompt
from evener.engines.scripted.script import read_script
from evener.engines.scripted.spelling import spell_call

BLOCK = ("<tool_call>\n", "\n</tool_call>")
ANSWER = "<|im_start|>assistant\n"


def turns(*answers: str, first: str = "Go") -> str:
    """Return a prompt with earlier answers."""
    earlier = "".join(f"{ANSWER}{answer}<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n" for answer in answers)
    return f"<|im_start|>user\n{first}<|im_end|>\n{earlier}{ANSWER}"


async def test_reasoning_comes_before_what_is_said(play: Play, client: Connect) -> None:
    asking = client(await play(Script(default=Step(think="Hm.", say="Yes."))))
    assert await asking.text("Go") == "<think>\nHm.\n</think>\n\nYes.<|im_end|>"


async def test_reasoning_that_the_prompt_has_opened_is_closed(play: Play, client: Connect) -> None:
    """Templates of thinking models end the prompt inside the reasoning."""
    asking = client(await play(Script(rules=(Rule(match="hard", think="Hm.", say="Yes."),), default=Step(say="No."))))
    assert await asking.text("hard\n<think>\n") == "Hm.\n</think>\n\nYes.<|im_end|>"
    assert await asking.text("easy\n<think>\n") == "\n</think>\n\nNo.<|im_end|>"


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (ToolCall(name="f", arguments={"b": 1, "a": "é"}), '<tool_call>\n{"name": "f", "arguments": {"b": 1, "a": "é"}}\n</tool_call>'),
        (ToolCall(name="f", arguments={"a": 1}, spelling="compact"), '<tool_call>\n{"name":"f","arguments":{"a":1}}\n</tool_call>'),
        (ToolCall(name="f", arguments={"a": 1}, spelling="reordered"), '<tool_call>\n{"arguments": {"a": 1}, "name": "f"}\n</tool_call>'),
        (ToolCall(name="f", arguments={"a": 1}, spelling="inline"), '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'),
        (
            ToolCall(name="f", arguments={"a": "é"}, spelling="escaped"),
            '<tool_call>\n{"name": "f", "arguments": {"a": "\\u00e9"}}\n</tool_call>',
        ),
        (ToolCall(name="f", arguments='{"a": 1e3'), '<tool_call>\n{"name": "f", "arguments": {"a": 1e3}\n</tool_call>'),
        (ToolCall(raw="<tool_call>f()"), "<tool_call>f()"),
    ],
    ids=["plain", "compact", "reordered", "inline", "escaped", "text", "raw"],
)
def test_calls_are_spelled_oddly_on_demand(call: ToolCall, text: str) -> None:
    assert spell_call(call) == text


async def test_pieces_are_tokenised_alone(play: Play, client: Connect) -> None:
    """The same text in other tokens than the tokenizer would choose."""
    asking = client(await play(Script(default=Step(pieces=("wo", "rd"), finish="length"))))
    ids = (await asking.ask("Go")).ids.tolist()
    assert asking.tokenizer.decode(ids) == "word"
    assert ids != asking.tokenizer.encode("word").ids


async def test_steps_follow_the_answers_in_the_prompt(play: Play, client: Connect) -> None:
    """Sessions side by side, and a prompt sent again, get what their own histories ask for; then the next rule holds."""
    steps = (Step(say="one"), Step(say="two"))
    asking = client(await play(Script(rules=(Rule(steps=steps),), default=Step(say="done"))))
    prompts = (turns(), turns("one"), turns(), turns("one"), turns("one", "two"), turns("one", "two", "done"))
    said = [(await asking.text(prompt)).removesuffix("<|im_end|>") for prompt in prompts]
    assert said == ["one", "two", "one", "two", "done", "done"]


async def test_steps_of_named_conversations_are_played_one_after_the_other(play: Play, client: Connect) -> None:
    """Also where the prompts do not show how far they are, after a compaction."""
    rule = Rule(key=r"task-(\w+)", steps=(Step(say="one"), Step(say="two")))
    asking = client(await play(Script(rules=(rule,), default=Step(say="done"))))
    said = [
        (await asking.text(f"{name} " + "word " * 3000)).removesuffix("<|im_end|>")
        for name in ("task-a", "task-b", "task-a", "task-a", "x")
    ]
    assert said == ["one", "one", "two", "done", "done"]


def test_a_tail_is_decoded_whatever_its_letters_weigh(smollm_tokenizer: Tokenizer) -> None:
    """As many characters as were asked for, also where each is several tokens."""
    text = "start " + "🦄" * 300 + "日本語"
    prompt = Prompt(smollm_tokenizer.encode(text).ids, smollm_tokenizer, [1])
    assert [prompt.tail(size) for size in (1, 3, 40, 10_000)] == [text[-1:], text[-3:], text[-40:], text]


def test_scripts_are_toml_too(tmp_path: Path) -> None:
    path = tmp_path / "script.toml"
    path.write_text('[[rules]]\nmatch = "capital"\n[[rules.steps]]\nsay = "Paris"\nwait = [{ before = 2 }]\n[default]\nfail = 503\n')
    as_json = tmp_path / "script.json"
    as_json.write_text(
        json.dumps({"rules": [{"match": "capital", "steps": [{"say": "Paris", "wait": [{"before": 2}]}]}], "default": {"fail": 503}})
    )
    assert read_script(path) == read_script(as_json)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ({"rules": [{"say": 1}]}, r"Expected `str`, got `int` - at `\$\.rules\[0\]\.say`"),
        ({"rules": [{"sya": ""}]}, r"unknown field `sya` - at `\$\.rules\[0\]`"),
        ({"rules": [{}, {"regex": "("}]}, r"regex: .* - at `\$\.rules\[1\]`"),
        ({"rules": [{"steps": [{"say": "a", "ids": [1]}]}]}, r"exclude each other - at `\$\.rules\[0\]\.steps\[0\]`"),
        ({"rules": [{"say": "a", "steps": [{}]}]}, r"says nothing itself - at `\$\.rules\[0\]`"),
        ({"rules": [{"key": "a"}]}, r"key belongs to steps"),
        ({"default": {"fail": 200}}, r">= 400 - at `\$\.default\.fail`"),
        ({"default": {"after": 2}}, r"after belongs to fail"),
        ({"default": {"tool_calls": [{}]}}, r"a name or raw text - at `\$\.default\.tool_calls\[0\]`"),
        ({"default": {"wait": [{"before": 0}]}}, r">= 1 - at `\$\.default\.wait\[0\]\.before`"),
    ],
)
def test_a_wrong_script_names_its_place(tmp_path: Path, script: object, said: str) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps(script))
    with pytest.raises(ScriptError, match=rf"script\.json: .*{said}"):
        read_script(path)


async def test_an_id_that_the_tokenizer_lacks_names_its_place(play: Play) -> None:
    script = Script(rules=(Rule(steps=(Step(), Step(ids=(10_000_000,)))),))
    with pytest.raises(ScriptError, match=r"rules\[0\]\.steps\[1\]\.ids: .* 10000000"):
        await play(script)
