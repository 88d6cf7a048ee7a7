"""Recognises what a harness sends back, by walking a tree of known messages by their digests.

A node stands for one history: the tools and options, then message after message. A history is therefore recognised by look-ups, however
long it is, and a sampled answer by the history that it answered.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, overload

import msgspec
from msgspec import Struct

from evener.proto.arrays import inline
from evener.proto.ids import answer_key
from evener.proto.sessions import MatchedBy, MessagePrefix, RootReason, SegmentRef
from evener.proto.spec import PolicyOptions, Quirks, Tolerance
from evener.tokens.answers import same_answer
from evener.tokens.beginnings import Beginnings, OpeningDigests, head_of, name_of
from evener.tokens.digests import KEY_FIELD, Digest, Message, message_digest, said, start_digest
from evener.tokens.forest import Call, Forest
from evener.tokens.noise import NoiseFilter


class Match(Struct, frozen=True, kw_only=True):
    """An assistant message of a history that is a sampled answer."""

    index: int
    """The index of the message in the history."""
    segment: SegmentRef
    by: MatchedBy
    altered: bool
    siblings: int


class Node:
    """A node of the tree of histories: it stands for one history."""

    __slots__ = ("_opening", "after", "answers", "candidates", "holder", "start", "turns", "whole_head")

    def __init__(self, start: Digest = b"") -> None:
        self.start = start
        """The digest of the tools and options."""
        self._opening: tuple[Any, Digest] | None = None
        """The last message of the head, after those before it: a history of many messages before the first user message shares them."""
        self.whole_head = False
        """Whether there is a user message."""
        self.turns = 0
        """The number of assistant messages."""
        self.after: dict[Digest, Node] = {}
        """The longer histories, by the digest of the next message."""
        self.answers: list[SegmentRef] = []
        """The answers sampled after exactly this history."""
        self.holder: MessagePrefix | None = None
        """Where these messages are stored."""
        self.candidates: dict[tuple[Digest, str | None], list[SegmentRef]] = {}
        """The answers that a message may be, by its digest and key."""

    @property
    def head(self) -> OpeningDigests:
        """The messages up to and including the first user message."""
        found, rest = list[Digest](), self._opening
        while rest is not None:
            rest, digest = rest
            found.append(digest)
        return tuple(reversed(found))

    def then(self, digest: Digest, role: str) -> "Node":
        """Return the node of the history with one more message."""
        if (node := self.after.get(digest)) is None:
            node = self.after[digest] = Node(self.start)
            node._opening = self._opening if self.whole_head else (self._opening, digest)
            node.whole_head = self.whole_head or role == "user"
            node.turns = self.turns + (role == "assistant")
        return node


class Said(Sequence[Message]):
    """The messages of a request, in which recognised answers have the form in which they were sampled. Messages are built on access."""

    def __init__(self, forest: Forest, sent: Sequence[Message], altered: dict[int, SegmentRef]) -> None:
        self._forest = forest
        self._sent = sent
        self._altered = altered

    def __len__(self) -> int:
        return len(self._sent)

    @overload
    def __getitem__(self, at: int) -> Message: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Message]: ...
    def __getitem__(self, at: int | slice) -> Message | Sequence[Message]:
        if isinstance(at, slice):
            chosen = range(*at.indices(len(self)))
            moved = {place: self._altered[index] for place, index in enumerate(chosen) if index in self._altered}
            return Said(self._forest, self._sent[at], moved)
        segment = self._altered.get(at if at >= 0 else at + len(self))
        return said(self._sent[at]) if segment is None else sampled_message(self._forest, segment)

    def sent(self, at: int) -> Message:
        """Return a message in the form in which the harness sent it."""
        return self._sent[at]

    def __iter__(self) -> Iterator[Message]:
        return (self[at] for at in range(len(self)))


class HistoryReading(Struct, frozen=True, kw_only=True, eq=False):
    """The calls and messages that were recognised in a history."""

    messages: Said
    """The messages without noise."""
    deepest: Match | None
    known: MessagePrefix | None
    """The longest beginning of the history that an earlier call holds."""
    known_count: int
    """The number of messages in that beginning."""
    answered: bool
    """Whether a call with exactly this history has an answer that was not aborted."""
    start: Digest
    """The digest of the tools and options."""
    digests: Sequence[Digest]
    """The digests of the messages without noise."""
    cuts: tuple[str, ...]
    """The noise that was cut from the messages after the known beginning, each preceded by its place."""

    @property
    def head(self) -> OpeningDigests:
        """Return the digests of the messages up to and including the first user message."""
        return head_of(self.messages, self.digests)


class Walk(Struct, frozen=True):
    """How far a history was known. The next history usually continues from there."""

    start: Digest
    digests: tuple[Digest, ...]
    node: Node
    deepest: tuple[int, Node] | None
    """The last sampled answer, as its index and the node that it answered."""
    altered: dict[int, SegmentRef]


class History:
    """An index of the histories in one attempt. It is derived from the forest and can be rebuilt at any time."""

    def __init__(self, forest: Forest, quirks: Quirks, attempt: int) -> None:
        self._forest = forest
        self.attempt = attempt
        self._tolerances = frozenset(quirks.tolerances)
        self._noise = NoiseFilter(quirks.noise)
        self._starts: dict[Digest, Node] = {}
        self._paths: dict[str, list[Node]] = {}
        """For each call: the node before its own messages, then one for each of them."""
        self._counts: dict[str, int] = {}
        """For each call: the number of messages before its own."""
        self._after_answer: dict[SegmentRef, Node] = {}
        self._conversations: dict[str, str] = {}
        """For each call: the name of its conversation."""
        self.beginnings: Final = Beginnings()
        self._walked: Walk | None = None
        """The last walk, as long as it would have the same result."""
        for call in forest.in_order():
            self.add(call)

    def conversation_of(self, call_id: str) -> str:
        """Return the name of a call's conversation. Empty: the call is unknown."""
        return self._conversations.get(call_id, "")

    def add(self, call: Call) -> None:
        """Index a call's messages. Add the call again once it is closed, for its answers. Calls of other attempts are ignored."""
        if call.opened.attempt != self.attempt:
            return
        if call.call_id not in self._paths:
            self._add_messages(call)
        if call.opened.policy is None:  # a frozen engine's answers are the harness's own messages
            return
        for segment in call.segments():
            if segment not in self._after_answer:
                self._add_answer(call, segment)

    def read(
        self, messages: Sequence[Message], tools: Sequence[Message], options: PolicyOptions, digests: Sequence[Digest] | None = None
    ) -> HistoryReading:
        """Walk a history: recognise its sampled answers, and find what is stored already. `digests` are those of the messages as sent."""
        clean, walked, cuts = self._cut(messages, digests)
        start = start_digest(tools, options)
        begun = self._begun(start, tuple(walked))
        node, deepest, known_count = begun.node, begun.deepest, len(begun.digests)
        altered = dict(begun.altered)
        certain = True
        for index in range(known_count, len(walked)):
            after = node.after.get(walked[index])
            if node.answers and clean[index].get("role") == "assistant":
                segment = self._choose(node, clean[index], walked, index, options)
                certain &= len(node.candidates[walked[index], clean[index].get(KEY_FIELD)]) <= 1
                if segment is not None:
                    if self._after_answer[segment] is not after:
                        altered[index], after = segment, self._after_answer[segment]
                    deepest = index, node
            if after is None:
                break
            node, known_count = after, index + 1
        if known_count and certain:  # a choice may come out otherwise with what follows, or with what was received
            self._walked = Walk(begun.start, tuple(walked[:known_count]), node, deepest, altered)
        match = None if deepest is None else self._match(*deepest, clean, walked, options)
        return HistoryReading(
            messages=Said(self._forest, clean, altered),
            deepest=match,
            known=node.holder,
            known_count=known_count,
            answered=known_count == len(walked) and any(self._forest.calls[one.call_id].answered for one in node.answers),
            start=start,
            digests=walked,
            cuts=tuple(f"messages[{index}]: {text}" for index, text in cuts if index >= known_count),
        )

    def _begun(self, start: Digest, walked: tuple[Digest, ...]) -> Walk:
        """Return the walk that this one continues."""
        last = self._walked
        if last is not None and last.start == start and last.digests == walked[: len(last.digests)]:
            return last
        return Walk(start, (), self._starts.get(start, Node()), None, {})

    def _cut(
        self, messages: Sequence[Message], digests: Sequence[Digest] | None
    ) -> tuple[Sequence[Message], Sequence[Digest], list[tuple[int, str]]]:
        known = [message_digest(message) for message in messages] if digests is None else digests
        if not self._noise.active:
            return messages, known, []
        made = [self._noise.cut(message, digest) for message, digest in zip(messages, known, strict=True)]
        cuts = [(index, text) for index, (_, _, texts) in enumerate(made) for text in texts]
        return [message for message, _, _ in made], [digest for _, digest, _ in made], cuts

    def _candidates(self, node: Node, sent: Message, digest: Digest, options: PolicyOptions) -> list[SegmentRef]:
        """Return the answers that a message may be, unchanged ones first."""
        asked = digest, sent.get(KEY_FIELD)
        known = node.candidates.get(asked)
        if known is None:
            found = [(segment, same) for segment in node.answers if (same := self._same(segment, sent, options)) is not None]
            known = node.candidates[asked] = [segment for segment, (_, altered) in sorted(found, key=lambda one: one[1][1])]
        return known

    def _choose(self, node: Node, sent: Message, walked: Sequence[Digest], index: int, options: PolicyOptions) -> SegmentRef | None:
        """Return which answer a message is: the one that its key names, or one after which a known history continues as this one does.

        If there is no such answer, return one that came back unchanged, and of several the one that was received last.
        """
        candidates = self._candidates(node, sent, walked[index], options)
        if len(candidates) < 2:  # noqa: PLR2004 - nothing to choose
            return candidates[0] if candidates else None
        following = walked[index + 1] if index + 1 < len(walked) else None

        def rank(one: SegmentRef) -> tuple[bool, bool, bool, bool]:
            after = self._after_answer[one]
            keyed = answer_key(one.call_id, one.choice) == sent.get(KEY_FIELD)
            unchanged = after is node.after.get(walked[index])
            return keyed, following in after.after, unchanged, not self._forest.orphaned(self._forest.calls[one.call_id])

        best = max(map(rank, candidates))
        return [one for one in candidates if rank(one) == best][-1]

    def _match(self, index: int, node: Node, clean: Sequence[Message], walked: Sequence[Digest], options: PolicyOptions) -> Match | None:
        segment = self._choose(node, clean[index], walked, index, options)
        same = None if segment is None else self._same(segment, clean[index], options)
        if segment is None or same is None:
            return None
        siblings = len(self._candidates(node, clean[index], walked[index], options))
        return Match(index=index, segment=segment, by=same[0], altered=same[1], siblings=siblings)

    def _same(self, segment: SegmentRef, sent: Message, options: PolicyOptions) -> tuple[MatchedBy, bool] | None:
        sampled = sampled_message(self._forest, segment)
        withheld = self._forest.calls[segment.call_id].opened.reasoning_withheld
        tolerances = self._tolerances | {Tolerance.REASONING_ABSENT} if withheld else self._tolerances
        return same_answer(sampled, answer_key(segment.call_id, segment.choice), sent, tolerances, options.reasoning)

    def _add_messages(self, call: Call) -> None:
        opened = call.opened
        node, count = self._begin(call)
        messages: list[Message] = msgspec.json.decode(inline(opened.messages))
        path = self._paths[call.call_id] = [node]
        self._counts[call.call_id] = count
        for message in messages:
            node, count = node.then(message_digest(message), str(message.get("role"))), count + 1
            path.append(node)
            if node.holder is None:
                node.holder = MessagePrefix(call_id=call.call_id, count=count)
        self._add_conversation(call, node.head)

    def _add_conversation(self, call: Call, head: OpeningDigests) -> None:
        parent, sub_agent = call.placement.parent, call.opened.sub_agent
        told = call.placement.conversation if parent is None else self.conversation_of(parent.call_id)
        self._conversations[call.call_id] = told or name_of(head, sub_agent=sub_agent)

    def _add_answer(self, call: Call, segment: SegmentRef) -> None:
        before = self._paths[call.call_id][-1]
        if before.after:  # what follows it may be read anew
            self._walked = None
        answer = sampled_message(self._forest, segment)
        after = before.then(message_digest(answer), "assistant")
        before.answers.append(segment)
        before.candidates.clear()
        if after.holder is None:
            after.holder = MessagePrefix(call_id=call.call_id, count=call.opened.message_count, choice=segment.choice)
        self._after_answer[segment] = after
        if call.opened.side_call is None:
            turns = before.turns + 1 if call.answered else 0
            name, sub_agent = self._conversations[call.call_id], call.opened.sub_agent
            if sub_agent or call.placement.root is RootReason.SUB_AGENT:
                self.beginnings.sub_agent(name)
            self.beginnings.answered(name, before.head, before.start, answer, turns, sub_agent=sub_agent, step=call.opened.step)

    def _begin(self, call: Call) -> tuple[Node, int]:
        """Return the node that a call's own messages follow, and the number of messages up to it."""
        base = call.opened.history_base
        if base is None:
            tools: Any = msgspec.json.decode(inline(call.opened.tools)) if call.opened.tools is not None else ()
            start = start_digest(tools, call.opened.options)
            return self._starts.setdefault(start, Node(start)), 0
        if base.choice is not None:
            segment = SegmentRef(call_id=base.call_id, choice=base.choice)
            return self._after_answer.get(segment) or Node(), base.count + 1
        path = self._paths.get(base.call_id, [])
        own = base.count - self._counts.get(base.call_id, 0)
        return (path[own] if 0 <= own < len(path) else Node()), base.count  # else its record was damaged: it follows nothing known


def sampled_message(forest: Forest, segment: SegmentRef) -> Message:
    """Return the canonical message of an answer as it was sampled."""
    message: Message = msgspec.json.decode(inline(forest.calls[segment.call_id].choices[segment.choice].message))
    return message
