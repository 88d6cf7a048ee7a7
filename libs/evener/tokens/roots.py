"""Determines why a call is a root, and which conversation it belongs to."""

from collections.abc import Sequence

from msgspec import Struct

from evener.proto.patterns import text_pattern
from evener.proto.sessions import RootReason
from evener.proto.spec import Quirks
from evener.tokens.beginnings import COMPACTED_WITHIN, LEAST_TURNS, Begun, name_of, text_of
from evener.tokens.digests import Message
from evener.tokens.history import History, HistoryReading


class Root(Struct, frozen=True):
    """A call that extends no answer."""

    reason: RootReason
    conversation: str


def root_of(history: History, reading: HistoryReading, quirks: Quirks, *, sub_agent: bool, tools: bool, step: int = 0) -> Root:
    """Return the root of a history in which no sampled answer can be extended. `tools`: the request offers tools. `step`: the task's.

    Failed calls do not count, and neither do calls that are still sampling, so that concurrent calls get the same result in any order.
    """
    known = history.beginnings.find(reading.head, sub_agent=sub_agent)
    reason, goes_on = _going_on(known, reading) if known is not None else _beginning(history, reading, tools=tools, step=step)
    if sub_agent:
        reason, goes_on = RootReason.SUB_AGENT, known
    elif quirks.compacted is not None and begins_compacted(quirks.compacted, reading.messages):
        goes_on = goes_on or history.beginnings.replaced(reading.head, step)
        reason = RootReason.COMPACTION if goes_on is not None else reason
    return Root(reason, goes_on.name if goes_on is not None else name_of(reading.head, sub_agent=sub_agent))


def _going_on(known: Begun, reading: HistoryReading) -> tuple[RootReason, Begun]:
    """Return the root of a call whose head is that of an answered conversation."""
    spoken = any(message.get("role") == "assistant" for message in reading.messages)
    if not known.turns and not spoken:
        return RootReason.FIRST, known  # all that was sampled for it was aborted
    if reading.answered:
        return RootReason.NO_ANSWER, known
    if reading.start not in known.starts:
        return RootReason.TOOLS_CHANGED, known
    return RootReason.COMPACTION if not spoken and known.turns >= LEAST_TURNS else RootReason.REWRITTEN, known


def _beginning(history: History, reading: HistoryReading, *, tools: bool, step: int) -> tuple[RootReason, Begun | None]:
    """Return the root of a call whose head is new."""
    beginnings = history.beginnings
    if (changed := beginnings.answering(reading.messages, reading.digests)) is not None:
        return RootReason.REWRITTEN, changed
    if (compacted := beginnings.quoted(reading.messages, reading.head, reading.start, step)) is not None:
        return RootReason.COMPACTION, compacted
    return RootReason.SUB_AGENT if tools and beginnings.waited_for(step) else RootReason.FIRST, None


def begins_compacted(pattern: str, messages: Sequence[Message]) -> bool:
    """Return whether the pattern is found in one of the user messages that may replace a history."""
    users = [message for message in messages[:COMPACTED_WITHIN] if message.get("role") == "user"]
    return any(text_pattern(pattern).occurs_in(text_of(message)) for message in users)
