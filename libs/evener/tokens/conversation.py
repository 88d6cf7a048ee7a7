"""The messages along a branch, for people and for model graders."""

from collections.abc import Sequence
from typing import Final

import msgspec

from evener.proto.arrays import inline
from evener.proto.sessions import SegmentRef
from evener.tokens.digests import Message
from evener.tokens.forest import Call, Forest

_messages: Final = msgspec.json.Decoder(list[Message])
_message: Final = msgspec.json.Decoder(Message)


def conversation(forest: Forest, branch: Sequence[SegmentRef]) -> list[Message]:
    """Return the canonical messages of a branch, given as its segments from the root. Answers are as they were sampled."""
    messages: list[Message] = []
    for number, segment in enumerate(branch):
        call = forest.calls[segment.call_id]
        messages = given_messages(forest, call) if number == 0 else [*messages, *own_messages(call)]
        messages.append(_answer(forest, segment))
    return messages


def given_messages(forest: Forest, call: Call) -> list[Message]:
    """Return the whole history of a call. Raises KeyError or IndexError if a record of it is missing."""
    pieces: list[list[Message]] = []
    at, most = call, call.opened.message_count
    while True:  # not by recursion: a history may follow as many others as it has turns
        own, base = own_messages(at), at.opened.history_base
        before = at.opened.message_count - len(own)
        pieces.append(own[: max(most - before, 0)])
        if base is None:
            return [message for piece in reversed(pieces) for message in piece]
        if base.choice is not None and most > base.count:
            pieces.append([_answer(forest, SegmentRef(call_id=base.call_id, choice=base.choice))])
        at, most = forest.calls[base.call_id], min(most, base.count)


def own_messages(call: Call) -> list[Message]:
    """Return the messages that are recorded with a call: those after its history base."""
    return _messages.decode(inline(call.opened.messages))


def _answer(forest: Forest, segment: SegmentRef) -> Message:
    return _message.decode(inline(forest.calls[segment.call_id].choices[segment.choice].message))
