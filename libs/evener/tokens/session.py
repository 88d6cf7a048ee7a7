"""The log of a session, folded: starts, attempts, calls, exit, seal. The same fold live and in replay, for any repeated delivery.

Nothing here depends on how records of different writers interleave: the owner's own records (calls, AttemptEnded, the seal) are
in order, and what a runner or the scheduler adds only ever raises the attempt, sets its exit, or asks for the end.
"""

from typing import Final, Literal

from evener.proto.arrays import length
from evener.proto.blobs import Bulk
from evener.proto.codec import AnyEvent, tag_of
from evener.proto.ends import CallFailure, End, judge
from evener.proto.sessions import (
    AttemptEnded,
    CallClosed,
    CallDelivered,
    CallFailed,
    CallOpened,
    CallUndelivered,
    HarnessExited,
    SessionGivenUp,
    SessionSealed,
    SessionStarted,
)
from evener.proto.spec import Purpose, SessionSpec
from evener.tokens.forest import Call, Forest
from evener.tokens.trouble import failures, why

ID_BYTES: Final = 4
NO_SANDBOX: Final = "none"
"""The sandbox of a session whose process somebody else runs."""
START_LIMIT_SECONDS: Final = 3600.0
"""A SessionStarted whose record is later than this after that of its dispatch is void."""


class Session:
    """What the log says of one session so far."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.starts: dict[int, SessionStarted] = {}
        self.exits: dict[int, HarnessExited] = {}
        self.ended: dict[int, AttemptEnded] = {}
        self.given_up: SessionGivenUp | None = None
        self.sealed: SessionSealed | None = None
        self.forest = Forest()
        self.doubts: list[str] = []
        self._strays: dict[str, int] = {}
        """Sampled tokens of closed calls that fit nowhere, by call id."""

    @property
    def attempt(self) -> int:
        """The attempt that counts: the seal's, or the highest that started. 0: none."""
        return max(self.starts, default=0) if self.sealed is None else self.sealed.attempt

    @property
    def spec(self) -> SessionSpec | None:
        """None: neither a start nor a giving-up was read."""
        told = self.starts.get(self.attempt) or self.given_up or next(iter(self.starts.values()), None) or self.sealed
        return None if told is None else told.spec

    @property
    def exit(self) -> HarnessExited | None:
        """The exit of the current attempt."""
        return self.exits.get(self.attempt)

    @property
    def abandoned(self) -> SessionGivenUp | None:
        """The giving-up that ends the session: of its last attempt, whichever of the two was written first. None: it goes on."""
        return self.given_up if self.given_up is not None and self.given_up.attempt >= self.attempt else None

    def accepts(self, start_id: str) -> bool:
        """Return whether calls under this start are still part of the session."""
        start = self.starts.get(self.attempt)
        return (
            self.sealed is None
            and start is not None
            and start.start_id == start_id
            and self.attempt not in self.exits
            and self.attempt not in self.ended
            and self.abandoned is None
        )

    def open_calls(self) -> list[Call]:
        """Return the calls without an end, in the order of the log."""
        return [call for call in self.forest.in_order() if not call.ended]

    def has_ended(self, call_id: str) -> bool:
        """Return whether a call is known, and has its end."""
        call = self.forest.calls.get(call_id)
        return call is not None and call.ended

    def sampled_tokens(self) -> int:
        """Return the tokens sampled in all calls of all attempts."""
        return sum(self._strays.values()) + sum(call.sampled_tokens for call in self.forest.calls.values())

    def unseen_tokens(self) -> int:
        """Return the tokens that were sampled in calls which are not in the forest: strays, or what the seal counts beyond it."""
        beyond = 0 if self.sealed is None else self.sealed.sampled_tokens - self.sampled_tokens()
        return sum(self._strays.values()) + max(beyond, 0)

    def apply(self, event: AnyEvent, *, offset: int, record_at: float) -> bool:  # noqa: C901, PLR0912 - one case an event
        """Fold one record of `sessions` in; return whether it counts. After the seal nothing does.

        `record_at` is the log's own time of the record, Unix seconds.
        """
        if self.sealed is not None:
            return False
        if getattr(event, "session_id", None) != self.session_id:
            return self._doubt(f"record {offset} is not of this session: {tag_of(event)}")
        match event:
            case SessionStarted():
                return self._start(event, record_at)
            case HarnessExited():
                return self._exit(event)
            case SessionGivenUp():
                return self._give_up(event)
            case CallOpened():
                return self._open(event, offset)
            case CallClosed():
                return self._close(event)
            case CallFailed():
                return self._fail(event)
            case CallUndelivered():
                return self.forest.undeliver(event) or self._doubt(f"call {event.call_id} undelivered without being closed")
            case CallDelivered():
                return self.forest.deliver(event) or self._doubt(f"call {event.call_id} delivered without being closed")
            case AttemptEnded():
                return self.ended.setdefault(event.attempt, event) is event
            case SessionSealed():
                self.sealed = event
                return True
            case _:
                return self._doubt(f"record {offset} does not belong here: {tag_of(event)}")

    def _start(self, event: SessionStarted, record_at: float) -> bool:
        if event.attempt <= self.attempt or too_late(event, record_at):
            return False
        self.starts[event.attempt] = event
        return True

    def _exit(self, event: HarnessExited) -> bool:
        start = self.starts.get(event.attempt)
        if start is None or start.start_id != event.start_id or event.attempt in self.exits:
            return False
        self.exits[event.attempt] = event
        return True

    def _give_up(self, event: SessionGivenUp) -> bool:
        if event.attempt < self.attempt:
            return False
        self.given_up = event
        return True

    def _open(self, event: CallOpened, offset: int) -> bool:
        known = self.forest.calls.get(event.call_id)
        if known is not None:
            if known.opened != event:
                self._doubt(f"call {event.call_id} opened twice, differently: the first counts")
            return False
        return (_whole(event.given_ids) and self.forest.open(event, offset)) or self._doubt(f"call {event.call_id} hangs on nothing known")

    def _close(self, event: CallClosed) -> bool:
        call = self.forest.calls.get(event.call_id)
        if call is not None and call.ended:
            return self._end_again(call, event)
        if (event.given_ids is None or _whole(event.given_ids)) and self.forest.close(event):
            return True
        self._strays[event.call_id] = sum(length(choice.sampled_ids) for choice in event.choices) + event.cut_tokens
        return self._doubt(f"call {event.call_id} closed without being open")

    def _fail(self, event: CallFailed) -> bool:
        call = self.forest.calls.get(event.call_id)
        if call is not None and call.ended:
            return self._end_again(call, event)
        return self.forest.fail(event) or self._doubt(f"call {event.call_id} failed without being open")

    def _end_again(self, call: Call, event: CallClosed | CallFailed) -> Literal[False]:
        if event not in (call.closed, call.failed):
            self._doubt(f"call {call.call_id} ended twice, differently: the first counts")
        return False

    def _doubt(self, doubt: str) -> Literal[False]:
        """Note what does not fit: it does not count."""
        self.doubts.append(doubt)
        return False


def too_late(event: SessionStarted, record_at: float) -> bool:
    """Return whether a start is void. `record_at` is its record time, Unix seconds."""
    dispatched = event.dispatched_at if event.dispatch_recorded_at is None else event.dispatch_recorded_at
    return record_at - dispatched > START_LIMIT_SECONDS


def _whole(ids: Bulk) -> bool:
    return (len(ids) if isinstance(ids, bytes) else ids.size) % ID_BYTES == 0


def last_failure(session: Session) -> CallFailure | None:
    """Return the failure of the current attempt's last call, if it was not followed by an answered one.

    A harness that leaves a call which waits for an engine gave up for a reason of ours, unless it exits with 0: it did not need it.
    Nor did it need, then, a call that failed while another was being answered: a title, a helper. If it fails, that may be why.
    """
    ended_well = session.exit is not None and session.exit.exit_code == 0
    left = {CallFailure.CANCELLED, CallFailure.OVERLOADED} if ended_well else {CallFailure.CANCELLED}
    calls = [call for call in session.forest.in_order() if call.opened.attempt == session.attempt and call.opened.side_call is None]
    answered: list[Call] = []
    for call in reversed(calls):
        if call.answered:
            answered.append(call)
        elif call.failed is not None and call.failed.reason not in left:
            after = any(ended_well or _follows(one, call, call.failed) for one in answered)
            return None if after else call.failed.reason
    return None


def _follows(answered: Call, call: Call, failed: CallFailed) -> bool:
    """Return whether an answered call is of the same request as one that failed, or was asked for after that had failed."""
    return call.opened.request_id in answered.requests or answered.opened.opened_at >= failed.failed_at


def verdict(session: Session, budget: End | None) -> tuple[End, str] | None:
    """Return how the current attempt or the session ended and the detail, or None while it goes on.

    `budget`: the limit that the gateway enforced during the attempt, if any.
    """
    if session.abandoned is not None:
        return session.abandoned.end, session.abandoned.detail
    if (left := session.exit) is None:
        return None
    calls = [call for call in session.forest.in_order() if call.opened.attempt == session.attempt]
    failed, met = left.unanswered or last_failure(session), failures(calls, left)
    end = judge(left.cause, left.exit_code, failed, budget, met)
    if end is End.INFRASTRUCTURE and failed is not None and _is_recording(session):
        end = judge(left.cause, left.exit_code, None, budget, met)
        told = f"its last call had no answer ({failed}), and a recording cannot be run again"
        return end, "; ".join(filter(None, (why(end, calls, left), told)))
    return end, why(end, calls, left)


def _is_recording(session: Session) -> bool:
    """Return whether its process was somebody else's, for a collection: nobody can start it anew, and what was sampled is worth keeping."""
    spec = session.spec
    return spec is not None and spec.purpose is Purpose.COLLECT and spec.harness.sandbox == NO_SANDBOX
