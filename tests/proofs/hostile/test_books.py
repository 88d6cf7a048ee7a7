"""What the books of the hostile suite excuse: of an answer that was broken off, one event of its engine, and nothing else."""

from typing import Final

import pytest
from proofs.hostile.books import unbooked
from tests.support.builders import call_closed, call_failed, choice
from tests.support.world import World, user

from evener.engines.scripted import LedgerEntry
from evener.proto.codec import AnyEvent
from evener.proto.reasons import CallFailure
from evener.proto.sessions import FinishReason
from evener.provider_gateway.sampling import BUFFERED_STREAM_INTERVAL

READ: Final = 40
"""What the gateway read of the answer."""
_, OPENED = World().open([user("hi")])
ANSWER: Final = {"role": "assistant", "content": "x"}


def entry(tokens: int, request_id: str = f"{OPENED.call_id}-0", *, probe: bool = False) -> LedgerEntry:
    """Return what the engine says that it sampled for a request."""
    sampled = (1,) * tokens
    return LedgerEntry(request_id=request_id, fed_ids=(), sampled_ids=sampled, logprobs=(), versions=(), at=0.0, aborted=True, probe=probe)


def answered(finish: FinishReason, *, cut_tokens: int = 0) -> AnyEvent:
    """Return the end of the call with an answer; those who were cut off count as read."""
    ids = [1] * (READ - cut_tokens)
    return call_closed(OPENED, [choice(ids, ANSWER, finish, logprobs=[0.0] * len(ids))], cut_tokens=cut_tokens)


def failed(reason: CallFailure) -> AnyEvent:
    """Return the end of the call without an answer."""
    return call_failed(OPENED, reason, sampled_tokens=READ)


@pytest.mark.parametrize(
    ("end", "unseen"),
    [
        (answered(FinishReason.ABORTED), BUFFERED_STREAM_INTERVAL),
        (answered(FinishReason.STOP, cut_tokens=3), BUFFERED_STREAM_INTERVAL),
        (failed(CallFailure.CANCELLED), BUFFERED_STREAM_INTERVAL),
        (failed(CallFailure.ENGINE_UNREACHABLE), BUFFERED_STREAM_INTERVAL),
        (answered(FinishReason.STOP), 0),
    ],
    ids=["aborted", "cut", "cancelled", "failed", "whole"],
)
def test_of_an_answer_that_was_broken_off_one_event_may_be_unread(end: AnyEvent, unseen: int) -> None:
    """One token more is lost. Of a whole answer every token is."""
    assert unbooked([end], [entry(READ + unseen)]) == ({}, unseen)
    assert unbooked([end], [entry(READ + unseen + 1)]) == ({OPENED.call_id: unseen + 1}, 0)


def test_on_a_busy_machine_an_engine_hears_later_that_nobody_reads() -> None:
    """It may be several events further."""
    end, more = failed(CallFailure.CANCELLED), 4 * BUFFERED_STREAM_INTERVAL
    assert unbooked([end], [entry(READ + more)], 4.0) == ({}, more)
    assert unbooked([end], [entry(READ + more + 1)], 4.0) == ({OPENED.call_id: more + 1}, 0)


def test_pieces_of_an_answer_are_one_answer() -> None:
    """It went on after its engine had ended it. Another answer to the same call has an event of its own."""
    end, more = failed(CallFailure.CANCELLED), BUFFERED_STREAM_INTERVAL
    pieces = [entry(READ), entry(more, f"{OPENED.call_id}-0.1")]
    assert unbooked([end], [*pieces, entry(1, f"{OPENED.call_id}-0.2")]) == ({OPENED.call_id: more + 1}, 0)
    assert unbooked([end], [*pieces, entry(more, f"{OPENED.call_id}-1")]) == ({}, 2 * more)


def test_reads_of_a_gateway_that_is_gone_are_unknown() -> None:
    """The next owner of its partition could only say that the call has no answer."""
    assert unbooked([call_failed(OPENED, CallFailure.OWNER_LOST)], [entry(500)]) == ({}, 500)


def test_reads_of_a_gateway_that_let_go_are_booked() -> None:
    """It recorded what it had read: only what its engine sampled meanwhile may be missing."""
    end, more = failed(CallFailure.OWNER_LOST), BUFFERED_STREAM_INTERVAL
    assert unbooked([end], [entry(READ + more)]) == ({}, more)
    assert unbooked([end], [entry(READ + more + 1)]) == ({OPENED.call_id: more + 1}, 0)


def test_tokens_of_a_call_without_any_record_are_lost() -> None:
    """The engine's own check is no call."""
    assert unbooked([], [entry(5), entry(7, "x-0", probe=True)]) == ({OPENED.call_id: 5}, 0)
