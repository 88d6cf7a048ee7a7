"""Sentences about what costs rows, for whoever shows a session or a run. Pure."""

from collections.abc import Iterable
from typing import Final

from evener.proto.sessions import RootReason

KEEP_THINKING = (
    '`thinking = "all"` in the policy\'s configuration keeps them in one row; choose it where the policy is deployed so, too '
    "(docs/tokens.md, Options of a policy)"
)

RENDER_TOOLS: Final = '`template = "chatml_tools"` in the policy\'s configuration, or a template of yours, renders them'


def tools_hidden(calls: int) -> str | None:
    """Say that a policy never saw the tools of so many calls. None: of no call."""
    if not calls:
        return None
    told = "1 call offered" if calls == 1 else f"{calls} calls offered"
    return f"{told} tools that the policy never saw, as its chat template renders none: {RENDER_TOOLS}"


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
