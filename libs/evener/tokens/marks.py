"""Finds how an undescribed harness marks retries, sub-agents and compacted histories. Pure.

A mark is proposed only if the calls show what it means: a header that comes with the repetition of an earlier request, or with other
conversations than the agent's alone; a message that takes the place of a history which nobody continues.
"""

import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from evener.proto.relay import RETRY_HEADER, SUB_AGENT_HEADER
from evener.proto.sessions import SegmentRef
from evener.proto.spec import Quirks
from evener.tokens.beginnings import COMPACTED_WITHIN, LEAST_TURNS, QUOTED_CALLS, QUOTED_LEAST, beginning_of, system_of, text_of
from evener.tokens.digests import Message
from evener.tokens.forest import Call
from evener.tokens.kinds import Conversations
from evener.tokens.roots import begins_compacted

LEAD_LEAST: Final = 12
"""The least number of characters by which a message that replaces a history can be known."""
SUMMARY: Final = re.compile(r"summar|compact(ed|ion)|continued from|previous conversation|earlier conversation", re.IGNORECASE)
"""Words with which a message tells that it replaces a history."""

Answers = Callable[[SegmentRef], Message]


class Marks(Struct, frozen=True, kw_only=True):
    """The undeclared marks that calls show. None: they show none."""

    because: tuple[str, ...] = ()
    """A sentence for each mark."""
    retry_header: str | None = None
    sub_agent_header: str | None = None
    compacted: str | None = None


def find_marks(
    calls: Sequence[Call], histories: Mapping[str, Sequence[Message]], known: Conversations, declared: Quirks, answer: Answers
) -> Marks:
    """Return the marks of calls in the order of the log. `histories`: all messages of each call. `answer` returns a sampled message."""
    retry = _commonest(_retries(calls)) if declared.retry_header is None else None
    sub_agent = _commonest(_of_sub_agents(calls, known)) if declared.sub_agent_header is None else None
    compacted = _commonest(_compactions(calls, histories, known, answer)) if declared.compacted is None else None
    because = []
    if retry is not None:
        because.append(f"{calls_in_words(retry[1])} repeated an earlier request with the header {retry[0]!r}")
    if sub_agent is not None:
        because.append(f"{calls_in_words(sub_agent[1])} beside the agent's own had the header {sub_agent[0]!r}")
    if compacted is not None:
        because.append(f"{calls_in_words(compacted[1])} went on from a message in the place of the history: /{compacted[0]}/")
    return Marks(
        because=tuple(because),
        retry_header=retry and retry[0],
        sub_agent_header=sub_agent and sub_agent[0],
        compacted=compacted and compacted[0],
    )


def calls_in_words(count: int) -> str:
    """Return a number of calls for a sentence."""
    return "a call" if count == 1 else f"{count} calls"


def _commonest(found: Iterator[str]) -> tuple[str, int] | None:
    return next(iter(Counter(found).most_common(1)), None)


def _retries(calls: Sequence[Call]) -> Iterator[str]:
    """Yield the header of each call that repeats an earlier request, which had not that header."""
    earlier: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        twins = earlier[call.opened.body_digest]
        for name in call.opened.marks:
            if RETRY_HEADER.search(name) and any(name not in twin.opened.marks for twin in twins):
                yield name
        twins.append(call)


def _of_sub_agents(calls: Sequence[Call], known: Conversations) -> Iterator[str]:
    """Yield the headers of calls that no call of the main conversation has."""
    main = known.main_calls()
    if len(main) < LEAST_TURNS:
        return
    agents = {name for call in calls if known.of(call.call_id) in known.main for name in call.opened.marks}
    for call in calls:
        yield from (name for name in call.opened.marks if SUB_AGENT_HEADER.search(name) and name not in agents)


def _compactions(calls: Sequence[Call], histories: Mapping[str, Sequence[Message]], known: Conversations, answer: Answers) -> Iterator[str]:
    """Yield a pattern for each history that took the place of the main conversation's, which then had ended.

    It has the agent's system prompt, offers tools if the agent's calls did, and a user message near its beginning quotes an answer from
    beside the agent's work, or says that it is a summary.
    """
    main = [call for call in known.main_calls() if call.call_id in histories]
    if len(main) < LEAST_TURNS:
        return
    systems, tools = {system_of(histories[call.call_id]) for call in main}, any(call.opened.tool_count for call in main)
    summaries = deque[str](maxlen=QUOTED_CALLS)
    for call in calls:
        beside = known.of(call.call_id) not in known.main and call.answered
        own = beside and call.opened.policy is not None and call.opened.side_call is None and not call.opened.sub_agent
        given = histories[call.call_id]
        alike = own and system_of(given) in systems and bool(call.opened.tool_count) == tools
        if alike and call.placement.parent is None and call.offset > main[-1].offset:
            for message in given[:COMPACTED_WITHIN]:
                pattern = _lead(text_of(message), summaries) if message.get("role") == "user" else None
                if pattern is not None and not any(begins_compacted(pattern, histories[one.call_id]) for one in main):
                    yield pattern
                    break
        if beside:
            summaries += [text for segment in call.segments() if len(text := text_of(answer(segment)).strip()) >= QUOTED_LEAST]


def _lead(text: str, summaries: Iterable[str]) -> str | None:
    """Return a pattern of the words before a summary in a text. None: there is no summary, or nothing before it to know it by."""
    ends = [at for summary in summaries if (at := text.find(summary)) >= 0]
    lead = text[: min(ends)] if ends else text
    first = lead.strip().partition("\n")[0]
    if len(first) < LEAD_LEAST or not (ends or SUMMARY.search(first)):
        return None
    return beginning_of(lead)
