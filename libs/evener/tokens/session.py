"""The folded log of a session: starts, attempts, calls, exit, seal. Live and in replay the fold is the same; repeated records are ignored.

Nothing here depends on how the records of different writers interleave. The owner's own records (calls, AttemptEnded, the seal) are in
order; a record of a runner or the scheduler only raises the attempt, sets its exit, or asks for the end.
"""

from typing import Final, Literal

from evener.proto.arrays import length
from evener.proto.blobs import Bulk
from evener.proto.codec import AnyEvent, tag_of
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
from evener.proto.spec import SessionSpec
from evener.tokens.forest import Call, Forest

ID_BYTES: Final = 4
NO_SANDBOX: Final = "none"
"""The sandbox name of a session whose process somebody else runs."""
START_LIMIT_SECONDS: Final = 3600.0
"""A SessionStarted is void if its record follows that of its dispatch by more than this."""


class SessionLog:
    """The state of one session, folded from the log."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.starts: dict[int, SessionStarted] = {}
        self.exits: dict[int, HarnessExited] = {}
        self.ended: dict[int, AttemptEnded] = {}
        self.given_up: SessionGivenUp | None = None
        self.sealed: SessionSealed | None = None
        self.forest = Forest()
        self.inconsistencies: list[str] = []
        self._strays: dict[str, int] = {}
        """The number of sampled tokens in closed calls that have no place, by call id."""

    @property
    def attempt(self) -> int:
        """The attempt that counts: that of the seal, or the highest that started. 0: none started."""
        return max(self.starts, default=0) if self.sealed is None else self.sealed.attempt

    @property
    def spec(self) -> SessionSpec | None:
        """The spec. None: neither SessionStarted nor SessionGivenUp was read."""
        told = self.starts.get(self.attempt) or self.given_up or next(iter(self.starts.values()), None) or self.sealed
        return None if told is None else told.spec

    @property
    def exit(self) -> HarnessExited | None:
        """The exit of the current attempt."""
        return self.exits.get(self.attempt)

    @property
    def abandoned(self) -> SessionGivenUp | None:
        """The SessionGivenUp that ends the session, which names its last attempt or a later one. None: the session continues."""
        return self.given_up if self.given_up is not None and self.given_up.attempt >= self.attempt else None

    def accepts(self, start_id: str) -> bool:
        """Return whether calls under this start id still belong to the session."""
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
        """Return the open calls, in the order of the log."""
        return [call for call in self.forest.in_order() if not call.ended]

    def has_ended(self, call_id: str) -> bool:
        """Return whether a call is known and has ended."""
        call = self.forest.calls.get(call_id)
        return call is not None and call.ended

    def sampled_tokens(self) -> int:
        """Return the number of tokens sampled in all calls of all attempts."""
        return sum(self._strays.values()) + sum(call.sampled_tokens for call in self.forest.calls.values())

    def unseen_tokens(self) -> int:
        """Return the number of sampled tokens in calls that the forest lacks: calls without a place, or calls that only the seal counts."""
        beyond = 0 if self.sealed is None else self.sealed.sampled_tokens - self.sampled_tokens()
        return sum(self._strays.values()) + max(beyond, 0)

    def apply(self, event: AnyEvent, *, offset: int, record_at: float) -> bool:  # noqa: C901, PLR0912 - one case an event
        """Fold in one record of `sessions`; return whether it counts. After the seal no record counts.

        `record_at` is the log's own time of the record, in Unix seconds.
        """
        if self.sealed is not None:
            return False
        if getattr(event, "session_id", None) != self.session_id:
            return self._inconsistent(f"record {offset} is not of this session: {tag_of(event)}")
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
                return self.forest.undeliver(event) or self._inconsistent(f"call {event.call_id} undelivered without being closed")
            case CallDelivered():
                return self.forest.deliver(event) or self._inconsistent(f"call {event.call_id} delivered without being closed")
            case AttemptEnded():
                return self.ended.setdefault(event.attempt, event) is event
            case SessionSealed():
                self.sealed = event
                return True
            case _:
                return self._inconsistent(f"record {offset} does not belong here: {tag_of(event)}")

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
                self._inconsistent(f"call {event.call_id} opened twice, differently: the first counts")
            return False
        return (_whole(event.prompt_delta_ids) and self.forest.open(event, offset)) or self._inconsistent(
            f"call {event.call_id} extends an unknown call"
        )

    def _close(self, event: CallClosed) -> bool:
        call = self.forest.calls.get(event.call_id)
        if call is not None and call.ended:
            return self._end_again(call, event)
        if (event.prompt_delta_ids is None or _whole(event.prompt_delta_ids)) and self.forest.close(event):
            return True
        self._strays[event.call_id] = sum(length(choice.sampled_ids) for choice in event.choices) + event.cut_tokens
        return self._inconsistent(f"call {event.call_id} closed without being open")

    def _fail(self, event: CallFailed) -> bool:
        call = self.forest.calls.get(event.call_id)
        if call is not None and call.ended:
            return self._end_again(call, event)
        return self.forest.fail(event) or self._inconsistent(f"call {event.call_id} failed without being open")

    def _end_again(self, call: Call, event: CallClosed | CallFailed) -> Literal[False]:
        if event not in (call.closed, call.failed):
            self._inconsistent(f"call {call.call_id} ended twice, differently: the first counts")
        return False

    def _inconsistent(self, inconsistency: str) -> Literal[False]:
        """Note a record that does not fit, and return False: it does not count."""
        self.inconsistencies.append(inconsistency)
        return False


def too_late(event: SessionStarted, record_at: float) -> bool:
    """Return whether a start is void. `record_at` is its record time in Unix seconds."""
    dispatched = event.dispatched_at if event.dispatch_recorded_at is None else event.dispatch_recorded_at
    return record_at - dispatched > START_LIMIT_SECONDS


def _whole(ids: Bulk) -> bool:
    return (len(ids) if isinstance(ids, bytes) else ids.size) % ID_BYTES == 0
