"""What a harness asked, and what it is told, in its dialect."""

from typing import Final

from msgspec import Struct

from evener.dialects.canonical import CanonicalRequest, Dialect, RequestError
from evener.proto.ends import CallFailure
from evener.proto.errors import EvenerError
from evener.proto.relay import Answer
from evener.proto.sessions import CallClosed, CallOpened
from evener.provider_gateway.core import to_answer

OVERLOADED_STATUS: Final = 503
RETRY_AFTER: Final = ("retry-after", "5")
LOST: Final = Answer(status=OVERLOADED_STATUS, headers=(RETRY_AFTER,), body=b"")
"""For the relay alone: it sends the request again, and the harness does not notice."""


class Asked(Struct, frozen=True, kw_only=True, eq=False):
    """A harness's request, read."""

    request_id: str
    dialect: Dialect
    request: CanonicalRequest
    started: bool
    """The headers of its answer are out: an error is an event of the stream."""


class Failure(EvenerError):
    """A call ends without an answer; what the harness is told and what is recorded."""

    def __init__(self, reason: CallFailure, error: RequestError, detail: str | None = None) -> None:
        super().__init__(error.message)
        self.reason = reason
        self.error = error
        self.detail = detail or error.message


def refuse(asked: Asked, error: RequestError, *, admitted: bool = False) -> Answer:
    """Return an error in the harness's dialect: a body, or an event where the headers of a streamed answer are out."""
    headers = (RETRY_AFTER,) if error.status == OVERLOADED_STATUS else ()
    render = asked.dialect.stream_error if asked.request.stream and (asked.started or admitted) else asked.dialect.error
    return Answer(status=error.status, headers=headers, body=render(error))


def answer_of(asked: Asked, opened: CallOpened, closed: CallClosed, *, recorded: bool) -> Answer:
    """Return the committed answer as bytes of its dialect: the same whenever it is rendered."""
    answer = to_answer(opened, closed)
    render = asked.dialect.events if asked.request.stream else asked.dialect.answer
    return Answer(status=200, body=render(asked.request, answer), recorded=recorded)


def overloaded(message: str) -> RequestError:
    """Return the error that every client tries again after a while."""
    # An error within a stream has no status: harnesses try again when they read these words.
    return RequestError(f"service unavailable: {message}", status=OVERLOADED_STATUS, kind="overloaded_error")
