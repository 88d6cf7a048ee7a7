"""The script of a scripted engine: an ordered list of rules, as JSON or TOML. Pure. docs/engines.md describes it with examples."""

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from evener.proto.errors import EvenerError
from evener.proto.prepared import Converter
from evener.proto.spec import Count

TAIL_CHARACTERS: Final = 2000
GATE: Final = "go"
"""The default gate."""

Number = Annotated[int, Meta(ge=0)]
Milliseconds = Annotated[float, Meta(ge=0)]
Status = Annotated[int, Meta(ge=400, le=599)]

Reload = Literal["obey", "ignore", "refuse"]


class ScriptError(EvenerError):
    """Correct the script at the place that the message names."""


class ToolCall(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tool call in the Hermes spelling, or in an unusual one."""

    name: str = ""
    arguments: dict[str, Any] | str = {}
    """The arguments. A string is written as it is, so that it may be spelled unusually or broken."""
    spelling: Literal["plain", "compact", "reordered", "inline", "escaped"] = "plain"
    """`compact`: JSON without spaces. `reordered`: arguments before the name. `inline`: no newlines around it. `escaped`: in ASCII."""
    raw: str | None = None
    """The whole block verbatim, instead of all fields above."""

    def __post_init__(self) -> None:
        """Raise ValueError for a call without content, or with two contents."""
        if (self.raw is None) == (not self.name):
            _wrong("a tool call has either a name or raw text")


class Wait(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A wait before a token, until a gate lets it pass."""

    before: Count
    """The number of the token, from 1."""
    gate: str = GATE


class Step(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One answer: its text, its speed, and its faults."""

    think: str = ""
    """The reasoning, which comes first, in `<think>`."""
    say: str = ""
    """The text. Special tokens in it are parsed."""
    tool_calls: tuple[ToolCall, ...] = ()
    """The tool calls, written after the text, one per line."""
    pieces: tuple[str, ...] | None = None
    """Texts that are tokenised separately, so that tokens end where they end. They replace think, say and tool_calls."""
    ids: tuple[Number, ...] | None = None
    """Ids verbatim, instead of all fields above. An end-of-turn id follows if the answer stops."""
    finish: Literal["stop", "length"] = "stop"
    """`stop`: an end-of-turn id follows. `length`: none follows, as if the token limit was reached."""

    delay_ms: Milliseconds = 0
    """The delay before the first token."""
    per_token_ms: Milliseconds | None = None
    """The time from token to token. None: the engine's own speed."""
    tokens_per_second: Annotated[float, Meta(gt=0)] | None = None
    """The same as a rate."""
    block: Count | None = None
    """The number of tokens in one event of a stream. None: the engine's own, or 1."""
    wait: tuple[Wait, ...] | Literal["each"] = ()
    """The waits for gates. `each`: before every token but the first, at the gate `go`."""

    fail: Status | Literal["cut", "hang", "abort"] | None = None
    """A fault: an HTTP status; `cut`: the connection closes; `hang`: silence for ever; `abort`: the engine ends the answer with that
    reason."""
    after: Number | None = None
    """The number of tokens before `cut`, `hang` or `abort`. None: all tokens of the answer."""
    report: Literal["shifted", "short", "stale"] | None = None
    """What the engine reports wrongly. `shifted`: each id comes with the logprob of the one before. `short`: the last logprob is missing.
    `stale`: logprobs of other weights. The ledger has the true ones."""
    version: str | None = None
    """A wrong label that the engine reports. The ledger has the true one."""

    def __post_init__(self) -> None:
        """Raise ValueError for fields that contradict each other."""
        texts = bool(self.think or self.say or self.tool_calls)
        if texts + (self.pieces is not None) + (self.ids is not None) > 1:
            _wrong("ids, pieces, and think with say and tool_calls exclude each other")
        if self.per_token_ms is not None and self.tokens_per_second is not None:
            _wrong("per_token_ms and tokens_per_second exclude each other")
        if self.after is not None and not isinstance(self.fail, str):
            _wrong("after belongs to fail: cut, hang or abort")

    @property
    def seconds_per_token(self) -> float | None:
        """The time from token to token. None: the engine's own."""
        if self.tokens_per_second is not None:
            return 1 / self.tokens_per_second
        return None if self.per_token_ms is None else self.per_token_ms / 1000


class Rule(Step, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An answer, or several in turn, with the conditions under which it is given. All conditions that are set must hold."""

    match: str | None = None
    """A text that must occur in the tail of the decoded prompt."""
    regex: str | None = None
    """A regular expression that must match there."""
    tail: Number = TAIL_CHARACTERS
    """How many characters at the end of the prompt are examined. 0: all."""
    call: Count | None = None
    """The number of the call at this engine, from 1."""
    times: Count | None = None
    """How often the rule answers. None: always."""
    steps: tuple[Step, ...] = ()
    """Several answers in turn, instead of one. The number of earlier answers in the prompt selects the step; after the last step the rule
    does not hold. So concurrent sessions do not disturb each other, and a repeated prompt gets the same answer."""
    key: str | None = None
    """A regular expression whose first group (or whole match) names the conversation. Each conversation is given the steps in sequence,
    whatever its prompts contain. Without a match the rule does not hold."""

    def __post_init__(self) -> None:
        """Raise ValueError for fields that contradict each other."""
        super().__post_init__()
        for name, pattern in (("regex", self.regex), ("key", self.key)):
            try:
                re.compile(pattern or "")
            except re.error as cause:
                _wrong(f"{name}: {cause}")
        if self.key is not None and not self.steps:
            _wrong("key belongs to steps")
        if self.steps and any(getattr(self, name) != getattr(Step(), name) for name in Step.__struct_fields__):
            _wrong("a rule with steps says nothing itself")


class Script(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The script. The first rule that holds answers, otherwise the default, otherwise the engine samples from its own distribution."""

    rules: tuple[Rule, ...] = ()
    default: Step | None = None
    reload: Reload = "obey"
    """What the engine does when it should load weights. `ignore`: it reports success and keeps the old weights."""


_scripts: Final = msgspec.json.Decoder(Script)
_tables: Final = Converter(Script)


def read_script(source: bytes | Path) -> Script:
    """Return the script in a JSON text, or in a JSON or TOML file. Raises ScriptError naming the place."""
    where = "script" if isinstance(source, bytes) else f"script {source}"
    try:
        if isinstance(source, Path) and source.suffix == ".toml":
            return _tables.convert(tomllib.loads(source.read_text()))
        return _scripts.decode(source if isinstance(source, bytes) else source.read_bytes())
    except (OSError, msgspec.MsgspecError, tomllib.TOMLDecodeError, UnicodeDecodeError) as cause:
        msg = f"{where}: {cause}"
        raise ScriptError(msg) from cause


def _wrong(what: str) -> None:
    raise ValueError(what)
