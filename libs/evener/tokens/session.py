"""The log of a session, folded: starts, attempts, calls, exit, seal. The same fold live and in replay, for any repeated delivery.

Nothing here depends on how records of different writers interleave: the owner's own records (calls, AttemptEnded, the seal) are
in order, and what a runner or the scheduler adds only ever raises the attempt, sets its exit, or asks for the end.
"""

from typing import Final

from evener.proto.arrays import length
from evener.proto.codec import AnyEvent
from evener.proto.ends import CallFailure, End, judge
from evener.proto.sessions import (
    AttemptEnded,
    CallClosed,
    CallFailed,
    CallOpened,
    CallUndelivered,
    HarnessExited,
    SessionGivenUp,
    SessionSealed,
    SessionStarted,
)
from evener.proto.spec import SessionSpec
from evener.tokens.forest import Call, Forest

START_LIMIT_SECONDS: Final = 3600.0
"""A SessionStarted whose record is later than this after its dispatch is void."""


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
        self.stray_tokens = 0
        """Sampled tokens of closed calls that fit nowhere: counted as doubt."""

    @property
    def attempt(self) -> int:
        """The attempt that counts: the seal's, or the highest that started. 0: none."""
        return max(self.starts, default=0) if self.sealed is None else self.sealed.attempt

    @property
    def spec(self) -> SessionSpec | None:
        """None: neither a start nor a giving-up was read."""
        told = self.starts.get(self.attempt) or self.given_up or next(iter(self.starts.values()), None)
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

    def sampled_tokens(self) -> int:
        """Return the tokens sampled in closed calls of all attempts."""
        return self.stray_tokens + sum(call.sampled_tokens for call in self.forest.calls.values())

    def apply(self, event: AnyEvent, *, offset: int, record_at: float) -> bool:  # noqa: C901 - one case an event
        """Fold one record of `sessions` in; return whether it counts. After the seal nothing does.

        `record_at` is the log's own time of the record, Unix seconds.
        """
        if self.sealed is not None:
            return False
        match event:
            case SessionStarted():
                return self._start(event, record_at)
            case HarnessExited():
                return self._exit(event)
            case SessionGivenUp():
                return self._give_up(event)
            case CallOpened():
                return self._note(
                    self.forest.open(event, offset), event.call_id in self.forest.calls, f"call {event.call_id} hangs on nothing known"
                )
            case CallClosed():
                return self._close(event)
            case CallFailed():
                return self.forest.fail(event)
            case CallUndelivered():
                return self.forest.undeliver(event)
            case AttemptEnded():
                return self.ended.setdefault(event.attempt, event) is event
            case SessionSealed():
                self.sealed = event
                return True
            case _:
                return False

    def _start(self, event: SessionStarted, record_at: float) -> bool:
        if event.attempt <= self.attempt or record_at - event.dispatched_at > START_LIMIT_SECONDS:
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

    def _close(self, event: CallClosed) -> bool:
        known = self.forest.calls.get(event.call_id)
        if self.forest.close(event):
            return True
        if known is None or not known.ended:
            self.stray_tokens += sum(length(choice.sampled_ids) for choice in event.choices)
            self.doubts.append(f"call {event.call_id} closed without being open")
        return False

    def _note(self, counted: bool, known: bool, doubt: str) -> bool:  # noqa: FBT001 - two facts of the caller
        if not counted and not known:
            self.doubts.append(doubt)
        return counted


def last_failure(session: Session) -> CallFailure | None:
    """Return the failure of the current attempt's last call, if it was not followed by an answered one."""
    calls = [call for call in session.forest.in_order() if call.opened.attempt == session.attempt and call.opened.side_call is None]
    for call in reversed(calls):
        if call.answered:
            return None
        if call.failed is not None and call.failed.reason is not CallFailure.CANCELLED:
            return call.failed.reason
    return None


def verdict(session: Session, budget: End | None) -> tuple[End, str] | None:
    """Return how the current attempt or the session ended and the detail, or None while it goes on.

    `budget`: the limit that the gateway enforced during the attempt, if any.
    """
    if session.abandoned is not None:
        return session.abandoned.end, session.abandoned.detail
    if (left := session.exit) is None:
        return None
    return judge(left.cause, left.exit_code, left.unanswered or last_failure(session), budget), left.detail
