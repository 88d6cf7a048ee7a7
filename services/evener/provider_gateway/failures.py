"""Maps an error of a call to what the log records and what the harness gets."""

from typing import Final

from evener.blobs.port import BlobError
from evener.bus.port import BusError
from evener.dialects.canonical import Overflow, RequestError
from evener.engines.port import ContextOverflow, EngineError, EngineUnreachable
from evener.proto.errors import EvenerError
from evener.proto.reasons import CallFailure
from evener.provider_gateway.budget import BudgetSpent
from evener.provider_gateway.core import stop
from evener.provider_gateway.engine_scheduler import NoEngine
from evener.provider_gateway.request import ParsedRequest, too_long

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


def call_error(error: Exception, request: ParsedRequest) -> tuple[RequestError, str]:
    """Return what the harness gets when an error ends its call, and the detail to record."""
    match error:
        case RequestError():
            return error, error.message
        case BudgetSpent():
            return stop(error.reason), error.reason
        case ContextOverflow():
            message, overflow = str(error.args[0]), error.numbers and Overflow(asked=error.numbers[0], limit=error.numbers[1])
            return too_long(request, message, overflow), message
        case _:
            reason, told = next(NO_ANSWER[kind] for kind in type(error).__mro__ if kind in NO_ANSWER)
            return overloaded(told, reason), str(error) if isinstance(error, EvenerError) else repr(error)


def overloaded(message: str, reason: CallFailure = CallFailure.OVERLOADED) -> RequestError:
    """Return the error after which every client tries again."""
    # An error within a stream has no status: harnesses try again when they read these words.
    return RequestError(f"service unavailable: {message}", status=OVERLOADED_STATUS, kind="overloaded_error", reason=reason)
