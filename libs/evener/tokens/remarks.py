"""Sentences about settings that cost rows, shown with a session or a run. Pure."""

from collections.abc import Iterable
from typing import Final

from evener.proto.sessions import RootReason

HOW_TO_KEEP_THINKING = (
    '`thinking = "all"` in the policy\'s configuration keeps them in one row; choose it if the policy is deployed the same way '
    "(docs/tokens.md, Options of a policy)"
)

RENDER_TOOLS: Final = '`template = "chatml_tools"` in the policy\'s configuration, or a template of yours, renders them'


def tools_hidden(calls: int) -> str | None:
    """Return a sentence about the calls whose tools the policy never saw. None: there are none."""
    if not calls:
        return None
    told = "1 call offered" if calls == 1 else f"{calls} calls offered"
    return f"{told} tools that the policy never saw, because its chat template renders no tools: {RENDER_TOOLS}"


def thinking_stripped(roots: Iterable[RootReason | None]) -> str | None:
    """Return a sentence about the rows that begin because the policy's template drops earlier reasoning. None: there are none.

    `roots` has the root reason of each call, or None for a call that extends another.
    """
    reasons = list(roots)
    stripped = reasons.count(RootReason.THINKING_STRIPPED)
    if not stripped:
        return None
    began = "1 call" if stripped == 1 else f"{stripped} calls"
    return (
        f"{began} of {len(reasons)} began a row of {'its' if stripped == 1 else 'their'} own, because the policy's template drops earlier "
        f"reasoning where the user speaks again: {HOW_TO_KEEP_THINKING}"
    )
