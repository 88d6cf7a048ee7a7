"""The heading, accounting and conversations of a session, for a terminal."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.text import Text

from evener.cli.output import facts
from evener.client.session_views import SessionSource, SessionView
from evener.proto.arrays import int32s, uint8s
from evener.proto.reasons import TerminationReason
from evener.proto.trajectories import Row, TrajectoryBuilt

ROLE_COLOURS = {"system": "magenta", "developer": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow"}

LIMITS: Final = {
    TerminationReason.AGENT_TIME: ("agent_seconds", "s on the agent's clock"),
    TerminationReason.WALL_TIME: ("wall_seconds", "s since its harness was started"),
    TerminationReason.TOKEN_BUDGET: ("tokens", "sampled tokens"),
    TerminationReason.CALL_BUDGET: ("calls", "calls"),
    TerminationReason.TURN_BUDGET: ("turns", "turns"),
    TerminationReason.LOOPING: ("repeats", "times the same call with the same result"),
    TerminationReason.DEADLINE: ("deadline_seconds", "s since its first dispatch"),
    TerminationReason.ATTEMPTS_USED_UP: ("attempts", "attempts"),
}
"""The budgets that end sessions, with their units."""


def heading(view: SessionView, more: Sequence[tuple[str, str]] = ()) -> RenderableType:
    """Return the facts about the whole session, followed by `more`."""
    trajectory, told = view.trajectory, view.told
    exited = trajectory.exit if trajectory else None
    shown: list[tuple[str, str | Text]] = [
        (
            "session",
            f"{view.session_id}, attempt {told.attempt}{', from its stored records' if view.source is SessionSource.RECORDS else ''}",
        ),
        ("task", told.spec.task.name if told.spec.task else "a recording"),
        ("harness", f"{told.spec.harness.name} {(trajectory.harness_version if trajectory else None) or ''}"),
        (
            "end",
            f"{trajectory.termination_reason.value}{_limit(trajectory)} {trajectory.detail or _last_failure(view)}".rstrip()
            if trajectory
            else "still open; the following is what it would be if it ended now",
        ),
    ]
    if exited:
        shown.append(("time", f"{exited.agent_seconds:.1f} s on the agent's clock, {exited.wall_seconds:.1f} s in all"))
    return facts([*shown, *more])


def _limit(trajectory: TrajectoryBuilt) -> str:
    """Return the budget that ended a session. Empty: none did, or it is the task's own."""
    field, unit = LIMITS.get(trajectory.termination_reason, ("", ""))
    limit = getattr(trajectory.spec.budgets, field) if field else None
    return "" if limit is None else f" (limit: {limit:g} {unit})"


def _last_failure(view: SessionView) -> str:
    """Return the failure of the last call. Empty: it did not fail."""
    last = view.calls[-1] if view.calls else None
    return f"(last call: {last.detail})" if last is not None and last.failure is not None and last.detail else ""


def accounts(view: SessionView) -> RenderableType:
    """Return where every sampled token went, and every inconsistency."""
    told = view.told
    accounting = told.accounting
    excluded = ", ".join(f"{count} {reason.value}" for reason, count in accounting.excluded.items()) or "none"
    counts = {
        "side": accounting.side_calls,
        "failed": accounting.failed_calls,
        "lost with their gateway": accounting.lost_calls,
    }
    kinds = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    shown: list[tuple[str, str | Text]] = [
        (
            "tokens",
            f"{accounting.sampled} sampled = {accounting.delivered} in rows + {sum(accounting.excluded.values())} excluded: {excluded}",
        ),
        ("calls", f"{len(view.calls)}{f' ({kinds})' if kinds else ''}, in {len(told.rows)} rows"),
    ]
    if accounting.resampled or accounting.reinstated:
        shown.append(("of these", f"{accounting.resampled} tokens resampled, {accounting.reinstated} reinstated"))
    shown += [("inconsistent", Text(inconsistency, "red")) for inconsistency in told.inconsistencies]
    return facts(shown)


def conversations(view: SessionView) -> RenderableType:
    """Return the messages of each row. For a session without rows: those of its main branch."""
    parts: list[RenderableType] = []
    rows = view.told.rows
    for number, messages in enumerate(view.messages):
        parts.append(rule(number, rows[number]) if rows else Rule("no row", align="left"))
        parts += [part for message in messages for part in _message(message)]
    return Group(*parts)


def rule(number: int, row: Row) -> Rule:
    """Return the line above a row."""
    trained = int(np.sum(uint8s(row.loss_mask)))
    return Rule(f"row {number}: {row.kind.value}, {len(int32s(row.ids))} tokens, {trained} trained, {row.fidelity.value}", align="left")


def _message(message: dict[str, Any]) -> Iterator[Text]:
    role = str(message["role"])
    yield Text(role, f"bold {ROLE_COLOURS.get(role, 'white')}")
    if message.get("reasoning"):
        yield Text(str(message["reasoning"]), "italic dim")
    if content := _content(message.get("content")):
        yield Text(content)
    for call in message.get("tool_calls") or ():
        arguments = call["arguments"]
        yield Text(f"→ {call['name']}({arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)})", "blue")


def _content(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(part["text"] if part["type"] == "text" else f"[{part['type']}]" for part in content)
    return str(content or "")
