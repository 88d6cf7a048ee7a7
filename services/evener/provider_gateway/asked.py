"""What a harness asked, and what it is told, in its dialect."""

from typing import Final

from msgspec import Struct

from evener.dialects.canonical import CanonicalRequest, Dialect, Head, Overflow, RequestError
from evener.proto.ends import CallFailure
from evener.proto.errors import EvenerError
from evener.proto.ids import answer_identity
from evener.proto.relay import Answer, Delta
from evener.provider_gateway.core import to_answer
from evener.provider_gateway.live import Done, Flight, Piece

OVERLOADED_STATUS: Final = 503
RETRY_AFTER: Final = ("retry-after", "5")


class Asked(Struct, frozen=True, kw_only=True, eq=False):
    """A harness's request, read."""

    request_id: str
    dialect: Dialect
    request: CanonicalRequest
    body_digest: str
    started: bool = False
    """The headers of its answer are out: an error is an event of the stream."""
    marked_retry: bool = False
    """Its client says that it sends it again."""
    unserved: str | None = None
    """The request that its client sends again by it, which was told that it could not be served; its relay knows."""
    sub_agent: bool = False
    """Its client says that a sub-agent asks."""

    def head(self, prompt_tokens: int) -> Head:
        """Return what the events of its stream say before anything is sampled."""
        answer_id, created = answer_identity(self.request_id)
        return Head(answer_id=answer_id, created=created, model=self.request.model, prompt_tokens=prompt_tokens)


class Failure(EvenerError):
    """A call ends without an answer; what the harness is told and what is recorded."""

    def __init__(self, reason: CallFailure, error: RequestError, detail: str | None = None) -> None:
        super().__init__(error.message)
        self.reason = error.reason = reason
        self.error = error
        self.detail = detail or error.message


def refuse(asked: Asked, error: RequestError, *, admitted: bool = False) -> Answer:
    """Return an error in the harness's dialect: a body, or an event where the headers of a streamed answer are out."""
    headers = (RETRY_AFTER,) if error.status == OVERLOADED_STATUS else ()
    in_stream = asked.request.stream and (asked.started or admitted)
    body = asked.dialect.stream_error(asked.head(0), error) if in_stream else asked.dialect.error(error)
    return Answer(status=error.status, headers=headers, body=body, failure=error.reason, detail=error.message)


def answer_of(asked: Asked, done: Done, *, recorded: bool) -> Answer:
    """Return the committed answer as bytes of its dialect: the same whenever it is rendered."""
    answer = to_answer(done.opened, done.closed, asked.request_id)
    if asked.request.stream:
        body = asked.dialect.events(asked.request, answer, done.streamed)
    else:
        body = asked.dialect.answer(asked.request, answer)
    return Answer(status=200, body=body, recorded=recorded)


def delta_of(asked: Asked, prompt_tokens: int, flight: Flight, piece: Piece) -> Delta:
    """Return a part of an answer that leaves before the commit."""
    before, new = flight.said(piece)
    head = asked.head(prompt_tokens)
    return Delta(body=asked.dialect.delta(head, piece.key, before, reasoning=new.reasoning, text=new.text))


def too_long(asked: Asked, message: str, overflow: Overflow | None) -> RequestError:
    """Return the error for a prompt that does not fit the context."""
    reason = CallFailure.CONTEXT_OVERFLOW
    return RequestError(message, field=asked.dialect.history, kind="context_length_exceeded", overflow=overflow, reason=reason)


def overloaded(message: str) -> RequestError:
    """Return the error that every client tries again after a while."""
    # An error within a stream has no status: harnesses try again when they read these words.
    reason = CallFailure.OVERLOADED
    return RequestError(f"service unavailable: {message}", status=OVERLOADED_STATUS, kind="overloaded_error", reason=reason)
