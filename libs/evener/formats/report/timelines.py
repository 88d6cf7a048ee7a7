"""Time lines: what each session did when, as percentages of one axis. Pure."""

import math
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from evener.formats.summary import seen
from evener.proto.trajectories import GroupOutcome, TrajectoryScored

MAX_SESSIONS: Final = 200
"""The largest number of sessions that are drawn. Further ones are counted."""
TICKS: Final = 6
"""The approximate number of labels on the axis."""


class Block(Struct, frozen=True):
    """A span of time, as percentages of the axis."""

    kind: str
    """`prepare`, `agent`, `call`, `failed` or `grade`."""
    left: float
    width: float
    label: str


class Timeline(Struct, frozen=True):
    """The time line of one session."""

    session_id: str
    group: str
    index: int
    first: bool
    """Whether the session is the first of its group."""
    end: str
    blocks: tuple[Block, ...]


class AxisTick(Struct, frozen=True):
    """A label of the axis."""

    left: float
    label: str


class Timelines(Struct, frozen=True):
    """All sessions on one axis."""

    ticks: tuple[AxisTick, ...]
    lines: tuple[Timeline, ...]
    hidden: int
    """The number of sessions that are not drawn."""


class _Span(Struct, frozen=True):
    kind: str
    start: float
    end: float
    label: str


def timelines(outcomes: Sequence[GroupOutcome]) -> Timelines:
    """Return the time lines of all sessions that were seen, by group and index."""
    scores = [scored for event in outcomes for _, scored in seen(event.members)]
    spans = [_spans(scored) for scored in scores[:MAX_SESSIONS]]
    drawn = [span for line in spans for span in line]
    if not drawn:
        return Timelines((), (), len(scores))
    start, end = min(span.start for span in drawn), max(span.end for span in drawn)
    length = max(end - start, 0.001)
    lines: list[Timeline] = []
    for number, (scored, line) in enumerate(zip(scores, spans, strict=False)):
        blocks = tuple(_block(span, start, length) for span in line)
        lines.append(
            _line(scored, blocks, first=number == 0 or scores[number - 1].trajectory.spec.group_id != scored.trajectory.spec.group_id)
        )
    return Timelines(_ticks(length), tuple(lines), len(scores) - len(lines))


def _line(scored: TrajectoryScored, blocks: tuple[Block, ...], *, first: bool) -> Timeline:
    trajectory = scored.trajectory
    spec = trajectory.spec
    name = spec.task.name.rpartition("/")[2] if spec.task else spec.group_id  # what tells tasks apart fits a phone
    return Timeline(trajectory.session_id, name, spec.index, first, trajectory.termination_reason.value, blocks)


def _spans(scored: TrajectoryScored) -> list[_Span]:
    trajectory = scored.trajectory
    spans = [
        _Span(
            "call" if call.failure is None else "failed",
            call.opened_at,
            call.closed_at or call.opened_at,
            _call_label(call.sampled_tokens, call.failure),
        )
        for call in trajectory.calls
    ]
    exited, begin = trajectory.exit, trajectory.dispatched_at
    if exited is not None and begin is not None:
        ready = begin + exited.prepare_seconds
        done = max([ready + exited.wall_seconds, *(span.end for span in spans)])
        agent = [_Span("prepare", begin, ready, "prepare"), _Span("agent", ready, done, "agent")]
        spans = [*agent, *spans]
    if scored.tries:
        spans.append(_Span("grade", scored.scored_at - scored.grading_seconds, scored.scored_at, "grading"))
    return spans


def _call_label(tokens: int, failure: str | None) -> str:
    return f"call, {tokens} tokens" if failure is None else f"call failed: {failure}"


def _block(span: _Span, start: float, length: float) -> Block:
    seconds = max(0.0, span.end - span.start)
    return Block(
        kind=span.kind,
        left=round(100 * (span.start - start) / length, 3),
        width=round(100 * seconds / length, 3),
        label=f"{span.label}, {seconds:.2f} s",
    )


def _ticks(length: float) -> tuple[AxisTick, ...]:
    """Return labels at 1, 2 or 5 times a power of ten."""
    rough = length / TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return tuple(AxisTick(round(100 * number * step / length, 3), f"{number * step:g} s") for number in range(int(length / step) + 1))
