"""Bridges by the rules of a model family (the library `renderers`), at the same cost for any length of the conversation.

The library knows how a family continues after a sampled turn without rendering what came before. Its rules are used only where they were
proven when the policy was opened: for each order of roles that may follow a turn, its ids must equal the difference of two renders of the
model's own template, after short and long histories, after texts, reasoning and tool calls. Everything else that follows a turn is bridged
by two renders. Texts reach the library guarded, so that it cannot mistake them for control tokens either.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import groupby
from typing import Any, Final

import numpy as np

from evener.proto.sessions import BridgedBy
from evener.proto.spec import PolicyOptions, Thinking
from evener.templates.port import Bridge, TemplateError
from evener.templates.renderer import JinjaRenderer
from evener.templates.special import SplitEncoder
from evener.tokens.digests import Message

CANDIDATES: Final = {
    "<tool_call>": ("qwen3", "qwen3.5", "qwen3.6", "qwen3.8", "nemotron-3", "nemotron-3-ultra", "nemotron-3.5", "prime-qwen3"),
    "<|eot_id|>": ("llama-3",),
    "<\uff5cAssistant\uff5c>": ("deepseek-v3", "deepseek-r1", "deepseek-v4"),
    "<|observation|>": ("glm-4.5", "glm-5", "glm-5.1", "glm-5.3"),
    "<|tool_calls_section_begin|>": ("kimi-k2",),
    "]~b]": ("minimax-m2",),
}
"""Families by a token of their tokenizers. gpt-oss is absent because its renderer fetches its vocabulary from the network and encodes texts
past the guard, and families of vision models are absent too."""
LIBRARY_ERRORS: Final = (AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""The errors that the library raises for a tokenizer or a message of another family."""
Roles = tuple[str, ...]


class LibraryTokenizer:
    """The tokenizer that the library uses. Special tokens in guarded texts are split; those that the library writes are parsed."""

    name_or_path = ""
    unk_token_id = None
    eos_token_id = None

    def __init__(self, encoder: SplitEncoder, renderer: JinjaRenderer) -> None:
        self._encoder = encoder
        self._renderer = renderer
        self._sentinel: ContextVar[str] = ContextVar("sentinel", default="")

    @contextmanager
    def guarding(self, sentinel: str) -> Iterator[None]:
        """Encode texts that were guarded with this sentinel."""
        token = self._sentinel.set(sentinel)
        try:
            yield
        finally:
            self._sentinel.reset(token)

    def encode(self, text: str, **_: Any) -> list[int]:
        return self._encoder.encode(text, self._sentinel.get())

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        return b"".join(self._renderer.pieces(ids)).decode("utf-8", "replace")

    def convert_tokens_to_ids(self, token: str) -> int | None:
        return self._encoder.control.get(token)


class FamilyRules:
    """Implements `renderer.TurnRules`. Ids are computed after the prompt and answer of a probe instead of the conversation's own."""

    def __init__(self, family: str, renderer: JinjaRenderer, options: PolicyOptions) -> None:
        """Raise TemplateError if the library has no such family, or the tokenizer is another family's."""
        self.family = family
        self.proven: frozenset[Roles] = frozenset()
        """The orders of roles after a turn for which the rules are proven."""
        self._renderer = renderer
        self._tokenizer = LibraryTokenizer(renderer.encoder, renderer)
        self._library = _library(family, self._tokenizer, options)
        self._stop_id = renderer.stop_ids[0]
        self._prompt, self._completion = _probe_turn(renderer)

    def bridge(self, answer: Message, new: Sequence[Message], *, closed: bool) -> Bridge | None:
        """Return the bridge where the rules are proven. None: they are not, or the library refuses."""
        if _roles(new) not in self.proven or not _answered(answer, new) or ("reasoning" in answer and not self._renderer.reads_reasoning):
            return None
        ids = self.after(answer, new, closed=closed)
        return None if ids is None else Bridge(np.array(ids, dtype=np.int32), BridgedBy.RENDERER)

    def after(self, answer: Message, new: Sequence[Message], *, closed: bool) -> list[int] | None:
        """Return the ids that follow the answer, including its closing token unless `closed`. None: the library refuses."""
        called = {call["id"]: call["name"] for call in answer.get("tool_calls", ())}
        named = [{"name": called[one["tool_call_id"]], **one} if one["role"] == "tool" else one for one in new]
        shaped, sentinel = self._renderer.encoder.guard(self._renderer.shape.messages(named))
        completion = self._completion if closed else self._completion[:-1]
        try:
            with self._tokenizer.guarding(sentinel):
                made = self._library.bridge_to_next_turn(self._prompt, completion, shaped)
        except LIBRARY_ERRORS:  # two renders will say whether the template can do it
            return None
        known = [*self._prompt, *completion]
        if made is None or made.token_ids[: len(known)] != known:
            return None
        ids: list[int] = made.token_ids[len(known) :]
        return ids if closed or ids[:1] == [self._stop_id] else None


def add_family(renderer: JinjaRenderer, name: str, options: PolicyOptions) -> None:
    """Give the renderer the rules of the first family that is proven, or of the one called `name`.

    If no family is proven (`auto`), the renderer stays as it is. Raises TemplateError if a named family is not proven.
    """
    named = name != "auto"
    known = [family for families in CANDIDATES.values() for family in families]
    if named and name not in known:
        msg = f"renderer {name!r}: write auto, jinja, or a family: {', '.join(known)}"
        raise TemplateError(msg)
    families = [name] if named else [one for mark, all_ in CANDIDATES.items() if mark in renderer.encoder.control for one in all_]
    for family in families:
        try:
            rules = FamilyRules(family, renderer, options)
        except TemplateError:
            if named:
                raise
            continue
        rules.proven = frozenset(roles for roles in FOLLOWING if _proven(roles, renderer, rules))
        if rules.proven:
            renderer.rules = rules
            return
    if named:
        msg = f"family {name}: the library's bridges differ from this chat template; use renderer=auto or jinja"
        raise TemplateError(msg)


FOLLOWING: Final[tuple[Roles, ...]] = (
    ("tool",),
    ("tools",),
    ("user",),
    ("system",),
    ("tool", "user"),
    ("tools", "user"),
    ("tool", "system"),
    ("tools", "system"),
    ("system", "user"),
)
"""The orders of roles that may follow a turn: one or several tool results; `user` and `system` stand for any number of such messages."""
SYSTEM: Final[Message] = {"role": "system", "content": "Be brief."}
ZEBRA_QUESTION: Final[Message] = {"role": "user", "content": "Zebra?"}
ZEBRA_ANSWER: Final[Message] = {"role": "assistant", "content": "Zebras."}
ZEBRA_TOOL: Final[Message] = {
    "name": "f",
    "description": "Finds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
}
HISTORIES: Final[tuple[tuple[Message, ...], ...]] = (
    (ZEBRA_QUESTION,),
    (SYSTEM, ZEBRA_QUESTION),
    (SYSTEM, ZEBRA_QUESTION, ZEBRA_ANSWER, ZEBRA_QUESTION),
)


def _calling(*ids: str, text: str = "") -> Message:
    return {"role": "assistant", "content": text, "tool_calls": [{"id": id_, "name": "f", "arguments": {"a": "x y"}} for id_ in ids]}


def _result(id_: str) -> Message:
    return {"role": "tool", "tool_call_id": id_, "content": f"Zebra {id_}\n"}


LONG_HISTORY: Final[tuple[Message, ...]] = (
    SYSTEM,
    ZEBRA_QUESTION,
    _calling("call1"),
    _result("call1"),
    ZEBRA_ANSWER,
    ZEBRA_QUESTION,
    _calling("call2"),
    _result("call2"),
)
ANSWERS: Final[tuple[Message, ...]] = (ZEBRA_ANSWER, _calling("call8"), _calling("call8", text="I look."), _calling("call8", "call9"))


def _proven(roles: Roles, renderer: JinjaRenderer, rules: FamilyRules) -> bool:
    """Return whether the library agrees with two renders wherever it does not refuse."""
    compared = 0
    for before in (*HISTORIES, LONG_HISTORY):
        for answer in _answers(renderer):
            for new in _following(roles, answer):
                if _roles(new) != roles or not _answered(answer, new):
                    continue
                for closed in (True, False):
                    ids = rules.after(answer, new, closed=closed)
                    if ids is None:
                        continue
                    if not _same(renderer, before, answer, new, ids, closed=closed):
                        return False
                    compared += 1
    return compared > 0


def _same(
    renderer: JinjaRenderer, before: Sequence[Message], answer: Message, new: Sequence[Message], ids: list[int], *, closed: bool
) -> bool:
    try:
        bridge = renderer.bridge(before, answer, new, [ZEBRA_TOOL], closed=closed)
    except TemplateError:
        return False
    return bridge is not None and bridge.ids.tolist() == ids


def _answers(renderer: JinjaRenderer) -> Iterator[Message]:
    for answer in ANSWERS:
        yield answer
        if renderer.reads_reasoning:
            yield {**answer, "reasoning": "Stripes."}


def _following(roles: Roles, answer: Message) -> Iterator[list[Message]]:
    """Yield messages in this order of roles: one of each, then two of each, but as many results as there were calls."""
    results = [_result(call["id"]) for call in answer.get("tool_calls", ())]
    for count in (1, 2):
        makes = {
            "tool": results[:1],
            "tools": results if len(results) > 1 else [],
            "user": [ZEBRA_QUESTION] * count,
            "system": [SYSTEM] * count,
        }
        yield [message for role in roles for message in makes[role]]


def _roles(new: Sequence[Message]) -> Roles:
    rows = [(role, len(list(row))) for role, row in groupby("system" if one["role"] == "developer" else str(one["role"]) for one in new)]
    return tuple("tools" if role == "tool" and count > 1 else role for role, count in rows)


def _answered(answer: Message, new: Sequence[Message]) -> bool:
    """Return whether every call of the answer has its result, and all contents are texts."""
    asked = [call["id"] for call in answer.get("tool_calls", ())]
    results = [one["tool_call_id"] for one in new if one["role"] == "tool"]
    return bool(new) and sorted(asked) == sorted(results) and all(isinstance(one.get("content"), str) for one in new)


def _probe_turn(renderer: JinjaRenderer) -> tuple[list[int], list[int]]:
    """Return a short prompt, and an answer to it as the template spells it. Raises TemplateError if the answer's end cannot be found."""
    answer: Message = _calling("call1") | ({"reasoning": "Stripes."} if renderer.reads_reasoning else {})
    new = [_result("call1")]
    bridge = renderer.bridge([ZEBRA_QUESTION], answer, new, None, closed=True)
    prompt, whole = renderer.render([ZEBRA_QUESTION], None).tolist(), renderer.render([ZEBRA_QUESTION, answer, *new], None).tolist()
    if bridge is None or whole[: len(prompt)] != prompt:
        msg = "not even a tool result can be bridged by two renders"
        raise TemplateError(msg)
    return prompt, whole[len(prompt) : len(whole) - len(bridge.ids)]


def _library(family: str, tokenizer: LibraryTokenizer, options: PolicyOptions) -> Any:
    """Return the library's renderer. The import is here because it takes two seconds."""
    try:
        from renderers import base, configs  # noqa: PLC0415 (heavy, and optional)
    except ImportError as cause:
        msg = f"family {family}: install the library with pip install 'evener[renderers]' ({cause})"
        raise TemplateError(msg) from cause
    base._populate_registry()  # noqa: SLF001 (the only way to a class by its name without a model's name)
    config = configs.config_from_name(family)
    if options.thinking is Thinking.ALL:
        config = type(config)(thinking_retention="all")
    try:
        return base.RENDERER_REGISTRY[family](tokenizer, config)
    except LIBRARY_ERRORS as cause:
        msg = f"family {family}: not its tokenizer ({cause})"
        raise TemplateError(msg) from cause
