"""A session's forest of calls. Tokens hang on calls: ids given, then one sampled segment per choice.

Segments are never split: branches leave between them. Ids are stored as deltas to the parent, so storage is linear.
"""

import threading
from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from evener.proto.arrays import int32s, length
from evener.proto.sessions import (
    CallClosed,
    CallDelivered,
    CallFailed,
    CallOpened,
    CallUndelivered,
    Choice,
    Fidelity,
    FinishReason,
    Placement,
    SegmentRef,
)

Ids = NDArray[np.int32]

PATHS_KEPT: Final = 4


class Call:
    """One model call: where it hangs, what was given, what was sampled."""

    __slots__ = ("closed", "failed", "left", "offset", "opened", "requests")

    def __init__(self, opened: CallOpened, offset: int) -> None:
        self.opened = opened
        self.offset = offset
        """Of CallOpened in the log: the order of calls."""
        self.closed: CallClosed | None = None
        self.failed: CallFailed | None = None
        self.requests = {opened.request_id}
        """Its own request, and the transport retries that got its answer."""
        self.left: set[str] = set()
        """Those of them whose connection was gone before the answer was through."""

    @property
    def call_id(self) -> str:
        return self.opened.call_id

    @property
    def placement(self) -> Placement:
        """Return the final placement: CallClosed's where the engine reported the ids."""
        if self.closed is not None and self.closed.placement is not None:
            return self.closed.placement
        return self.opened.placement

    @property
    def given(self) -> Ids:
        """int32[G]: the ids after the parent's sampled ids, or after the shared prefix."""
        if self.closed is not None and self.closed.given_ids is not None:
            return int32s(self.closed.given_ids)
        return int32s(self.opened.given_ids)

    @property
    def choices(self) -> tuple[Choice, ...]:
        return self.closed.choices if self.closed is not None else ()

    @property
    def sampled_tokens(self) -> int:
        """Tokens sampled in all choices, beyond them, or seen before it failed."""
        return self.answer_tokens + self.cut_tokens + (self.failed.sampled_tokens if self.failed else 0)

    @property
    def answer_tokens(self) -> int:
        """Tokens of all choices."""
        return sum(length(choice.sampled_ids) for choice in self.choices)

    @property
    def cut_tokens(self) -> int:
        """Tokens that came when the session's budget was spent."""
        return self.closed.cut_tokens if self.closed is not None else 0

    @property
    def fidelity(self) -> Fidelity:
        return self.closed.fidelity if self.closed is not None else Fidelity.FED

    @property
    def answered(self) -> bool:
        """Whether it was closed with an answer, not aborted."""
        return self.closed is not None and all(choice.finish_reason is not FinishReason.ABORTED for choice in self.closed.choices)

    @property
    def undelivered(self) -> bool:
        """Whether nobody received its answer."""
        return self.requests <= self.left

    @property
    def ended(self) -> bool:
        return self.closed is not None or self.failed is not None

    def forget_messages(self) -> None:
        """Let go of the texts that it was given, where only its tokens are still wanted."""
        self.opened = structs.replace(self.opened, messages=b"[]", tools=None)


class Forest:
    """Calls by id. Later calls never change earlier segments."""

    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}
        self._superseded: set[str] = set()
        self._paths: dict[SegmentRef, Ids] = {}
        """The longest of the latest paths, so that a long session's context is not put together anew at each call."""
        self._putting_together = threading.RLock()
        """Threads may ask for paths."""

    def open(self, opened: CallOpened, offset: int) -> bool:
        """Add a call. Returns False for one that is known or whose parent or prefix is not."""
        if opened.call_id in self.calls or not self._rooted(opened.placement):
            return False
        self.calls[opened.call_id] = Call(opened, offset)
        if opened.retry_of is not None:
            self._superseded.add(opened.retry_of)
        return True

    def close(self, closed: CallClosed) -> bool:
        """Give an open call its end. Returns False where there is no such open call."""
        call = self.calls.get(closed.call_id)
        if call is None or call.ended or (closed.placement is not None and not self._rooted(closed.placement)):
            return False
        call.closed = closed
        return True

    def fail(self, failed: CallFailed) -> bool:
        """Give an open call its failure. Returns False where there is no such open call."""
        call = self.calls.get(failed.call_id)
        if call is None or call.ended:
            return False
        call.failed = failed
        return True

    def undeliver(self, undelivered: CallUndelivered) -> bool:
        """Note that an answer was not received by one of its requests. Returns False where there is no such closed call."""
        call = self.calls.get(undelivered.call_id)
        if call is None or call.closed is None:
            return False
        call.left.add(undelivered.request_id)
        return True

    def deliver(self, delivered: CallDelivered) -> bool:
        """Note that a transport retry gets an answer. Returns False where there is no such closed call."""
        call = self.calls.get(delivered.call_id)
        if call is None or call.closed is None:
            return False
        call.requests.add(delivered.request_id)
        return True

    def in_order(self) -> list[Call]:
        """Return all calls in the order of the log."""
        return sorted(self.calls.values(), key=lambda call: (call.offset, call.call_id))

    def orphaned(self, call: Call) -> bool:
        """Return whether the harness never received this call's answer, or a transport retry superseded it."""
        return call.undelivered or call.call_id in self._superseded

    def lineage(self, end: SegmentRef) -> list[SegmentRef]:
        """Return the sampled segments from the root to `end`."""
        path = [end]
        while (parent := self.calls[path[-1].call_id].placement.parent) is not None:
            path.append(parent)
        return path[::-1]

    def conversation(self, call_id: str) -> str:
        """Return the name of a call's conversation, as its root tells it."""
        return self.calls[self.lineage(SegmentRef(call_id=call_id))[0].call_id].placement.conversation

    def context(self, call: Call) -> Ids:
        """Return int32[T]: everything that the engine is given at this call."""
        placement = call.placement
        if placement.parent is not None:
            return np.concatenate((self.path(placement.parent), call.given))
        if placement.prefix is not None:
            start = self.path(SegmentRef(call_id=placement.prefix.call_id, choice=placement.prefix.choice))
            return np.concatenate((start[: placement.prefix.length], call.given))
        return call.given

    def path(self, end: SegmentRef) -> Ids:
        """Return int32[T]: the context of a segment's call and what the segment sampled. Do not change it. Threads may ask."""
        with self._putting_together:
            return self._path(end)

    def _path(self, end: SegmentRef) -> Ids:
        lineage = []
        at: SegmentRef | None = end
        while at is not None and at not in self._paths:
            lineage.append(at)
            at = self.calls[at.call_id].placement.parent
        pieces = [] if at is None else [self._paths[at]]
        for segment in reversed(lineage):
            call = self.calls[segment.call_id]
            pieces.append(self.context(call) if call.placement.parent is None else call.given)
            pieces.append(self._sampled(segment))
        path = np.concatenate(pieces) if lineage else pieces[0]
        self._keep(end, path, instead_of=at)
        return path

    def _sampled(self, segment: SegmentRef) -> Ids:
        choices = self.calls[segment.call_id].choices
        return int32s(choices[segment.choice].sampled_ids) if segment.choice < len(choices) else np.empty(0, np.int32)

    def _keep(self, end: SegmentRef, path: Ids, instead_of: SegmentRef | None) -> None:
        """Keep a path; it holds the ids of the one that it goes on from."""
        if instead_of is not None:
            del self._paths[instead_of]
        self._paths[end] = path
        while len(self._paths) > PATHS_KEPT:
            del self._paths[next(iter(self._paths))]

    def segments(self, attempt: int) -> Iterator[tuple[Call, int]]:
        """Yield (call, choice) of all sampled segments of an attempt, in the order of the log."""
        for call in self.in_order():
            if call.opened.attempt == attempt:
                for index in range(len(call.choices)):
                    yield call, index

    def _rooted(self, placement: Placement) -> bool:
        if placement.parent is not None:
            parent = self.calls.get(placement.parent.call_id)
            return parent is not None and placement.parent.choice < len(parent.choices)
        if placement.prefix is None:
            return True
        holder = self.calls.get(placement.prefix.call_id)
        return holder is not None and holder.closed is not None
