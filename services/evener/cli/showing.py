"""Sessions for a terminal."""

import json
from codecs import getincrementaldecoder
from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from evener.client.client import Client
from evener.client.views import SessionView
from evener.proto.arrays import float32s, int32s, uint8s
from evener.proto.trajectories import Row, TrajectoryBuilt

UTF8 = getincrementaldecoder("utf-8")
ROLES = {"system": "magenta", "developer": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow"}
GIVEN = "dim"
UNKNOWN = "grey50"
HEAT = ((0.9, "green"), (0.5, "yellow"), (0.1, "dark_orange"), (0.0, "red"))
"""Colour of a sampled token by its probability, at least so much."""


def heading(trajectory: TrajectoryBuilt) -> RenderableType:
    """Return what is true of the whole session."""
    books = trajectory.accounting
    left_out = ", ".join(f"{count} {reason.value}" for reason, count in books.left_out.items()) or "none"
    exited = trajectory.exit
    facts = Table.grid(padding=(0, 2))
    facts.add_row("session", f"{trajectory.session_id}, attempt {trajectory.attempt}")
    facts.add_row("task", trajectory.spec.task.name if trajectory.spec.task else "a recording")
    facts.add_row("harness", f"{trajectory.spec.harness.name} {trajectory.harness_version or ''}")
    facts.add_row("end", f"{trajectory.end.value} {trajectory.detail}".strip())
    facts.add_row("time", f"{exited.agent_seconds:.1f} s on the agent's clock, {exited.wall_seconds:.1f} s in all" if exited else "")
    facts.add_row("tokens", f"{books.sampled} sampled, {books.delivered} in rows; left out: {left_out}")
    facts.add_row("calls", f"{len(trajectory.calls)}, in {len(trajectory.rows)} rows")
    for doubt in trajectory.doubts:
        facts.add_row("[red]doubt[/]", doubt)
    return facts


def conversations(view: SessionView) -> RenderableType:
    """Return the messages of each row."""
    parts: list[RenderableType] = []
    for number, (row, messages) in enumerate(zip(view.trajectory.rows, view.messages, strict=True)):
        parts.append(_rule(number, row))
        parts += [part for message in messages for part in _message(message)]
    return Group(*parts)


async def token_rows(client: Client, trajectory: TrajectoryBuilt) -> RenderableType:
    """Return each row as coloured tokens; the gateway gives the bytes of ids."""
    parts: list[RenderableType] = []
    for number, row in enumerate(trajectory.rows):
        ids = [int(each) for each in int32s(row.ids)]
        distinct = sorted(set(ids))
        pieces = dict(zip(distinct, await client.pieces(trajectory.spec.policy, distinct), strict=True))
        parts += [_rule(number, row), tokens(row, pieces)]
    return Group(*parts)


def tokens(row: Row, pieces: dict[int, bytes]) -> Text:
    """Return a row as text: given tokens dim, sampled ones by probability, trained ones underlined.

    Bytes of one character can stand in several tokens: it has the style of the one that completes it.
    """
    text = Text()
    characters = UTF8(errors="replace")
    ids, styles = int32s(row.ids), _styles(row)
    for at, (each, style) in enumerate(zip(ids, styles, strict=True), 1):
        _append(text, characters.decode(pieces[int(each)], final=at == len(ids)), style)
    return text


def _append(text: Text, more: str, style: str) -> None:
    """Add to the text, into its last span where that has the same style and ends there: rows have many tokens."""
    begin = len(text)
    text.append(more)
    if text.spans and text.spans[-1].end == begin and text.spans[-1].style == style:
        text.spans[-1] = text.spans[-1].extend(len(text) - begin)
    elif more:
        text.stylize(style, begin)


def _styles(row: Row) -> list[str]:
    sampled = int32s(row.call_of) >= 0
    probabilities = np.exp(float32s(row.logprobs))
    masks = uint8s(row.mask)
    return [
        (_heat(float(probability)) + (" underline" if mask else "")) if is_sampled else GIVEN
        for is_sampled, probability, mask in zip(sampled, probabilities, masks, strict=True)
    ]


def _heat(probability: float) -> str:
    return next((colour for least, colour in HEAT if probability >= least), UNKNOWN)  # NaN is at least nothing


def _rule(number: int, row: Row) -> Rule:
    trained = int(np.sum(uint8s(row.mask)))
    return Rule(f"row {number}: {row.kind.value}, {len(int32s(row.ids))} tokens, {trained} trained, {row.fidelity.value}", align="left")


def _message(message: dict[str, Any]) -> Iterator[Text]:
    role = str(message["role"])
    yield Text(role, f"bold {ROLES.get(role, 'white')}")
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
