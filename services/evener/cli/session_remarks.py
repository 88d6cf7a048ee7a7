"""Remarks on what costs a session rows, and on the quirks that its harness should declare."""

from collections.abc import Iterator
from typing import Final

from rich.console import Group, RenderableType
from rich.text import Text

from evener.client.session_views import SessionView
from evener.tokens.remarks import thinking_stripped, tools_hidden

ANSWER_GRADER: Final = "answer"
"""The grader of the agent's last message."""


def remarks(view: SessionView) -> Iterator[str]:
    """Yield one sentence for each thing that a person may want to change."""
    if (hidden := tools_hidden(view.told.accounting.calls_without_tools)) is not None:
        yield hidden
    if (stripped := thinking_stripped(call.placement.root for call in view.calls if call.side_call is None)) is not None:
        yield stripped
    if view.told.spec.grader.name == ANSWER_GRADER and (doubt := _doubt(view.last_message, view.other_message)) is not None:
        yield doubt
    if view.proposed is not None:
        yield from (f"{sentence[0].upper()}{sentence[1:]}" for sentence in view.proposed.because)


def _doubt(last: int | None, other: int | None) -> str | None:
    """Return a sentence about which of two calls holds the agent's last message. None: there is no doubt."""
    if last is None or other is None:
        return None
    graded = f"Call {last} is the agent's last message, which `{ANSWER_GRADER}` grades; call {other}, of another conversation, was answered"
    if other > last:
        return f"{graded} after it: if that is the agent after a summary, declare `compacted` (docs/harnesses.md, Quirks)"
    return f"{graded} before it: if one of them is not the agent's work, declare it in `side_calls` (docs/harnesses.md, Quirks)"


def notes(view: SessionView) -> RenderableType:
    """Return the remarks, with the proposed quirks as a file. Empty if there are none."""
    parts = [Text(remark, "yellow") for remark in remarks(view)]
    if view.proposed is not None:
        parts += [Text(f"{how_to_give(view)}:", "yellow"), Text(view.proposed.toml.rstrip())]
    return Group(*parts)


def how_to_give(view: SessionView) -> str:
    """Return the option that takes the proposed file."""
    command = "evener record" if view.told.spec.harness.sandbox == "none" else f"evener run --harness {view.told.spec.harness.name}"
    return f"A file for `{command} --quirks FILE`"
