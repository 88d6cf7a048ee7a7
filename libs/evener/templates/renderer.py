"""The renderer of any policy with a Jinja chat template."""

from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from evener.proto.fleet import PolicyFingerprint
from evener.proto.ids import tool_call_id
from evener.proto.sessions import BridgedBy
from evener.proto.spec import Thinking
from evener.templates.config import PolicyConfig
from evener.templates.control import SEARCHED_CHARACTERS
from evener.templates.jinja import ChatTemplate
from evener.templates.kept_thinking import KeptThinking
from evener.templates.parsers import THINK, ParsedAnswer
from evener.templates.pieces import TokenBytes
from evener.templates.port import Bridge, TemplateError
from evener.templates.shape import Shape, shape_tools
from evener.templates.source import ModelSource
from evener.templates.special import SplitEncoder
from evener.templates.spellings import parser_for, spelling_of
from evener.templates.tools import renders_tools
from evener.tokens.digests import Message

PROBE_WORD: Final = "Zebra"
"""A word that no template writes by itself."""
PROBE_CALL: Final[Message] = {"id": "call00001", "name": "f", "arguments": {"a": PROBE_WORD}}


class TurnRules(Protocol):
    """How a family of models continues after a turn, as far as this is proven for the template. It reads no history."""

    family: str

    def bridge(self, answer: Message, new: Sequence[Message], *, closed: bool) -> Bridge | None: ...


class JinjaRenderer:
    """Implements `port.Renderer` with a tokenizer and a chat template. It is thread-safe and keeps no state between calls."""

    fingerprint: PolicyFingerprint
    """What decides the ids that it renders."""
    rules: TurnRules | None = None
    """The rules that extend turns. None: only the difference of two renders does."""

    def __init__(
        self, source: ModelSource, template: ChatTemplate, encoder: SplitEncoder, config: PolicyConfig, *, template_name: str
    ) -> None:
        """Probe the template. Raises TemplateError if the template or the tokenizer cannot be trusted."""
        self.template_name = template_name
        self.renders_tools = renders_tools(template)
        self._template: ChatTemplate | KeptThinking = template
        self._thinking = config.options.thinking
        self.shape = Shape(
            vision=config.vision, thinking_field=".thinking" in template.source and ".reasoning_content" not in template.source
        )
        self.encoder = encoder
        self._pieces = TokenBytes(source.tokenizer)
        own = self._probe_ends()
        self._ends = frozenset(own)
        self.stop_ids = (*own, *sorted(set(source.eos_ids) - set(own)))
        self.tool_parser = spelling_of(template.source) if config.tool_parser == "auto" else config.tool_parser
        self._parser = parser_for(template.source, self.tool_parser, thinking=self._probe_thinking())
        self.reads_reasoning = self._parser.reads_reasoning
        if self._thinking is Thinking.ALL:
            self._template = KeptThinking(template, self._turn_end)

    @property
    def family(self) -> str | None:
        """The family whose rules extend turns. None: the difference of two renders does."""
        return None if self.rules is None else self.rules.family

    @property
    def control_ids(self) -> tuple[int, ...]:
        """The ids of the control tokens, which no text of a harness may become."""
        return tuple(self.encoder.control.values())

    def render(self, messages: Sequence[Message], tools: Sequence[Message] | None) -> NDArray[np.int32]:
        (shaped, shaped_tools), sentinel = self._guarded(messages, tools)
        text = self._template.render(shaped, shaped_tools, open_turn=True)
        return _array(self.encoder.encode(text, sentinel, again=True))

    def bridge(
        self, before: Sequence[Message], answer: Message, new: Sequence[Message], tools: Sequence[Message] | None, *, closed: bool
    ) -> Bridge | None:
        """Bridge by the family's rules where they are proven, otherwise by two renders."""
        found = None if self.rules is None else self.rules.bridge(answer, new, closed=closed)
        return self._two_renders(before, answer, new, tools, closed=closed) if found is None else found

    def _two_renders(
        self, before: Sequence[Message], answer: Message, new: Sequence[Message], tools: Sequence[Message] | None, *, closed: bool
    ) -> Bridge | None:
        """Prove the difference of two renders.

        The renders are compared as guarded text: the pieces between special tokens are encoded separately, so equal text up to a special
        token gives equal ids. The new ids are everything after the token that closes the sampled turn, not everything after the first
        render, which would lose its trailing newline.
        """
        (shaped, shaped_tools), sentinel = self._guarded([*before, answer, *new], tools)
        asked = len(before)
        prompt = self._template.render(shaped[:asked], shaped_tools, open_turn=True)
        now = self._template.render(shaped, shaped_tools, open_turn=True)
        if not now.startswith(prompt):
            return None
        answered = self._template.render(shaped[: asked + 1], shaped_tools, open_turn=False)
        end = self._end_by_render(prompt, answered, now, shaped[asked])
        if end is None:
            end = self._end_by_parser(prompt, now, sentinel, answer, tools or ())
        if end is None:
            return None
        ids = self.encoder.encode(now[end:], sentinel)
        if closed and ids[0] != self.stop_ids[0]:
            return None
        return Bridge(np.array(ids[1:] if closed else ids, dtype=np.int32), BridgedBy.TWO_RENDERS)

    def parse(self, ids: NDArray[np.int32], *, call_id: str, choice: int, tools: Sequence[Message] | None = None) -> Message:
        answer = self._read(ids.tolist(), tools or ())
        message: Message = {"role": "assistant", "content": answer.content}
        if answer.reasoning:
            message["reasoning"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [
                {"id": tool_call_id(call_id, choice, index), "name": name, "arguments": arguments}
                for index, (name, arguments) in enumerate(answer.calls)
            ]
        return message

    def certain(self, ids: NDArray[np.int32]) -> tuple[str, str]:
        sampled, _ = self._without_end(ids.tolist())
        return self._parser.certain(self._pieces.certain_text(sampled))

    def reasoning_length(self, ids: NDArray[np.int32]) -> int:
        sampled, _ = self._without_end(ids.tolist())
        spans = self._parser.reasoning_spans(self._pieces.text(sampled))
        if not spans:
            return 0
        ends = [0, *self._pieces.ends(sampled)]
        return sum(any(begin < stop and start < end for start, stop in spans) for begin, end in pairwise(ends))

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        return self._pieces.of(ids)

    def encode(self, text: str, *, special: bool) -> list[int]:
        return self.encoder.encode_parsed(text) if special else self.encoder.encode_text(text)

    def _guarded(self, messages: Sequence[Message], tools: Sequence[Message] | None) -> tuple[Any, str]:
        return self.encoder.guard((self.shape.messages(messages), shape_tools(tools)))

    def _without_end(self, sampled: list[int]) -> tuple[list[int], list[int]]:
        return (sampled[:-1], sampled[-1:]) if sampled and sampled[-1] in self.stop_ids else (sampled, [])

    def _read(self, sampled: list[int], tools: Sequence[Message]) -> ParsedAnswer:
        sampled, end = self._without_end(sampled)
        return self._parser.parse(self._pieces.text(sampled), end=self._pieces.text(end), tools=tools)

    def _end_by_render(self, prompt: str, answered: str, now: str, answer: dict[str, Any]) -> int | None:
        """Return where the answer's closing token begins in `now`, if `now` continues the render that ends with the answer."""
        if not (answered.startswith(prompt) and now.startswith(answered)):
            return None
        reasoning = answer.get("reasoning_content") or answer.get("thinking") or ""
        if self._thinking is Thinking.TEMPLATE and reasoning.strip() not in answered[len(prompt) :]:
            return None  # the template shows the answer without its reasoning at once, which is to be followed
        ends = [at for at, id_ in self.encoder.controls(answered) if id_ in self.stop_ids]
        return ends[-1] if ends and ends[-1] >= len(prompt) else None

    def _end_by_parser(self, prompt: str, now: str, sentinel: str, answer: Message, tools: Sequence[Message]) -> int | None:
        """Return where the answer's closing token begins in `now`, if the text before it parses as this very answer.

        This is for templates that render a last turn differently from the same turn in mid-conversation (Qwen3 without reasoning).
        """
        spelled = now[len(prompt) :]
        end = self._turn_end(spelled)
        if end is None:
            return None
        turn = spelled[:end].replace(sentinel, "") if sentinel else spelled[:end]
        read = self._parser.parse(turn, end="", tools=tools)
        calls = [[call["name"], call["arguments"]] for call in answer.get("tool_calls", ())]
        same = (
            read.content.strip() == str(answer.get("content") or "").strip()
            and read.reasoning.strip() == str(answer.get("reasoning") or "").strip()
            and _sorted_json(read.calls) == _sorted_json(calls)
        )
        return len(prompt) + end if same else None

    def _turn_end(self, text: str) -> int | None:
        return next((at for at, id_ in self.encoder.controls(text) if id_ in self._ends), None)

    def _probe_ends(self) -> tuple[int, ...]:
        """Return the ids that end a turn: the last special token after a tool call, and after an answer."""
        end = self._end_of({"role": "assistant", "content": PROBE_WORD})
        if end is None:
            msg = "the chat template closes an answer with no special token of this tokenizer"
            raise TemplateError(msg)
        end_of_call = self._probe_call()
        return (end,) if end_of_call in {None, end} else (end_of_call, end)

    def _probe_call(self) -> int | None:
        """Return the id after a tool call, and find the form of arguments that the template takes."""
        plain = self.shape
        for shape in (plain, msgspec.structs.replace(plain, text_arguments=True)):
            self.shape = shape
            with suppress(TemplateError):
                return self._end_of({"role": "assistant", "content": "", "tool_calls": [PROBE_CALL]})
        self.shape = plain  # a template that knows no tools may say so
        return None

    def _end_of(self, answer: Message) -> int | None:
        messages = self.shape.messages([{"role": "user", "content": "Hello"}, answer])
        _, found, after = self._template.render(messages, None, open_turn=False).rpartition(PROBE_WORD)
        controls = list(self.encoder.controls(after)) if found else []
        return controls[-1][1] if controls else None

    def _probe_thinking(self) -> bool:
        prompt = self._template.render([{"role": "user", "content": "Hello"}], None, open_turn=True)
        return prompt.rstrip().endswith(THINK)


def _array(ids: list[int]) -> NDArray[np.int32]:
    """Return ids as an array, built in slices: converting a million at once would block all threads."""
    return np.concatenate(
        [np.array(ids[low : low + SEARCHED_CHARACTERS], np.int32) for low in range(0, max(len(ids), 1), SEARCHED_CHARACTERS)]
    )


def _sorted_json(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted")
