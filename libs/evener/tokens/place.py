"""Places a call: finds what it extends, and which ids the engine is given. Version 3 of the rules.

The harness's text decides only *where* a call continues. The renderer proves the ids that follow the parent's sampled ids. Without proof
the call is a new root with a reason, never a splice.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import numpy as np
from msgspec import Struct, structs

from evener.proto.arrays import int32s
from evener.proto.patterns import text_pattern
from evener.proto.sessions import BridgedBy, FinishReason, MessagePrefix, PathPrefix, Placement, RootReason
from evener.proto.spec import PolicyOptions, Quirks, Thinking
from evener.tokens.beginnings import text_of
from evener.tokens.digests import Digest, Message
from evener.tokens.forest import Forest, Ids
from evener.tokens.history import History, HistoryReading, Match
from evener.tokens.roots import Root, root_of

PLACEMENT_RULE: Final = 3
"""The version of these rules, recorded with each placement."""
PREFIX_CANDIDATES: Final = 8
"""The number of latest calls whose paths a new root is compared with, so that only the difference is stored."""
PREFIX_LEAST_TOKENS: Final = 32


class Bridged(Protocol):
    """Ids that follow a sampled segment, and how they were proven."""

    @property
    def ids(self) -> Ids: ...
    @property
    def by(self) -> BridgedBy: ...


class Renders(Protocol):
    """What placing needs of a policy's renderer (`evener.templates.port.Renderer`)."""

    def render(self, messages: Sequence[Message], tools: Sequence[Message] | None) -> Ids: ...
    def bridge(
        self, before: Sequence[Message], answer: Message, new: Sequence[Message], tools: Sequence[Message] | None, *, closed: bool
    ) -> Bridged | None: ...
    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The ids that end a turn. The first is the template's own."""
        ...

    def reasoning_length(self, ids: Ids) -> int:
        """Return how many of the sampled ids are reasoning, its delimiters included."""
        ...


class Placed(Struct, frozen=True, kw_only=True, eq=False):
    """The place of a call, with everything to record and to give the engine."""

    placement: Placement
    prompt_delta_ids: Ids
    """int32[G]: the ids to record."""
    context: Ids
    """int32[T]: the ids for the engine."""
    history_base: MessagePrefix | None
    messages: Sequence[Message]
    """The messages to record: those after `history_base`."""
    history: Sequence[Message]
    """The whole history, answers as they were sampled, for an engine that renders it itself."""
    side_call: str | None
    cuts: tuple[str, ...]
    """The noise that was cut from the recorded messages."""


def place(
    forest: Forest,
    history: History,
    messages: Sequence[Message],
    tools: Sequence[Message],
    *,
    renderer: Renders,
    options: PolicyOptions,
    quirks: Quirks,
    digests: Sequence[Digest] | None = None,
    sub_agent: bool = False,
    step: int = 0,
) -> Placed:
    """Place a request. Raises what the renderer raises for messages that it cannot render.

    `digests` are those of the messages. `sub_agent`: the client says that a sub-agent asks. `step`: the number of the task's step.
    """
    reading = history.read(messages, tools, options, digests)
    side_call = side_call_of(quirks, messages, tools)
    match = reading.deepest
    if match is None:
        root = root_of(history, reading, quirks, sub_agent=sub_agent, tools=bool(tools), step=step)
    elif (bridged := _extend(forest, reading, match, tools, renderer)) is not None:
        return _child(forest, reading, match, bridged, renderer, side_call=side_call)
    else:
        stripped = options.thinking is Thinking.TEMPLATE and _stripped(forest, reading, match, tools, renderer)
        reason = RootReason.THINKING_STRIPPED if stripped else RootReason.NO_BRIDGE
        root = Root(reason, history.conversation_of(match.segment.call_id))
    if side_call is not None:
        root = structs.replace(root, reason=RootReason.SIDE_CALL)
    context = renderer.render(reading.messages, tools or None)
    prefix = _shared_prefix(forest, context)
    given = context[prefix.length :] if prefix is not None else context
    return Placed(
        placement=Placement(rule=PLACEMENT_RULE, root=root.reason, prefix=prefix, conversation=root.conversation),
        prompt_delta_ids=given,
        context=context,
        history_base=reading.known,
        messages=list(reading.messages[reading.known_count :]),
        history=reading.messages,
        side_call=side_call,
        cuts=reading.cuts,
    )


def settle(forest: Forest, placed: Placed, reported: Ids) -> Placed:
    """Return the final placement of a call whose engine rendered the prompt itself and reported its ids. This is never a splice."""
    if np.array_equal(reported, placed.context):
        return placed
    parent = placed.placement.parent
    if parent is not None and _begins(reported, path := forest.path(parent)):
        placement = structs.replace(placed.placement, bridged_by=BridgedBy.ENGINE)
        return structs.replace(placed, placement=placement, prompt_delta_ids=reported[len(path) :], context=reported)
    prefix = _shared_prefix(forest, reported)
    given = reported[prefix.length :] if prefix is not None else reported
    root = placed.placement.root or RootReason.IDS_DIFFER
    conversation = placed.placement.conversation if parent is None else forest.conversation(parent.call_id)
    placement = Placement(rule=PLACEMENT_RULE, root=root, prefix=prefix, conversation=conversation)
    return structs.replace(placed, placement=placement, prompt_delta_ids=given, context=reported)


def nowhere() -> Placed:
    """Return the place of a call that could not be placed, with no ids and no messages."""
    empty = np.empty(0, np.int32)
    placement = Placement(rule=PLACEMENT_RULE, root=RootReason.INCONSISTENT)
    return Placed(
        placement=placement, prompt_delta_ids=empty, context=empty, history_base=None, messages=(), history=(), side_call=None, cuts=()
    )


def _begins(ids: Ids, path: Ids) -> bool:
    return len(path) < len(ids) and np.array_equal(ids[: len(path)], path)


def _extend(forest: Forest, reading: HistoryReading, match: Match, tools: Sequence[Message], renderer: Renders) -> Bridged | None:
    closed = _closed(forest, match, renderer)
    if closed is None:
        return None
    return renderer.bridge(
        reading.messages[: match.index],
        reading.messages[match.index],
        reading.messages[match.index + 1 :],
        tools or None,
        closed=closed,
    )


def _closed(forest: Forest, match: Match, renderer: Renders) -> bool | None:
    """Return whether an answer ends with its template's end of turn. None: it cannot be extended with proof."""
    choice = forest.calls[match.segment.call_id].choices[match.segment.choice]
    if choice.finish_reason is FinishReason.ABORTED:
        return None
    sampled = int32s(choice.sampled_ids)
    last = int(sampled[-1]) if len(sampled) else None
    if last in renderer.stop_ids[1:]:  # ended, but not as the template ends a turn: what follows cannot be proven
        return None
    return last == renderer.stop_ids[0]


def _stripped(forest: Forest, reading: HistoryReading, match: Match, tools: Sequence[Message], renderer: Renders) -> bool:
    """Return whether only the template's dropping of earlier reasoning prevents a bridge.

    This is tried on an excerpt, however long the history is: its first messages, then everything from the last turn with reasoning on.
    """
    closed, messages = _closed(forest, match, renderer), reading.messages
    reasoned = next((at for at in range(match.index, -1, -1) if messages[at].get("reasoning")), None)
    if closed is None or reasoned is None:
        return False
    excerpt = [*messages[: min(len(reading.head), reasoned)], *messages[reasoned : match.index + 1]]
    bare = [{name: value for name, value in turn.items() if name != "reasoning"} for turn in excerpt]
    new = messages[match.index + 1 :]
    reasons, bridges = (renderer.bridge(turns[:-1], turns[-1], new, tools or None, closed=closed) for turns in (excerpt, bare))
    return reasons is None and bridges is not None


def _child(forest: Forest, reading: HistoryReading, match: Match, bridged: Bridged, renderer: Renders, *, side_call: str | None) -> Placed:
    parent = forest.calls[match.segment.call_id]
    return Placed(
        placement=Placement(
            rule=PLACEMENT_RULE,
            parent=match.segment,
            matched_by=match.by,
            bridged_by=bridged.by,
            altered=match.altered,
            siblings=match.siblings,
            reinstated_tokens=_reinstated(forest, reading, match, renderer),
        ),
        prompt_delta_ids=bridged.ids,
        context=np.concatenate((forest.path(match.segment), bridged.ids)).astype(np.int32, copy=False),
        history_base=MessagePrefix(call_id=parent.call_id, count=parent.opened.message_count, choice=match.segment.choice),
        messages=list(reading.messages[match.index + 1 :]),
        history=reading.messages,
        side_call=side_call,
        cuts=reading.cuts,
    )


def _reinstated(forest: Forest, reading: HistoryReading, match: Match, renderer: Renders) -> int:
    """Return how many tokens of the parent's reasoning stay in the context although the harness dropped them."""
    if not match.altered or reading.messages.sent(match.index).get("reasoning"):
        return 0
    choice = forest.calls[match.segment.call_id].choices[match.segment.choice]
    return renderer.reasoning_length(int32s(choice.sampled_ids))


def _shared_prefix(forest: Forest, context: Ids) -> PathPrefix | None:
    """Return the longest prefix that the new root shares with a recent path. It saves storage only and says nothing about branches."""
    best = PathPrefix(call_id="", length=0)
    closed = [call for call in forest.in_order() if call.closed is not None]
    for call in closed[-PREFIX_CANDIDATES:]:
        for segment in call.segments():
            path = forest.path(segment)
            size = min(len(path), len(context))
            differ = np.flatnonzero(path[:size] != context[:size])
            length = int(differ[0]) if len(differ) else size
            if length > best.length:
                best = PathPrefix(call_id=segment.call_id, choice=segment.choice, length=length)
    return best if best.length >= PREFIX_LEAST_TOKENS else None


def side_call_of(quirks: Quirks, messages: Sequence[Message], tools: Sequence[Message]) -> str | None:
    """Return the name of the first signature that a call matches. None: the call is the agent's work."""
    for signature in quirks.side_calls:
        if signature.tools is not None and signature.tools != bool(tools):
            continue
        system = next((text_of(m) for m in messages if m.get("role") in {"system", "developer"}), "")
        if signature.system is not None and not text_pattern(signature.system).occurs_in(system):
            continue
        if signature.last is not None and not (messages and text_pattern(signature.last).occurs_in(text_of(messages[-1]))):
            continue
        return signature.name
    return None
