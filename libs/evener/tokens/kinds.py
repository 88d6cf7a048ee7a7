"""Determines the role of each row in its session, the main conversation, and the agent's last message.

Only recorded facts count: where calls are placed, whether they offered tools, and how they ended. A rebuild therefore gives the same result
as the gateway, which no longer holds the texts.
"""

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from evener.proto.sessions import RootReason, SegmentRef
from evener.proto.trajectories import RowKind
from evener.tokens.forest import Call, Forest
from evener.tokens.session import SessionLog

Path = list[SegmentRef]


class Conversation(Struct):
    """The answered calls of one conversation, without side calls."""

    calls: list[Call]

    @property
    def offers_tools(self) -> bool:
        return any(call.opened.tool_count for call in self.calls)

    @property
    def of_policy(self) -> bool:
        return any(call.opened.policy is not None for call in self.calls)


class Conversations:
    """The conversations of a session's last attempt."""

    def __init__(self, session: SessionLog) -> None:
        self._forest = session.forest
        self._names = session.forest.conversations()
        self._sub_agents: set[str] = set()
        self._asked_on: set[str] = set()
        """The names of the conversations that went on from an answer, even if only to calls that failed."""
        self._found: dict[str, Conversation] = {}
        for call in session.forest.in_order():
            name = self._names[call.call_id]
            if call.opened.attempt == session.attempt and call.placement.parent is not None:
                self._asked_on.add(name)
            if call.opened.attempt != session.attempt or call.closed is None:  # what failed, or was begun anew, names nothing
                continue
            if call.placement.root is RootReason.SUB_AGENT:
                self._sub_agents.add(name)
            if call.answered and call.choices and call.opened.side_call is None:
                self._found.setdefault(name, Conversation([])).calls.append(call)
        self._main_in = self._main()
        self.main = frozenset(self._main_in.values())
        """The names of the main conversation: another one in each step of the task that began anew. Empty: no call was answered."""

    def of(self, call_id: str) -> str:
        """Return the name of a call's conversation."""
        return self._names[call_id]

    def main_in(self, step: int) -> str | None:
        """Return the name of the main conversation in a step. None: no call of it was answered."""
        return self._main_in.get(step)

    def is_sub_agent(self, call_id: str) -> bool:
        """Return whether a sub-agent asked: its conversation is a sub-agent's, or its client said so."""
        return self._forest.calls[call_id].opened.sub_agent or self._names[call_id] in self._sub_agents

    def main_calls(self) -> list[Call]:
        """Return the answered calls of the main conversation, in the order of the log."""
        calls = [call for name in self.main for call in self._found[name].calls]
        return sorted(calls, key=lambda call: (call.offset, call.call_id))

    def _main(self) -> dict[int, str]:
        """Return the main conversation of each step: that of an earlier one, if it goes on."""
        main: dict[int, str] = {}
        for step in sorted({call.opened.step for one in self._found.values() for call in one.calls}):
            calls = {name: [call for call in one.calls if call.opened.step == step] for name, one in self._found.items()}
            found = {name: Conversation(own) for name, own in calls.items() if own}
            main[step] = next((name for name in reversed(main.values()) if name in found), None) or self._main_of(found)
        return main

    def _main_of(self, found: dict[str, Conversation]) -> str:
        """Return the main one of a step's conversations.

        It is not a sub-agent's, belongs to the policy, and offers tools, as far as any conversation does. Of several, the first is the main
        one. If none offers tools, it is the first that had more than one answer or asked for one, since a title is asked for once; and if
        none did, the last, since a title is asked for before the work.
        """
        left = _those(found, [name for name in found if name not in self._sub_agents])
        left = _those(left, [name for name, one in left.items() if one.of_policy])
        offered = [name for name, one in left.items() if one.offers_tools]
        worked = offered or [name for name, one in left.items() if len(one.calls) > 1 or name in self._asked_on]
        return worked[0] if worked else list(left)[-1]


def _those(conversations: dict[str, Conversation], names: list[str]) -> dict[str, Conversation]:
    """Return the named conversations, or all if no name is given."""
    return {name: conversations[name] for name in names} or conversations


def kinds_of(session: SessionLog, paths: Sequence[Path]) -> list[RowKind]:
    """Return the role of each path in its session."""
    known = Conversations(session)
    kinds = [_kind(session.forest, known, path) for path in paths]
    agents = [at for at, kind in enumerate(kinds) if kind is RowKind.BRANCH]
    if agents:
        first = min((segment for at in agents for segment in paths[at]), key=lambda one: _place(session.forest, one))
        main = max((at for at in agents if any(one.call_id == first.call_id for one in paths[at])), key=lambda at: len(paths[at]))
        kinds[main] = RowKind.MAIN
    return kinds


def last_message(session: SessionLog) -> SegmentRef | None:
    """Return the agent's last message: the first choice of the main conversation's last call whose answer was complete and received.

    Side calls and sub-agents do not count. A conversation continues where a summary replaces its history. None: there is no such message.
    """
    known = Conversations(session)
    calls = [call for call in known.main_calls() if not session.forest.orphaned(call) and not call.opened.sub_agent]
    return SegmentRef(call_id=calls[-1].call_id) if calls else None


def other_message(session: SessionLog) -> Call | None:
    """Return another call whose answer may be the agent's last message all the same. None: there is none.

    It is of another conversation and of the policy, and offered tools if the agent's message did. It is the last that was answered after
    that message: perhaps the history went on from a summary that nothing recognises. It may seem a sub-agent's, unless its client said so:
    the agent had waited for a tool. Otherwise, if the agent answered once and offered no tools, it is the last that was answered before:
    perhaps a title was asked for after the work.
    """
    if (last := last_message(session)) is None:
        return None
    known, message = Conversations(session), session.forest.calls[last.call_id]
    others = [
        call
        for call in session.forest.in_order()
        if call.opened.attempt == session.attempt
        and call.answered
        and call.opened.policy is not None
        and call.opened.side_call is None
        and not call.opened.sub_agent
        and known.of(call.call_id) not in known.main
        and (call.opened.tool_count or not message.opened.tool_count)
    ]
    later = [call for call in others if call.offset > message.offset]
    guessed = len(known.main_calls()) == 1 and not message.opened.tool_count
    return next(reversed(later or (others if guessed else [])), None)


def main_branch(session: SessionLog) -> Path:
    """Return the path to the agent's last message. Empty: there is none."""
    last = last_message(session)
    return session.forest.lineage(last) if last is not None else []


def asked_again(forest: Forest) -> set[str]:
    """Return the calls that repeat the prompt of an earlier, answered call of their attempt: these are new samples.

    Prompts are equal if their ids are equal: the whole context of a root, or the ids that follow the same answer.
    """
    alike: dict[tuple[int, SegmentRef | None, int], list[Call]] = {}
    for call in forest.in_order():
        if call.answered and call.opened.side_call is None:
            prefix = call.placement.prefix
            length = len(call.prompt_delta_ids) + (prefix.length if prefix else 0)
            alike.setdefault((call.opened.attempt, call.placement.parent, length), []).append(call)
    again: set[str] = set()
    for calls in alike.values():
        if len(calls) > 1:
            seen: Counter[bytes] = Counter()
            for call in calls:
                context = (call.prompt_delta_ids if call.placement.parent is not None else forest.context(call)).tobytes()
                if seen[context]:
                    again.add(call.call_id)
                seen[context] += 1
    return again


def _kind(forest: Forest, known: Conversations, path: Path) -> RowKind:
    """Return the role of a path. BRANCH means that it belongs to the main conversation."""
    root, last = forest.calls[path[0].call_id], path[-1].call_id
    if known.is_sub_agent(last):
        return RowKind.SUB_AGENT
    if root.placement.root is RootReason.COMPACTION:
        return RowKind.COMPACTION
    return RowKind.BRANCH if known.of(last) in known.main else RowKind.CONVERSATION


def _place(forest: Forest, segment: SegmentRef) -> tuple[int, str]:
    return forest.calls[segment.call_id].offset, segment.call_id
