"""Proposes quirks for a harness from what a session's calls show. Pure.

An undeclared quirk costs rows, or trains tokens that are not the agent's work. Nothing here is applied: a person decides.
"""

import re
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct, structs

from evener.proto.ids import answer_key
from evener.proto.sessions import SegmentRef
from evener.proto.spec import NOISY_ROLES, Noise, Quirks, Reasoning, SideCall, Tolerance
from evener.tokens.answers import same_answer
from evener.tokens.beginnings import LEAST_TURNS, beginning_of, system_of, text_of
from evener.tokens.conversation import own_messages
from evener.tokens.digests import Message
from evener.tokens.forest import Call
from evener.tokens.history import sampled_message
from evener.tokens.kinds import Conversations
from evener.tokens.marks import Marks, calls_in_words, find_marks
from evener.tokens.place import side_call_of
from evener.tokens.session import SessionLog
from evener.tokens.text_differences import differences

CALLS: Final = 200
"""The number of a session's calls that are examined. A harness shows its habits early."""
COMPARED_ANSWERS: Final = 16
"""The number of answers to one turn that a message is compared with."""
SHOWN_WORDS: Final = 6
"""The number of words that a sentence shows of what a pattern would cut."""
NAMES: Final = ("title", "summar", "memory", "rout", "topic")
"""Words in a prompt that tell which kind of side call it is."""
TOLERATED: Final = {
    Tolerance.NUMBERS_LOOSE: "with numbers in their arguments spelled differently",
    Tolerance.TEXT_TRIMMED: "with white space trimmed",
    Tolerance.BLANK_TEXT_ABSENT: "without their blank text",
    Tolerance.REASONING_ABSENT: "without their reasoning",
    Tolerance.CALL_ID_LETTERS: "with changed characters in their tool-call ids",
    Tolerance.CALL_IDS_ABSENT: "without their tool-call ids",
}


class Proposal(Struct, frozen=True, kw_only=True):
    """Quirks proposed for a harness."""

    because: tuple[str, ...]
    """One sentence for each observation."""
    quirks: Quirks
    """The quirks that the session had, with the proposed ones added."""


def propose(session: SessionLog) -> Proposal | None:
    """Return the quirks that a session's harness should declare. None: nothing suggests more than it declares.

    Raises KeyError, IndexError or a decoding error if a record is missing or damaged.
    """
    start = session.starts.get(session.attempt)
    declared = start.quirks if start is not None else Quirks()
    calls = [call for call in session.forest.in_order() if call.opened.attempt == session.attempt and call.ended][:CALLS]
    seen = _Seen(session, calls, declared)
    tolerances, noise, side_calls = Counter(seen.tolerances()), dict(seen.noise()), tuple(seen.side_calls())
    marks = seen.marks()
    because = [
        *(f"{_answers(count)} came back {TOLERATED[tolerance]}" for tolerance, count in sorted(tolerances.items())),
        *(
            f"text of {one.where} messages changes without meaning: /{one.pattern}/ would cut {_quoted(words)}"
            for one, words in noise.items()
        ),
        *(f"{calls_in_words(count)} beside the agent's work: {one.system or one.last!r}" for one, count in side_calls),
        *marks.because,
    ]
    if not because:
        return None
    quirks = structs.replace(
        declared,
        tolerances=(*declared.tolerances, *sorted(tolerances)),
        noise=(*declared.noise, *noise),
        side_calls=(*declared.side_calls, *(one for one, _ in side_calls)),
        retry_header=marks.retry_header or declared.retry_header,
        compacted=marks.compacted or declared.compacted,
        sub_agent_header=marks.sub_agent_header or declared.sub_agent_header,
    )
    return Proposal(because=tuple(because), quirks=quirks)


class _Seen:
    """The calls of one attempt, with the history of each."""

    def __init__(self, session: SessionLog, calls: Sequence[Call], declared: Quirks) -> None:
        self._forest = session.forest
        self._declared = declared
        self._calls = calls
        self._conversations = Conversations(session)
        self._answers: dict[SegmentRef, Message] = {}
        self._given: dict[str, list[Message]] = {}
        """The whole history of each call. Each message is decoded once, however many histories hold it."""
        for call in calls:
            self._given[call.call_id] = self._history(call)

    def tolerances(self) -> Iterator[Tolerance]:
        """Yield, for each message taken for the harness's own, the tolerances under which it would be a sampled answer."""
        by_turn: dict[int, list[SegmentRef]] = {}
        for call in self._calls:
            given, base = self._given[call.call_id], call.opened.history_base
            known = 0 if base is None else base.count + (base.choice is not None)
            for at in range(known, len(given)):
                if given[at].get("role") == "assistant":
                    yield from self._needed(given[at], by_turn.get(_turns(given[:at]), ()))
            if call.opened.policy is not None:
                by_turn.setdefault(_turns(given), []).extend(call.segments())

    def noise(self) -> Iterator[tuple[Noise, tuple[str, ...]]]:
        """Yield what varies in the history between a call and the later call that sends its answer back, with the words of it."""
        found: dict[Noise, tuple[str, ...]] = {}
        for name in {self._conversations.of(call.call_id): None for call in self._calls}:
            calls = [call for call in self._calls if self._conversations.of(call.call_id) == name and call.opened.side_call is None]
            for one, other in pairwise(calls):
                if self._answered_in(one, other):
                    found |= _varying(list(zip(self._given[one.call_id], self._given[other.call_id], strict=False)), found)
        yield from ((one, words) for one, words in found.items() if words and one not in self._declared.noise)

    def side_calls(self) -> Iterator[tuple[SideCall, int]]:
        """Yield the signatures of calls that are not the agent's work, each with the number of calls."""
        main = self._conversations.main_calls()
        with_tools = any(call.opened.tool_count for call in main)
        agents = {system_of(self._given[call.call_id]) for call in main if call.call_id in self._given}
        found: Counter[SideCall] = Counter()
        for call in self._calls:
            if len(main) < LEAST_TURNS or not self._beside(call):
                continue
            signature = _signature(self._given[call.call_id], agents, with_tools=with_tools)
            if signature is not None and not self._meets(signature, main):
                found[signature] += 1
        yield from found.items()

    def marks(self) -> Marks:
        """Return how the harness seems to mark retries, sub-agents and compacted histories, where it declares nothing of the kind."""
        return find_marks(self._calls, self._given, self._conversations, self._declared, self._answer)

    def _history(self, call: Call) -> list[Message]:
        base = call.opened.history_base
        if base is None:
            return own_messages(call)
        held = self._given[base.call_id][: base.count]
        answer = [] if base.choice is None else [self._answer(SegmentRef(call_id=base.call_id, choice=base.choice))]
        return [*held, *answer, *own_messages(call)]

    def _answer(self, segment: SegmentRef) -> Message:
        if segment not in self._answers:
            self._answers[segment] = sampled_message(self._forest, segment)
        return self._answers[segment]

    def _needed(self, sent: Message, candidates: Sequence[SegmentRef]) -> frozenset[Tolerance]:
        for segment in reversed(candidates[-COMPARED_ANSWERS:]):
            needed = _least(self._answer(segment), segment, sent) - frozenset(self._declared.tolerances)
            if needed:
                return needed
        return frozenset()

    def _answered_in(self, one: Call, other: Call) -> bool:
        """Return whether a call's answer stands in another call's history, directly after the first call's own history."""
        at, given = len(self._given[one.call_id]), self._given[other.call_id]
        if at >= len(given) or given[at].get("role") != "assistant":
            return False
        return any(_same(self._answer(answer), answer, given[at], frozenset(Tolerance)) for answer in one.segments())

    def _beside(self, call: Call) -> bool:
        """Return whether a call may be a side call: one without tools, in a conversation of one turn for whose result no agent waited."""
        own = call.opened.side_call is None and not call.opened.tool_count and call.answered
        name = self._conversations.of(call.call_id)
        apart = name not in self._conversations.main and not self._conversations.is_sub_agent(call.call_id)
        return own and apart and not any(one.placement.parent for one in self._calls if self._conversations.of(one.call_id) == name)

    def _meets(self, signature: SideCall, calls: Sequence[Call]) -> bool:
        """Return whether the signature would match any of the agent's own calls."""
        quirks = Quirks(side_calls=(signature,))
        return any(
            side_call_of(quirks, self._given[call.call_id], [{}] * call.opened.tool_count) for call in calls if call.call_id in self._given
        )


def _least(sampled: Message, segment: SegmentRef, sent: Message) -> frozenset[Tolerance]:
    """Return the least tolerances under which a message is this answer. Empty: it is not, even with all tolerances."""
    needed = frozenset(Tolerance)
    if not _same(sampled, segment, sent, needed):
        return frozenset()
    for tolerance in Tolerance:
        if _same(sampled, segment, sent, needed - {tolerance}):
            needed -= {tolerance}
    return needed


def _same(sampled: Message, segment: SegmentRef, sent: Message, tolerances: frozenset[Tolerance]) -> bool:
    return same_answer(sampled, answer_key(segment.call_id, segment.choice), sent, tolerances, Reasoning.REINSTATE) is not None


def _varying(histories: Sequence[tuple[Message, Message]], known: Container[Noise]) -> dict[Noise, tuple[str, ...]]:
    """Return what varies between two histories and is not known yet, with its words; without any, if it would cut an equal message."""
    found: dict[Noise, tuple[str, ...]] = {}
    same: dict[str, list[str]] = {}
    for before, after in histories:
        role = _noisy_role(before)
        if before is after or before == after:
            same.setdefault(role, []).append(text_of(before))
        elif role in NOISY_ROLES and before.get("role") == after.get("role"):
            found |= {Noise(where=role, pattern=one.pattern): one.words for one in differences(text_of(before), text_of(after))}
    return {one: words if _apart(one, same) else () for one, words in found.items() if one not in known}


def _apart(noise: Noise, same: Mapping[str, Sequence[str]]) -> bool:
    """Return whether a pattern leaves those texts alone, by role."""
    return not any(re.search(noise.pattern, text) for text in same.get(noise.where, ()))


def _noisy_role(message: Message) -> str:
    return "system" if message.get("role") == "developer" else str(message.get("role"))


def _quoted(words: Sequence[str]) -> str:
    """Return the first of some words as a list for a sentence."""
    return ", ".join(map(repr, words[:SHOWN_WORDS])) + (" ..." if len(words) > SHOWN_WORDS else "")


def _signature(given: Sequence[Message], agents: set[str], *, with_tools: bool) -> SideCall | None:
    """Return what identifies a call without tools: its system prompt if the agents have another one, otherwise its last message."""
    system, last = system_of(given), text_of(given[-1]) if given else ""
    named = next((name for name in NAMES if name in f"{system} {last}".lower()), "side")
    name = {"summar": "summary", "rout": "router"}.get(named, named)
    tools = False if with_tools else None
    if system and system not in agents:
        return SideCall(name=name, system=beginning_of(system), tools=tools)
    return SideCall(name=name, last=beginning_of(last), tools=tools) if with_tools and last.strip() else None


def _turns(messages: Sequence[Message]) -> int:
    return sum(message.get("role") == "assistant" for message in messages)


def _answers(count: int) -> str:
    return "an answer" if count == 1 else f"{count} answers"
