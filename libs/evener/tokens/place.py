"""Placing a call: what it extends, and which ids it gives the engine. Version 1 of the rules.

The harness's text decides only *where* a call continues. What follows the parent's sampled ids is proven by the renderer;
without proof the call is a new root with its reason, never a splice.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
from msgspec import Struct

from evener.proto.arrays import int32s
from evener.proto.sessions import BridgedBy, FinishReason, MessagePrefix, PathPrefix, Placement, RootReason
from evener.proto.spec import PolicyOptions, Quirks, Thinking
from evener.tokens.forest import Forest, Ids
from evener.tokens.history import History, Message, Reading

RULE: Final = 1
"""Version of these rules, recorded with each placement."""
PREFIX_CANDIDATES: Final = 8
"""Latest calls whose paths a new root is compared with, to store only what differs."""
PREFIX_LEAST_TOKENS: Final = 32


class Bridged(Protocol):
    """Ids after a sampled segment, and what proves them."""

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
        """Ids that end a turn; the first is the template's own."""
        ...


class Placed(Struct, frozen=True, kw_only=True, eq=False):
    """Where a call hangs, and everything to record and to give the engine."""

    placement: Placement
    given: Ids
    """int32[G], to record."""
    context: Ids
    """int32[T], for the engine."""
    follows: MessagePrefix | None
    messages: tuple[Message, ...]
    """After `follows`, to record."""
    side_call: str | None


def place(
    forest: Forest,
    history: History,
    messages: Sequence[Message],
    tools: Sequence[Message],
    *,
    renderer: Renders,
    options: PolicyOptions,
    quirks: Quirks,
) -> Placed:
    """Place a request. Raises what the renderer raises for messages that it cannot render."""
    reading = history.read(messages, tools, options)
    side_call = _side_call(quirks, messages, tools)
    bridged = _extend(forest, reading, tools, renderer)
    if bridged is not None:
        return _child(forest, reading, bridged, side_call)
    reason = RootReason.SIDE_CALL if side_call is not None else _why_root(history, reading, options)
    context = renderer.render(reading.messages, tools or None)
    prefix = _shared_prefix(forest, context)
    given = context[prefix.length :] if prefix is not None else context
    return Placed(
        placement=Placement(rule=RULE, root=reason, prefix=prefix),
        given=given,
        context=context,
        follows=reading.known,
        messages=reading.messages[reading.known_count :],
        side_call=side_call,
    )


def _extend(forest: Forest, reading: Reading, tools: Sequence[Message], renderer: Renders) -> Bridged | None:
    match = reading.deepest
    if match is None:
        return None
    choice = forest.calls[match.segment.call_id].choices[match.segment.choice]
    if choice.finish_reason is FinishReason.ABORTED:
        return None
    sampled = int32s(choice.sampled_ids)
    last = int(sampled[-1]) if len(sampled) else None
    if last in renderer.stop_ids[1:]:  # ended, but not as the template ends a turn: what follows cannot be proven
        return None
    return renderer.bridge(
        reading.messages[: match.index],
        reading.messages[match.index],
        reading.messages[match.index + 1 :],
        tools or None,
        closed=last == renderer.stop_ids[0],
    )


def _child(forest: Forest, reading: Reading, bridged: Bridged, side_call: str | None) -> Placed:
    match = reading.deepest
    if match is None:
        msg = "a bridge without the answer that it extends"
        raise ValueError(msg)
    parent = forest.calls[match.segment.call_id]
    sampled = int32s(parent.choices[match.segment.choice].sampled_ids)
    return Placed(
        placement=Placement(
            rule=RULE, parent=match.segment, matched_by=match.by, bridged_by=bridged.by, altered=match.altered, siblings=match.siblings
        ),
        given=bridged.ids,
        context=np.concatenate((forest.context(parent), sampled, bridged.ids)).astype(np.int32, copy=False),
        follows=MessagePrefix(call_id=parent.call_id, count=parent.opened.message_count, choice=match.segment.choice),
        messages=reading.messages[match.index + 1 :],
        side_call=side_call,
    )


def _why_root(history: History, reading: Reading, options: PolicyOptions) -> RootReason:
    if not history.has_answers:
        return RootReason.FIRST
    if reading.deepest is not None:
        stripped = options.thinking is Thinking.TEMPLATE and reading.messages[reading.deepest.index].get("reasoning")
        return RootReason.THINKING_STRIPPED if stripped else RootReason.NO_BRIDGE
    if history.answered_at(reading.end):
        return RootReason.NO_ANSWER
    beginning = reading.messages[: reading.known_count]
    if not any(message.get("role") not in {"system", "developer"} for message in beginning):
        return RootReason.TOOLS_CHANGED if history.knows_head(reading.messages) else RootReason.SUB_AGENT
    if not any(message.get("role") == "assistant" for message in reading.messages):
        return RootReason.COMPACTION
    return RootReason.REWRITTEN


def _shared_prefix(forest: Forest, context: Ids) -> PathPrefix | None:
    best = PathPrefix(call_id="", length=0)
    closed = [call for call in forest.in_order() if call.closed is not None]
    for call in closed[-PREFIX_CANDIDATES:]:
        path = forest.path(call)
        size = min(len(path), len(context))
        differ = np.flatnonzero(path[:size] != context[:size])
        length = int(differ[0]) if len(differ) else size
        if length > best.length:
            best = PathPrefix(call_id=call.call_id, length=length)
    return best if best.length >= PREFIX_LEAST_TOKENS else None


def _side_call(quirks: Quirks, messages: Sequence[Message], tools: Sequence[Message]) -> str | None:
    for signature in quirks.side_calls:
        if signature.tools is not None and signature.tools != bool(tools):
            continue
        system = next((_text(m) for m in messages if m.get("role") in {"system", "developer"}), "")
        if signature.system is not None and not re.search(signature.system, system):
            continue
        if signature.last is not None and not (messages and re.search(signature.last, _text(messages[-1]))):
            continue
        return signature.name
    return None


def _text(message: Message) -> str:
    content: Any = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content or () if isinstance(part, dict))
