"""What was said along a branch: its messages, for people and for judges."""

from collections.abc import Sequence
from typing import Final

import msgspec

from evener.proto.arrays import inline
from evener.proto.sessions import MessagePrefix, SegmentRef
from evener.tokens.digests import Message
from evener.tokens.forest import Call, Forest

_messages: Final = msgspec.json.Decoder(Message)
_lists: Final = msgspec.json.Decoder(list[Message])


def conversation(forest: Forest, branch: Sequence[SegmentRef]) -> list[Message]:
    """Return the canonical messages of a branch, given its segments from the root; answers as sampled."""
    messages: list[Message] = []
    for number, segment in enumerate(branch):
        call = forest.calls[segment.call_id]
        messages = given_messages(forest, call) if number == 0 else [*messages, *_own(call)]
        messages.append(_answer(forest, segment))
    return messages


def given_messages(forest: Forest, call: Call) -> list[Message]:
    """Return the whole history that a call was given."""
    follows = call.opened.follows
    return [*(_prefix(forest, follows) if follows is not None else ()), *_own(call)]


def _prefix(forest: Forest, prefix: MessagePrefix) -> list[Message]:
    held = given_messages(forest, forest.calls[prefix.call_id])[: prefix.count]
    return held if prefix.choice is None else [*held, _answer(forest, SegmentRef(call_id=prefix.call_id, choice=prefix.choice))]


def _own(call: Call) -> list[Message]:
    return _lists.decode(inline(call.opened.messages))


def _answer(forest: Forest, segment: SegmentRef) -> Message:
    return _messages.decode(inline(forest.calls[segment.call_id].choices[segment.choice].message))
