"""A session's forest of calls. Tokens hang on calls: ids given, then one sampled segment per choice.

Segments are never split: branches leave between them. Ids are stored as deltas to the parent, so storage is linear.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from evener.proto.arrays import int32s, length
from evener.proto.sessions import CallClosed, CallFailed, CallOpened, CallUndelivered, Choice, Fidelity, FinishReason, Placement, SegmentRef

Ids = NDArray[np.int32]


class Call:
    """One model call: where it hangs, what was given, what was sampled."""

    __slots__ = ("closed", "failed", "offset", "opened", "undelivered")

    def __init__(self, opened: CallOpened, offset: int) -> None:
        self.opened = opened
        self.offset = offset
        """Of CallOpened in the log: the order of calls."""
        self.closed: CallClosed | None = None
        self.failed: CallFailed | None = None
        self.undelivered: CallUndelivered | None = None

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
        """Tokens sampled in all choices."""
        return sum(length(choice.sampled_ids) for choice in self.choices)

    @property
    def fidelity(self) -> Fidelity:
        return self.closed.fidelity if self.closed is not None else Fidelity.FED

    @property
    def answered(self) -> bool:
        """Whether it was closed with an answer, not aborted."""
        return self.closed is not None and all(choice.finish_reason is not FinishReason.ABORTED for choice in self.closed.choices)

    @property
    def ended(self) -> bool:
        return self.closed is not None or self.failed is not None


class Forest:
    """Calls by id. Later calls never change earlier segments."""

    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}
        self._superseded: set[str] = set()

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
        """Note that an answer was not received. Returns False where there is no such closed call."""
        call = self.calls.get(undelivered.call_id)
        if call is None or call.closed is None:
            return False
        call.undelivered = undelivered
        return True

    def in_order(self) -> list[Call]:
        """Return all calls in the order of the log."""
        return sorted(self.calls.values(), key=lambda call: (call.offset, call.call_id))

    def orphaned(self, call: Call) -> bool:
        """Return whether the harness never received this call's answer, or a transport retry superseded it."""
        return call.undelivered is not None or call.call_id in self._superseded

    def lineage(self, end: SegmentRef) -> list[SegmentRef]:
        """Return the sampled segments from the root to `end`."""
        path = [end]
        while (parent := self.calls[path[-1].call_id].placement.parent) is not None:
            path.append(parent)
        return path[::-1]

    def context(self, call: Call) -> Ids:
        """Return int32[T]: everything that the engine is given at this call."""
        parts: list[Ids] = []
        at = call
        while True:
            parts.append(at.given)
            placement = at.placement
            if placement.parent is None:
                break
            at = self.calls[placement.parent.call_id]
            parts.append(int32s(at.choices[placement.parent.choice].sampled_ids))
        if placement.prefix is not None:
            parts.append(self.path(self.calls[placement.prefix.call_id])[: placement.prefix.length])
        return np.concatenate(parts[::-1])

    def path(self, call: Call) -> Ids:
        """Return int32[T]: the context of this call and what its choice 0 sampled."""
        context = self.context(call)
        return np.concatenate((context, int32s(call.choices[0].sampled_ids))) if call.choices else context

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
        return placement.prefix is None or placement.prefix.call_id in self.calls
