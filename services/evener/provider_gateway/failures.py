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


class CallError(EvenerError):
    """A call ends without an answer: what is recorded, and what its harness gets."""

    def __init__(self, reason: CallFailure, error: RequestError, detail: str | None = None) -> None:
        super().__init__(error.message)
        self.reason = error.reason = reason
        self.error = error
        self.detail = detail or error.message


def call_error(error: Exception, request: ParsedRequest) -> CallError:
    """Return how an error ends a call."""
    match error:
        case CallError():
            return error
        case RequestError():
            return CallError(error.reason, error)
        case BudgetSpent():
            return CallError(CallFailure.BUDGET, stop(error.reason), error.reason)
        case ContextOverflow():
            overflow = error.numbers and Overflow(asked=error.numbers[0], limit=error.numbers[1])
            return CallError(CallFailure.CONTEXT_OVERFLOW, too_long(request, str(error.args[0]), overflow))
        case _:
            reason, told = next(NO_ANSWER[kind] for kind in type(error).__mro__ if kind in NO_ANSWER)
            return CallError(reason, overloaded(told), str(error) if isinstance(error, EvenerError) else repr(error))


def overloaded(message: str) -> RequestError:
    """Return the error after which every client tries again."""
    # An error within a stream has no status: harnesses try again when they read these words.
    reason = CallFailure.OVERLOADED
    return RequestError(f"service unavailable: {message}", status=OVERLOADED_STATUS, kind="overloaded_error", reason=reason)
