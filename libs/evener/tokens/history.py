"""Recognising what a harness sends back: digest chains over canonical messages, and answers among them.

Every canonical message has a digest over itself and its predecessor's; tools and template options are the start of the chain.
So a history is recognised from any depth by look-ups, and an answer of ours by what was given before it.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct

from evener.proto.arrays import inline
from evener.proto.sessions import MatchedBy, MessagePrefix, SegmentRef
from evener.proto.spec import PolicyOptions, Quirks, Reasoning, Tolerance
from evener.tokens.forest import Call, Forest

Message = dict[str, Any]
Digest = bytes

_encoder: Final = msgspec.json.Encoder(order="deterministic")
_NOT_LETTERS: Final = re.compile(r"[^A-Za-z0-9]")
_LOOSE_DIGITS: Final = 15


def start_digest(tools: Sequence[Message], options: PolicyOptions) -> Digest:
    """Return the start of the chain: the tools in their order, and how the policy renders."""
    return hashlib.blake2b(_encoder.encode((list(tools), options)), digest_size=16).digest()


def next_digest(before: Digest, message: Message) -> Digest:
    """Return the digest after `message`."""
    return hashlib.blake2b(before + _encoder.encode(message), digest_size=16).digest()


def head_digest(messages: Sequence[Message]) -> Digest:
    """Return a digest of the messages up to and with the first one of the user."""
    digest = b""
    for message in messages:
        digest = next_digest(digest, message)
        if message.get("role") == "user":
            break
    return digest


class Match(Struct, frozen=True, kw_only=True):
    """An assistant message of a history that is a sampled answer."""

    index: int
    """Of the message in the history."""
    segment: SegmentRef
    by: MatchedBy
    altered: bool
    siblings: int


class Reading(Struct, frozen=True, kw_only=True, eq=False):
    """What a history says, message by message."""

    messages: tuple[Message, ...]
    """As sent, with recognised answers in the form in which they were sampled."""
    deepest: Match | None
    known: MessagePrefix | None
    """The longest beginning that an earlier call holds."""
    known_count: int
    """Messages of that beginning."""
    end: Digest


class History:
    """The histories of one attempt's calls, as an index. Derived from the forest; dropped and rebuilt at will."""

    def __init__(self, forest: Forest, quirks: Quirks, attempt: int) -> None:
        self._forest = forest
        self._attempt = attempt
        self._tolerances = frozenset(quirks.tolerances)
        self._nodes: dict[Digest, MessagePrefix] = {}
        self._answers: dict[Digest, list[SegmentRef]] = {}
        self._ends: dict[str, Digest] = {}
        self._heads: set[Digest] = set()
        for call in forest.in_order():
            self.add(call)

    def add(self, call: Call) -> None:
        """Index a call's messages; once it is closed, add it again for its answers. Other attempts' calls are left out."""
        opened = call.opened
        if opened.attempt != self._attempt:
            return
        if call.call_id not in self._ends:
            digest, count = self._begin(opened.follows, opened.tools, opened.options)
            messages = msgspec.json.decode(inline(opened.messages))
            if opened.follows is None:
                self._heads.add(head_digest(messages))
            for message in messages:
                digest, count = next_digest(digest, message), count + 1
                self._nodes.setdefault(digest, MessagePrefix(call_id=call.call_id, count=count))
            self._ends[call.call_id] = digest
        if opened.policy is None:  # a frozen engine's answers are the harness's own messages
            return
        end = self._ends[call.call_id]
        for index, choice in enumerate(call.choices):
            segment = SegmentRef(call_id=call.call_id, choice=index)
            if segment not in (held := self._answers.setdefault(end, [])):
                held.append(segment)
                after = next_digest(end, msgspec.json.decode(inline(choice.message)))
                self._nodes.setdefault(after, MessagePrefix(call_id=call.call_id, count=opened.message_count, choice=index))

    def knows_head(self, messages: Sequence[Message]) -> bool:
        """Return whether an earlier call began with the same messages up to its first user message, whatever its tools."""
        return head_digest(messages) in self._heads

    @property
    def has_answers(self) -> bool:
        """Whether any call has one."""
        return bool(self._answers)

    def answered_at(self, end: Digest) -> bool:
        """Return whether a call with exactly this history has an answer."""
        return end in self._answers

    def read(self, messages: Sequence[Message], tools: Sequence[Message], options: PolicyOptions) -> Reading:
        """Walk a history: recognise sampled answers, and find what is stored already."""
        digest = start_digest(tools, options)
        deepest, known, known_count = None, None, 0
        seen: list[Message] = []
        for index, sent in enumerate(messages):
            message = sent
            if sent.get("role") == "assistant" and (match := self._match(digest, index, sent, options)) is not None:
                deepest, message = match, self._message(match.segment)
            seen.append(message)
            digest = next_digest(digest, message)
            if (node := self._nodes.get(digest)) is not None and known_count == index:
                known, known_count = node, index + 1
        return Reading(messages=tuple(seen), deepest=deepest, known=known, known_count=known_count, end=digest)

    def _match(self, before: Digest, index: int, sent: Message, options: PolicyOptions) -> Match | None:
        equal: list[tuple[SegmentRef, MatchedBy, bool]] = []
        for segment in self._answers.get(before, ()):
            found = same_answer(self._message(segment), sent, self._tolerances, options.reasoning)
            if found is not None:
                equal.append((segment, *found))
        if not equal:
            return None
        received = [one for one in equal if not self._forest.orphaned(self._forest.calls[one[0].call_id])] or equal
        segment, by, altered = received[-1]
        return Match(index=index, segment=segment, by=by, altered=altered, siblings=len(equal))

    def _message(self, segment: SegmentRef) -> Message:
        message: Message = msgspec.json.decode(inline(self._forest.calls[segment.call_id].choices[segment.choice].message))
        return message

    def _begin(self, follows: MessagePrefix | None, tools: Any, options: PolicyOptions) -> tuple[Digest, int]:
        if follows is None:
            return start_digest(msgspec.json.decode(inline(tools)) if tools is not None else (), options), 0
        holder = self._forest.calls[follows.call_id]
        if follows.choice is not None:
            answer = self._message(SegmentRef(call_id=follows.call_id, choice=follows.choice))
            return next_digest(self._ends[follows.call_id], answer), follows.count + 1
        digest, count = self._begin(holder.opened.follows, holder.opened.tools, holder.opened.options)
        own: Iterable[Message] = msgspec.json.decode(inline(holder.opened.messages))
        for message in own:
            if count == follows.count:
                break
            digest, count = next_digest(digest, message), count + 1
        return digest, count


def same_answer(sampled: Message, sent: Message, tolerances: frozenset[Tolerance], reasoning: Reasoning) -> tuple[MatchedBy, bool] | None:
    """Return what recognises `sent` as the `sampled` answer and whether it was altered, or None for a message of the harness."""
    if _encoder.encode(sampled) == _encoder.encode(sent):
        return (MatchedBy.CALL_ID if sent.get("tool_calls") else MatchedBy.CONTENT), False
    by = _recognised_by(sampled, sent, tolerances)
    if by is None or not _same_calls(sampled, sent, tolerances):
        return None
    if not _same_text(str(sampled.get("content") or ""), str(sent.get("content") or ""), by, tolerances):
        return None
    if not _same_reasoning(sampled.get("reasoning"), sent.get("reasoning"), tolerances, reasoning):
        return None
    return by, True


def _recognised_by(sampled: Message, sent: Message, tolerances: frozenset[Tolerance]) -> MatchedBy | None:
    ours, theirs = _call_ids(sampled, tolerances), _call_ids(sent, tolerances)
    if ours or theirs:
        return MatchedBy.CALL_ID if ours == theirs else None
    return MatchedBy.CONTENT if sampled.get("content") == sent.get("content") else MatchedBy.TRIMMED


def _call_ids(message: Message, tolerances: frozenset[Tolerance]) -> list[str]:
    ids = [str(call.get("id")) for call in message.get("tool_calls") or ()]
    return [_NOT_LETTERS.sub("", one) for one in ids] if Tolerance.CALL_ID_LETTERS in tolerances else ids


def _same_calls(sampled: Message, sent: Message, tolerances: frozenset[Tolerance]) -> bool:
    loose = Tolerance.NUMBERS_LOOSE in tolerances
    ours, theirs = (
        [(call.get("name"), _loose(call.get("arguments"), loose)) for call in message.get("tool_calls") or ()]
        for message in (sampled, sent)
    )
    return _encoder.encode(ours) == _encoder.encode(theirs)  # bytes: Python says 1 == 1.0 == True


def _loose(value: Any, loose: bool) -> Any:  # noqa: FBT001 - the tolerance, passed down
    """Return the value with numbers compared as a JavaScript client prints them."""
    if not loose:
        return value
    if isinstance(value, dict):
        return {key: _loose(inner, loose) for key, inner in value.items()}
    if isinstance(value, list):
        return [_loose(inner, loose) for inner in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{float(value):.{_LOOSE_DIGITS}g}"
    return value


def _same_text(sampled: str, sent: str, by: MatchedBy, tolerances: frozenset[Tolerance]) -> bool:
    if sampled == sent:
        return True
    if Tolerance.BLANK_TEXT_ABSENT in tolerances and not sampled.strip() and not sent:
        return True
    return (by is MatchedBy.TRIMMED or Tolerance.TEXT_TRIMMED in tolerances) and sampled.strip() == sent.strip()


def _same_reasoning(sampled: Any, sent: Any, tolerances: frozenset[Tolerance], option: Reasoning) -> bool:
    ours, theirs = str(sampled or ""), str(sent or "")
    if ours == theirs:
        return True
    if not theirs:
        return Tolerance.REASONING_ABSENT in tolerances and option is Reasoning.REINSTATE
    return Tolerance.TEXT_TRIMMED in tolerances and ours.strip() == theirs.strip()
