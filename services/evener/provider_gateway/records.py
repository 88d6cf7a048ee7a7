"""Creates the records of what happens to a call after its opening."""

import time
from typing import Any

from evener.proto.reasons import CallFailure
from evener.proto.sessions import CallDelivered, CallFailed, CallOpened, CallUndelivered


def failed(opened: CallOpened, reason: CallFailure, detail: str, status: int, sampled_tokens: int = 0) -> CallFailed:
    """Return the record of a call's failure at this time, with the number of tokens that were seen."""
    return CallFailed(
        **_of(opened, opened.request_id),
        reason=reason,
        detail=detail,
        status=status,
        failed_at=time.time(),
        sampled_tokens=sampled_tokens,
    )


def delivered(opened: CallOpened, request_id: str) -> CallDelivered:
    """Return the record that a transport retry gets a call's answer at this time."""
    return CallDelivered(**_of(opened, request_id), delivered_at=time.time())


def undelivered(opened: CallOpened, request_id: str) -> CallUndelivered:
    """Return the record that a request's harness disconnected before it had the answer."""
    return CallUndelivered(**_of(opened, request_id), undelivered_at=time.time())


def _of(opened: CallOpened, request_id: str) -> dict[str, Any]:
    return {"session_id": opened.session_id, "attempt": opened.attempt, "call_id": opened.call_id, "request_id": request_id}
