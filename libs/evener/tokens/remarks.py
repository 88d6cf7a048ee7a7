"""Sentences about what costs rows, for whoever shows a session or a run. Pure."""

from collections.abc import Iterable

from evener.proto.sessions import RootReason

KEEP_THINKING = (
    '`thinking = "all"` in the policy\'s configuration keeps them in one row; choose it where the policy is deployed so, too '
    "(docs/tokens.md, Options of a policy)"
)


def thinking_stripped(roots: Iterable[RootReason | None]) -> str | None:
    """Say what the policy's template costs by dropping earlier reasoning. `roots`: of each call, None for one that extends another.

    None: it costs nothing.
    """
    reasons = list(roots)
    stripped = reasons.count(RootReason.THINKING_STRIPPED)
    if not stripped:
        return None
    began = "1 call" if stripped == 1 else f"{stripped} calls"
    return (
        f"{began} of {len(reasons)} began a row of {'its' if stripped == 1 else 'their'} own, as the policy's template drops earlier "
        f"reasoning where the user speaks again: {KEEP_THINKING}"
    )
