"""The renderer of any policy with a Jinja chat template."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from evener.proto.sessions import BridgedBy
from evener.proto.spec import PolicyOptions, Thinking
from evener.templates.jinja import ChatTemplate
from evener.templates.parsers import THINK, Parser
from evener.templates.pieces import Pieces
from evener.templates.port import Bridge, Message, TemplateError
from evener.templates.shape import shape_messages, shape_tools
from evener.templates.source import Source
from evener.templates.special import SplitEncoder

PROBE: Final = "Zebra"
"""A word that no template writes by itself."""


class JinjaRenderer:
    """Implements `port.Renderer` with a tokenizer and a chat template. Thread-safe; nothing is kept between calls."""

    def __init__(self, source: Source, template: ChatTemplate, *, hermes: bool, options: PolicyOptions, vision: bool) -> None:
        """Probe the template. Raises TemplateError where it or the tokenizer cannot be trusted."""
        self._template = template
        self._options = options
        self._vision = vision
        self._encoder = SplitEncoder(source.tokenizer, template.source)
        self._pieces = Pieces(source.tokenizer)
        own = self._probe_ends()
        self._stop_ids = (*sorted(own), *sorted(set(source.eos_ids) - own))
        self._parser = Parser(tool_calls=hermes, thinks=THINK in template.source, thinking=self._probe_thinking())

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return self._stop_ids

    def render(self, messages: Sequence[Message], tools: Sequence[Message] | None) -> NDArray[np.int32]:
        (shaped, shaped_tools), sentinel = self._guarded(messages, tools)
        text = self._template.render(shaped, shaped_tools, open_turn=True)
        return np.array(self._encoder.encode(text, sentinel), dtype=np.int32)

    def bridge(
        self,
        before: Sequence[Message],
        answer: Message,
        new: Sequence[Message],
        tools: Sequence[Message] | None,
        *,
        closed: bool,
    ) -> Bridge | None:
        """Prove the difference of two renders.

        Compared as guarded text: pieces between special tokens are encoded alone, so equal text up to a special token gives
        equal ids. The new ids are everything after the token that closes the sampled turn, not what follows the first render:
        that would lose its trailing newline.
        """
        (shaped, shaped_tools), sentinel = self._guarded([*before, answer, *new], tools)
        asked = len(before)
        prompt = self._template.render(shaped[:asked], shaped_tools, open_turn=True)
        answered = self._template.render(shaped[: asked + 1], shaped_tools, open_turn=False)
        now = self._template.render(shaped, shaped_tools, open_turn=True)
        if not (answered.startswith(prompt) and now.startswith(answered)):
            return None
        if self._strips_thinking(shaped[asked], answered[len(prompt) :]):
            return None
        ends = [at for at, id_ in self._encoder.controls(answered) if id_ in self._stop_ids]
        if not ends or ends[-1] < len(prompt):
            return None
        ids = self._encoder.encode(now[ends[-1] :], sentinel)
        return Bridge(np.array(ids[1:] if closed else ids, dtype=np.int32), BridgedBy.TWO_RENDERS)

    def parse(self, ids: NDArray[np.int32], *, call_id: str, choice: int) -> Message:
        sampled = ids.tolist()
        ended = bool(sampled) and sampled[-1] in self._stop_ids
        return self._parser.parse(self._pieces.text(sampled[:-1] if ended else sampled), call_id=call_id, choice=choice)

    def pieces(self, ids: Sequence[int]) -> list[bytes]:
        return self._pieces.of(ids)

    def encode(self, text: str, *, special: bool) -> list[int]:
        return self._encoder.encode_parsed(text) if special else self._encoder.encode_text(text)

    def _guarded(self, messages: Sequence[Message], tools: Sequence[Message] | None) -> tuple[Any, str]:
        return self._encoder.guard((shape_messages(messages, vision=self._vision), shape_tools(tools)))

    def _strips_thinking(self, answer: Message, rendered: str) -> bool:
        """Tell whether the template shows the answer without its reasoning at once, which `template` is to follow."""
        return self._options.thinking is Thinking.TEMPLATE and answer.get("reasoning_content", "").strip() not in rendered

    def _probe_ends(self) -> set[int]:
        """Return the ids after which a turn is over: the last special token behind an answer, and behind a tool call."""
        end = self._end_of({"role": "assistant", "content": PROBE})
        if end is None:
            msg = "the chat template closes an answer with no special token of this tokenizer"
            raise TemplateError(msg)
        try:
            call = {"id": "call00001", "name": "f", "arguments": {"a": PROBE}}
            end_of_call = self._end_of({"role": "assistant", "content": "", "tool_calls": [call]})
        except TemplateError:  # a template that knows no tools may say so
            end_of_call = None
        return {end} if end_of_call is None else {end, end_of_call}

    def _end_of(self, answer: Message) -> int | None:
        messages = shape_messages([{"role": "user", "content": "Hello"}, answer], vision=False)
        _, found, after = self._template.render(messages, None, open_turn=False).rpartition(PROBE)
        controls = list(self._encoder.controls(after)) if found else []
        return controls[-1][1] if controls else None

    def _probe_thinking(self) -> bool:
        prompt = self._template.render([{"role": "user", "content": "Hello"}], None, open_turn=True)
        return prompt.rstrip().endswith(THINK)
