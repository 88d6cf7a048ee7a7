"""Why an attempt ended, from its records: what its harness reported, and which failures kept its agent from going on."""

from evener.proto.reasons import TerminationReason, termination_of
from evener.proto.spec import Purpose
from evener.tokens.last_failure import last_failure, unserved
from evener.tokens.session import NO_SANDBOX, SessionLog
from evener.tokens.trouble import failures, why


def attempt_end(session: SessionLog, budget: TerminationReason | None) -> tuple[TerminationReason, str] | None:
    """Return why the current attempt or session ended, with the detail, or None while it continues.

    `budget` is the limit that the gateway enforced during the attempt, if any.
    """
    if session.abandoned is not None:
        return session.abandoned.termination_reason, session.abandoned.detail
    if (left := session.exit) is None:
        return None
    calls = [call for call in session.forest.in_order() if call.opened.attempt == session.attempt]
    failed, met = unserved(session, left) or last_failure(session), failures(calls, left)
    end = termination_of(left.cause, left.exit_code, failed, budget, met)
    if end is TerminationReason.INFRASTRUCTURE and failed is not None and _is_recording(session):
        end = termination_of(left.cause, left.exit_code, None, budget, met)
        told = f"its last call had no answer ({failed}), and a recording cannot be run again"
        return end, "; ".join(filter(None, (why(end, calls, left), told)))
    return end, why(end, calls, left)


def _is_recording(session: SessionLog) -> bool:
    """Return whether somebody else ran the process, for a collection: nobody can start it again, and its tokens are worth keeping."""
    spec = session.spec
    return spec is not None and spec.purpose is Purpose.COLLECT and spec.harness.sandbox == NO_SANDBOX
