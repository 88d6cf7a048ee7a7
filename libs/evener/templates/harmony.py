"""Parses sampled text in the harmony format of gpt-oss. Pure.

An answer is a chain of messages `<|channel|>NAME<|message|>...<|end|>`: `analysis` is reasoning, `final` and `commentary` are text, and a
message addressed to `functions.NAME` that ends with `<|call|>` is a tool call. The answer proper begins with the first `final`: everything
after it is text, including `analysis`.
"""

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from evener.templates.calls import Found, read_json, without_beginning_of
from evener.templates.parsers import ParsedAnswer
from evener.tokens.digests import Message

MARKS: Final = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>")
CALL: Final = "<|call|>"
_MARK: Final = re.compile("|".join(map(re.escape, MARKS)))
_HEADER: Final = re.compile(
    r"(?:<\|start\|>assistant)?(?: to=([^\s<]+))?<\|channel\|>([a-z]+)(?: to=([^\s<]+))? ?(?:<\|constrain\|>)?(?:[a-z]+)?<\|message\|>"
)
FUNCTION_NAMESPACE: Final = "functions."
REASONING, FINAL = "analysis", "final"


class _Part(Struct, frozen=True):
    """A message of the chain, or other text in its place."""

    start: int
    stop: int
    channel: str
    """The channel. Empty: the text is not in this format."""
    recipient: str
    body: str
    ended: str
    """The mark that ended the message. Empty: it has not ended."""
    is_reasoning: bool = False


class Harmony(Struct, frozen=True):
    """Implements `parsers.AnswerParser`."""

    @property
    def reads_reasoning(self) -> bool:
        return True

    def parse(self, text: str, *, end: str, tools: Sequence[Message]) -> ParsedAnswer:
        del tools
        reasoning: list[str] = []
        content: list[str] = []
        calls: list[Found] = []
        for part in _parts(text + end):
            call = _call(part)
            if call is not None:
                calls.append(call)
            elif part.is_reasoning:
                reasoning.append(part.body)
            elif part.channel and not part.recipient:
                content.append(part.body)
            else:
                content.append(text[part.start : part.stop])
        thought = "\n".join(reasoning)
        return ParsedAnswer(reasoning=thought if thought.strip() else "", content="\n".join(content), calls=tuple(calls))

    def certain(self, text: str) -> tuple[str, str]:
        """Hold back everything from the first part on that is neither plain reasoning nor plain text.

        All text before the first `final` is held back too, since the model may continue to reason after a preamble.
        """
        final = False
        reasoning: list[str] = []
        content: list[str] = []
        for part in _parts(text):
            if not part.channel or part.recipient:
                break
            body = _before_a_mark(part.body) if part.stop == len(text) and not part.ended else part.body
            (reasoning if part.is_reasoning else content).append(body)
            final |= part.channel == FINAL
        thought = "\n".join(reasoning)
        return (thought if thought.strip() else ""), ("\n".join(content) if final else "")

    def reasoning_spans(self, text: str) -> list[tuple[int, int]]:
        return [(part.start, part.stop) for part in _parts(text) if part.is_reasoning]


def _parts(text: str) -> list[_Part]:
    """Return the messages. From the first place that is not a header, the rest is one part without a channel."""
    parts: list[_Part] = []
    at, final = 0, False
    while at < len(text):
        header = _HEADER.match(text, at)
        if header is None:
            parts.append(_Part(at, len(text), "", "", text[at:], ""))
            break
        mark = _MARK.search(text, header.end())
        stop = len(text) if mark is None else mark.start()
        ended = "" if mark is None or mark[0] not in {"<|end|>", "<|return|>", CALL} else mark[0]
        channel, recipient = header[2], header[1] or header[3] or ""
        final |= channel == FINAL and not recipient
        is_reasoning = channel == REASONING and not recipient and not final
        parts.append(_Part(at, stop + len(ended), channel, recipient, text[header.end() : stop], ended, is_reasoning))
        at = stop + len(ended)
    return parts


def _call(part: _Part) -> Found | None:
    if not part.recipient.startswith(FUNCTION_NAMESPACE) or part.ended != CALL:
        return None
    found = read_json(part.body, 0)
    name = part.recipient.removeprefix(FUNCTION_NAMESPACE)
    return (name, found[0]) if name and found is not None and found[1] == len(part.body) and isinstance(found[0], dict) else None


def _before_a_mark(body: str) -> str:
    for mark in MARKS:
        body = without_beginning_of(mark, body)
    return body
