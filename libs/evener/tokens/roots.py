"""Why a call extends nothing, and which conversation it is of."""

import re
from collections.abc import Sequence

from msgspec import Struct

from evener.proto.sessions import RootReason
from evener.proto.spec import Quirks
from evener.tokens.beginnings import COMPACTED_WITHIN, LEAST_TURNS, Begun, name_of, text_of
from evener.tokens.digests import Message
from evener.tokens.history import History, Reading


class Root(Struct, frozen=True):
    """A call that extends nothing."""

    reason: RootReason
    conversation: str


def root_of(history: History, reading: Reading, quirks: Quirks, *, sub_agent: bool, tools: bool) -> Root:
    """Name the root of a history in which no answer of ours can be extended. `tools`: it offers some.

    Whatever failed has no part in it; nor has what is still sampled, so that calls at once are named alike in any order.
    """
    known = history.beginnings.find(reading.head, sub_agent=sub_agent)
    reason, goes_on = _going_on(known, reading) if known is not None else _beginning(history, reading, tools=tools)
    if sub_agent:
        reason, goes_on = RootReason.SUB_AGENT, known
    elif quirks.compacted is not None and _begins_compacted(quirks.compacted, reading.messages):
        goes_on = known or history.beginnings.latest_under(reading.head)
        reason = RootReason.COMPACTION if goes_on is not None else reason
    return Root(reason, goes_on.name if goes_on is not None else name_of(reading.head, sub_agent=sub_agent))


def _going_on(known: Begun, reading: Reading) -> tuple[RootReason, Begun]:
    """Name what has the beginning of a conversation that was answered."""
    spoken = any(message.get("role") == "assistant" for message in reading.messages)
    if not known.turns and not spoken:
        return RootReason.FIRST, known  # all that was sampled for it was aborted
    if reading.answered:
        return RootReason.NO_ANSWER, known
    if reading.start not in known.starts:
        return RootReason.TOOLS_CHANGED, known
    return RootReason.COMPACTION if not spoken and known.turns >= LEAST_TURNS else RootReason.REWRITTEN, known


def _beginning(history: History, reading: Reading, *, tools: bool) -> tuple[RootReason, Begun | None]:
    """Name what begins as no answered call did."""
    beginnings = history.beginnings
    if (changed := beginnings.answering(reading.messages, reading.digests)) is not None:
        return RootReason.REWRITTEN, changed
    if (compacted := beginnings.quoted(reading.messages, reading.head, reading.start)) is not None:
        return RootReason.COMPACTION, compacted
    return RootReason.SUB_AGENT if tools and beginnings.waited_for else RootReason.FIRST, None


def _begins_compacted(pattern: str, messages: Sequence[Message]) -> bool:
    users = [message for message in messages[:COMPACTED_WITHIN] if message.get("role") == "user"]
    return any(re.search(pattern, text_of(message)) for message in users)
