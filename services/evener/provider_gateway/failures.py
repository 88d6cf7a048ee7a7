"""Maps an error of a call to what the log records, what the harness gets, and whether only the relay is told."""

import asyncio
from typing import Final

import structlog

from evener.blobs.port import BlobError
from evener.bus.port import BusError
from evener.dialects.canonical import Dialect, Overflow, RequestError
from evener.engines.port import ContextOverflow, EngineError, EngineUnreachable
from evener.proto.errors import EvenerError
from evener.proto.reasons import CallFailure
from evener.provider_gateway.budget import BudgetSpent
from evener.provider_gateway.core import stop, too_long
from evener.provider_gateway.engine_scheduler import NoEngine
from evener.provider_gateway.inflight import Rejected, SendAgain
from evener.provider_gateway.placement import PolicyNotConfigured
from evener.provider_gateway.session import SessionRuntime

TRANSPARENT_TRIES: Final = 8
"""How often engines may fail a request before its harness is told: the request itself may be the cause."""
OVERLOADED_STATUS: Final = 503
RETRY_AFTER: Final = ("retry-after", "5")
NO_ANSWER: Final[dict[type[Exception], tuple[CallFailure, str]]] = {
    NoEngine: (CallFailure.ENGINE_UNREACHABLE, "no engine answers"),
    EngineUnreachable: (CallFailure.ENGINE_UNREACHABLE, "the engine does not answer"),
    EngineError: (CallFailure.ENGINE_ERROR, "the engine failed"),
    BusError: (CallFailure.NOT_COMMITTED, "the log cannot be written; try again"),
    BlobError: (CallFailure.NOT_COMMITTED, "the log cannot be written; try again"),
    Exception: (CallFailure.ENGINE_ERROR, "the gateway failed"),
}
"""Faults of Evener, by the nearest base class of the error: what is recorded, and the message that the harness gets with a 503."""

log = structlog.get_logger()


def call_error(error: Exception, session_id: str, request_id: str, dialect: Dialect) -> tuple[RequestError, str]:
    """Return what the harness gets when an error ends its request, and the detail to record. A bug is logged."""
    if not isinstance(error, EvenerError):
        log.error("call_crashed", session_id=session_id, request_id=request_id, exc_info=error)
    match error:
        case RequestError():
            return error, error.message
        case BudgetSpent():
            return stop(error.reason), error.reason
        case ContextOverflow():
            message, overflow = str(error.args[0]), error.numbers and Overflow(asked=error.numbers[0], limit=error.numbers[1])
            return too_long(dialect, message, overflow), message
        case _:
            reason, told = next(NO_ANSWER[kind] for kind in type(error).__mro__ if kind in NO_ANSWER)
            return overloaded(told, reason), str(error) if isinstance(error, EvenerError) else repr(error)


def outcome(
    error: Exception, told: RequestError, session: SessionRuntime, request_id: str, *, answer_seen: bool, patience_seconds: float
) -> Rejected | SendAgain:
    """Return who is told of an error: its harness, or only the relay, because an engine, the log or the policy may come back.

    `told` is what the harness would get. `answer_seen`: it has seen a part of the answer (`live`), which another one would contradict.
    `patience_seconds`: how long an unavailable log is kept from it.
    """
    match error:
        case _ if answer_seen:
            return Rejected(told)
        case PolicyNotConfigured():
            return SendAgain(str(error.args[0]))
        case EngineUnreachable():
            session.failed_tries[request_id] += 1
            return SendAgain() if session.failed_tries[request_id] < TRANSPARENT_TRIES else Rejected(told)
        case BusError():
            now = asyncio.get_running_loop().time()
            return SendAgain() if now - session.unwritten_since.setdefault(request_id, now) < patience_seconds else Rejected(told)
        case _:  # a blob store was waited for already, as long as a harness may be kept waiting
            return Rejected(told)


def overloaded(message: str, reason: CallFailure = CallFailure.OVERLOADED) -> RequestError:
    """Return the error after which every client tries again."""
    # An error within a stream has no status: harnesses try again when they read these words.
    return RequestError(f"service unavailable: {message}", status=OVERLOADED_STATUS, kind="overloaded_error", reason=reason)
