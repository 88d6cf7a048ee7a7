"""What a scripted engine says: an ordered list of rules. Pure.

As JSON: `{"rules": [{"match": "capital of France", "say": "Paris"}, {"fail": 503, "times": 1}], "default": {"say": "ok"}}`.
"""

import json
import re
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct
from tokenizers import Tokenizer

from evener.proto.errors import EvenerError

TAIL_CHARACTERS: Final = 2000


class ScriptError(EvenerError):
    """Correct the script: the message says where."""


class ToolCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool call in the Hermes spelling."""

    name: str
    arguments: dict[str, Any] | str = {}
    """A string is written as it is: spelled oddly, or broken."""

    def text(self) -> str:
        """Return the call as the model spells it."""
        arguments = self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments, ensure_ascii=False)
        return f'<tool_call>\n{{"name": {json.dumps(self.name)}, "arguments": {arguments}}}\n</tool_call>'


class Rule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One answer, and when it is given: all conditions that are set must hold."""

    match: str | None = None
    """Text found in the tail of the decoded prompt."""
    regex: str | None = None
    """A regular expression found there."""
    tail: int = TAIL_CHARACTERS
    """How many characters of the prompt's end are looked at."""
    call: int | None = None
    """The number of the call, from 1."""
    times: int | None = None
    """How often the rule answers. None: always."""

    say: str = ""
    """Text; special tokens in it are parsed."""
    ids: tuple[int, ...] | None = None
    """Ids instead of text, just as they are."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Written after the text, one a line."""
    finish: Literal["stop", "length"] = "stop"
    """`stop`: an end-of-turn id follows. `length`: none, as if the tokens had run out."""
    delay_ms: float = 0
    """Silence before the first token."""
    per_token_ms: float = 0
    fail: int | Literal["cut", "hang"] | None = None
    """An HTTP status; or, after what is said: `cut` closes the connection, `hang` is silent for ever."""


class Script(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first rule that matches answers, else the default, else the engine samples from its own distribution."""

    rules: tuple[Rule, ...] = ()
    default: Rule | None = None


def read_script(source: bytes | Path) -> Script:
    """Return the script in a JSON text or file. Raises ScriptError."""
    try:
        script = msgspec.json.decode(source if isinstance(source, bytes) else source.read_bytes(), type=Script)
        for rule in script.rules:
            re.compile(rule.regex or "")
    except (OSError, msgspec.MsgspecError, re.error) as cause:
        where = "script" if isinstance(source, bytes) else f"script {source}"
        msg = f"{where}: {cause}"
        raise ScriptError(msg) from cause
    return script


class Player:
    """A script being played: it counts calls and uses of rules."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._calls = 0
        self._used = [0] * len(script.rules)

    def next_rule(self, prompt: str) -> Rule | None:
        """Return the rule that answers the next call, or None."""
        self._calls += 1
        for index, rule in enumerate(self._script.rules):
            if (rule.times is None or self._used[index] < rule.times) and _holds(rule, prompt, self._calls):
                self._used[index] += 1
                return rule
        return self._script.default


def spell(rule: Rule, tokenizer: Tokenizer, end_id: int) -> list[int]:
    """Return the ids that a rule says, with the end-of-turn id where it stops."""
    if rule.ids is not None:
        ids = list(rule.ids)
    else:
        text = "\n".join(part for part in (rule.say, *(call.text() for call in rule.tool_calls)) if part)
        ids = tokenizer.encode(text, add_special_tokens=False).ids
    return [*ids, end_id] if rule.finish == "stop" and rule.fail is None else ids


def _holds(rule: Rule, prompt: str, call: int) -> bool:
    tail = prompt[-rule.tail :]
    return (
        (rule.match is None or rule.match in tail)
        and (rule.regex is None or re.search(rule.regex, tail) is not None)
        and (rule.call is None or rule.call == call)
    )
