"""Converts a step of a script to the ids that are sampled. Pure."""

import json
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace
from tokenizers import Tokenizer

from evener.engines.scripted.prompt import Prompt
from evener.engines.scripted.script import Script, ScriptError, Step, ToolCall
from evener.templates.parsers import THINK, THOUGHT

COMPACT: Final = (",", ":")


class Speller:
    """Spells steps. What a step says is encoded once."""

    def __init__(self, tokenizer: Tokenizer, end_id: int) -> None:
        """`end_id`: the id that ends what the script says."""
        self._tokenizer: Final = tokenizer
        self._end_id: Final = end_id
        self._spelled: Final[dict[tuple[int, bool], tuple[Step, list[int]]]] = {}

    def check(self, script: Script) -> None:
        """Raise ScriptError, naming the place, for ids that the tokenizer does not have."""
        for place, step in steps_of(script):
            unknown = next((each for each in step.ids or () if each >= self._tokenizer.get_vocab_size()), None)
            if unknown is not None:
                msg = f"{place}.ids: the tokenizer has no id {unknown}"
                raise ScriptError(msg)

    def ids(self, step: Step, prompt: Prompt) -> list[int]:
        """Return the ids that a step samples after a prompt, which may have opened the reasoning."""
        thinking = self._thinks(step, prompt)
        key = (id(step), thinking)
        if key not in self._spelled:
            self._spelled[key] = step, self._spell(step, thinking=thinking)  # the step is kept: its id stays its own
        return self._spelled[key][1]

    def all_ids(self, step: Step, prompt: Prompt) -> list[int]:
        """Return the ids that a step would sample without its fault."""
        if step.fail is None:
            return self.ids(step, prompt)
        return self._spell(replace(step, fail=None, after=None), thinking=self._thinks(step, prompt))

    def _thinks(self, step: Step, prompt: Prompt) -> bool:
        return step.ids is None and step.pieces is None and prompt.thinking

    def _spell(self, step: Step, *, thinking: bool) -> list[int]:
        if step.ids is not None:
            ids = list(step.ids)
        else:
            texts = step.pieces if step.pieces is not None else (text_of(step, thinking=thinking),)
            ids = [each for text in texts for each in self._tokenizer.encode(text, add_special_tokens=False).ids]
        return [*ids, self._end_id][: step.after] if step.finish == "stop" and not _fails_at_once(step) else ids[: step.after]


def steps_of(script: Script) -> Iterator[tuple[str, Step]]:
    """Yield every step of a script with its place."""
    for index, rule in enumerate(script.rules):
        yield f"rules[{index}]", rule
        yield from ((f"rules[{index}].steps[{number}]", step) for number, step in enumerate(rule.steps))
    if script.default is not None:
        yield "default", script.default


def text_of(step: Step, *, thinking: bool) -> str:
    """Return think, say and tool calls as one text."""
    said = "\n".join(part for part in (step.say, *(spell_call(call) for call in step.tool_calls)) if part)
    if thinking:
        return f"{step.think}\n{THOUGHT}\n\n{said}"
    return f"{THINK}\n{step.think}\n{THOUGHT}\n\n{said}" if step.think else said


def spell_call(call: ToolCall) -> str:
    """Return a tool call as the model spells it."""
    if call.raw is not None:
        return call.raw
    separators = COMPACT if call.spelling == "compact" else None
    ascii_only = call.spelling == "escaped"
    arguments = call.arguments
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=ascii_only, separators=separators)
    gap, colon = COMPACT if separators else (", ", ": ")
    parts = [f'"name"{colon}{json.dumps(call.name, ensure_ascii=ascii_only)}', f'"arguments"{colon}{arguments}']
    body = gap.join(reversed(parts) if call.spelling == "reordered" else parts)
    glue = "" if call.spelling == "inline" else "\n"
    return f"<tool_call>{glue}{{{body}}}{glue}</tool_call>"


def _fails_at_once(step: Step) -> bool:
    """Return whether the answer breaks off after its text, before its end of turn."""
    return step.fail is not None and step.after is None
