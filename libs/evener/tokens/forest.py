"""A session's forest of calls. Each call holds its tokens: the prompt ids, then one sampled segment per choice.

Segments are never split: branches begin between them. Ids are stored as deltas to the parent, so storage grows linearly.
"""

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
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
    RootReason,
    SegmentRef,
)

Ids = NDArray[np.int32]

PATHS_KEPT: Final = 4


class Call:
    """One model call: its place in the forest, its prompt, and what was sampled."""

    __slots__ = ("closed", "failed", "left", "offset", "opened", "requests")

    def __init__(self, opened: CallOpened, offset: int) -> None:
        self.opened = opened
        self.offset = offset
        """The offset of CallOpened in the log, which orders the calls."""
        self.closed: CallClosed | None = None
        self.failed: CallFailed | None = None
        self.requests = {opened.request_id}
        """The call's own request, and the transport retries that got its answer."""
        self.left: set[str] = set()
        """The requests whose connection closed before the answer was delivered."""

    @property
    def call_id(self) -> str:
        return self.opened.call_id

    @property
    def placement(self) -> Placement:
        """Return the final placement, which is that of CallClosed if the engine reported the ids."""
        if self.closed is not None and self.closed.placement is not None:
            return self.closed.placement
        return self.opened.placement

    @property
    def prompt_delta_ids(self) -> Ids:
        """int32[G]: the prompt ids that follow the parent's sampled ids or the shared prefix."""
        if self.closed is not None and self.closed.prompt_delta_ids is not None:
            return int32s(self.closed.prompt_delta_ids)
        return int32s(self.opened.prompt_delta_ids)

    @property
    def choices(self) -> tuple[Choice, ...]:
        return self.closed.choices if self.closed is not None else ()

    def segments(self) -> list[SegmentRef]:
        """Return the sampled segments, one for each choice."""
        return [SegmentRef(call_id=self.call_id, choice=index) for index in range(len(self.choices))]

    @property
    def sampled_tokens(self) -> int:
        """The number of tokens sampled for all choices, including those cut off, and those seen before a failure."""
        return self.answer_tokens + self.cut_tokens + (self.failed.sampled_tokens if self.failed else 0)

    @property
    def answer_tokens(self) -> int:
        """The number of tokens in all choices."""
        return sum(length(choice.sampled_ids) for choice in self.choices)

    @property
    def cut_tokens(self) -> int:
        """The number of tokens that arrived after the session's budget was spent."""
        return self.closed.cut_tokens if self.closed is not None else 0

    @property
    def fidelity(self) -> Fidelity:
        return self.closed.fidelity if self.closed is not None else Fidelity.FED

    @property
    def answered(self) -> bool:
        """Whether the call was closed with an answer that was not aborted."""
        return self.closed is not None and all(choice.finish_reason is not FinishReason.ABORTED for choice in self.closed.choices)

    @property
    def undelivered(self) -> bool:
        """Whether no request received the answer."""
        return self.requests <= self.left

    @property
    def ended(self) -> bool:
        return self.closed is not None or self.failed is not None

    def forget_messages(self) -> None:
        """Drop what the request said beside its tokens, if only the tokens are still needed."""
        self.opened = structs.replace(self.opened, messages=b"[]", tools=None, requested_params=b"{}")


class Forest:
    """The calls by id. A later call never changes an earlier segment."""

    def __init__(self) -> None:
        self.calls: dict[str, Call] = {}
        self._of_request: defaultdict[str, list[Call]] = defaultdict(list)
        self._of_body: defaultdict[str, list[Call]] = defaultdict(list)
        self._failed: list[Call] = []
        self._superseded: set[str] = set()
        self._paths: dict[SegmentRef, Ids] = {}
        """The longest recent paths, cached so that a long context is not assembled again for each call."""
        self._putting_together = threading.RLock()
        """Guards the cache: several threads may ask for paths."""

    def open(self, opened: CallOpened, offset: int) -> bool:
        """Add a call. Returns False if the call is known already, or if its parent or prefix is not known."""
        if opened.call_id in self.calls or not self._rooted(opened.placement):
            return False
        call = self.calls[opened.call_id] = Call(opened, offset)
        self._of_request[opened.request_id].append(call)
        self._of_body[opened.body_digest].append(call)
        if opened.retry_of is not None:
            self._superseded.add(opened.retry_of)
        return True

    def close(self, closed: CallClosed) -> bool:
        """Close an open call. Returns False if there is no such open call."""
        call = self.calls.get(closed.call_id)
        if call is None or call.ended or (closed.placement is not None and not self._rooted(closed.placement)):
            return False
        call.closed = closed
        return True

    def fail(self, failed: CallFailed) -> bool:
        """Mark an open call as failed. Returns False if there is no such open call."""
        call = self.calls.get(failed.call_id)
        if call is None or call.ended:
            return False
        call.failed = failed
        self._failed.append(call)
        return True

    def undeliver(self, undelivered: CallUndelivered) -> bool:
        """Note that one of a call's requests did not receive the answer. Returns False if there is no such closed call."""
        call = self.calls.get(undelivered.call_id)
        if call is None or call.closed is None:
            return False
        call.left.add(undelivered.request_id)
        return True

    def deliver(self, delivered: CallDelivered) -> bool:
        """Note that a transport retry gets a call's answer. Returns False if there is no such closed call."""
        call = self.calls.get(delivered.call_id)
        if call is None or call.closed is None:
            return False
        if delivered.request_id not in call.requests:
            call.requests.add(delivered.request_id)
            self._of_request[delivered.request_id].append(call)
        return True

    @property
    def failed(self) -> Sequence[Call]:
        """The calls that failed, in the order of the log."""
        return self._failed

    def of_request(self, request_id: str) -> Sequence[Call]:
        """Return the calls that a request began or whose answer it gets, in the order in which the log says so."""
        return self._of_request.get(request_id, ())

    def of_body(self, body_digest: str) -> Sequence[Call]:
        """Return the calls of equal requests, in the order of the log."""
        return self._of_body.get(body_digest, ())

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
        """Return the name of a call's conversation, which its root holds."""
        return self.calls[self.lineage(SegmentRef(call_id=call_id))[0].call_id].placement.conversation

    def conversations(self) -> dict[str, str]:
        """Return the name of each call's conversation, by call id, in the order of the log."""
        names: dict[str, str] = {}
        for call in self.in_order():
            parent = call.placement.parent
            told = call.placement.conversation if parent is None else names[parent.call_id]
            names[call.call_id] = told or (call.call_id if call.placement.root is RootReason.SUB_AGENT else "")
        return names

    def context(self, call: Call) -> Ids:
        """Return int32[T]: the whole prompt of this call."""
        placement = call.placement
        if placement.parent is not None:
            return np.concatenate((self.path(placement.parent), call.prompt_delta_ids))
        if placement.prefix is not None:
            start = self.path(SegmentRef(call_id=placement.prefix.call_id, choice=placement.prefix.choice))
            return np.concatenate((start[: placement.prefix.length], call.prompt_delta_ids))
        return call.prompt_delta_ids

    def path(self, end: SegmentRef) -> Ids:
        """Return int32[T]: the prompt of a segment's call, followed by the segment. Do not modify it. May be called from any thread."""
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
            pieces.append(self.context(call) if call.placement.parent is None else call.prompt_delta_ids)
            pieces.append(self._sampled(segment))
        path = np.concatenate(pieces) if lineage else pieces[0]
        self._keep(end, path, instead_of=at)
        return path

    def _sampled(self, segment: SegmentRef) -> Ids:
        choices = self.calls[segment.call_id].choices
        return int32s(choices[segment.choice].sampled_ids) if segment.choice < len(choices) else np.empty(0, np.int32)

    def _keep(self, end: SegmentRef, path: Ids, instead_of: SegmentRef | None) -> None:
        """Cache a path. It contains the ids of the path that it extends, which it replaces."""
        if instead_of is not None:
            del self._paths[instead_of]
        self._paths[end] = path
        while len(self._paths) > PATHS_KEPT:
            del self._paths[next(iter(self._paths))]

    def segments(self) -> Iterator[SegmentRef]:
        """Yield the sampled segments of all attempts, in the order of the log."""
        for call in self.in_order():
            yield from call.segments()

    def _rooted(self, placement: Placement) -> bool:
        if placement.parent is not None:
            parent = self.calls.get(placement.parent.call_id)
            return parent is not None and placement.parent.choice < len(parent.choices)
        if placement.prefix is None:
            return True
        holder = self.calls.get(placement.prefix.call_id)
        return holder is not None and holder.closed is not None
