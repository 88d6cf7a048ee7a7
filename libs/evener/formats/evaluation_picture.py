"""Draws evaluations as one SVG: a line for each harness and set of tasks, with a dot and an interval for each k. Pure."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

from evener.formats.pass_at_k import Evaluation

PICTURE_WIDTH: Final = 760
LABEL_WIDTH: Final = 250
MARGIN_RIGHT: Final = 24
HEAD_HEIGHT: Final = 46
FOOT_HEIGHT: Final = 34
K_HEIGHT: Final = 18
GAP: Final = 14
SERIES: Final = ("#2563eb", "#d97706", "#059669", "#db2777")
"""The colours of the ks, in their order."""
_STYLE: Final = """<style>
svg { font: 13px system-ui, sans-serif; background: #fff; color: #111; }
text { fill: currentColor; } .dim { opacity: .65; } .grid { stroke: currentColor; opacity: .15; }
@media (prefers-color-scheme: dark) { svg { background: #111; color: #eee; } }
</style>"""


def picture(title: str, evaluations: Sequence[Evaluation]) -> str:
    """Return the SVG."""
    heights = [GAP + K_HEIGHT * max(1, len(one.pass_at)) for one in evaluations]
    height = HEAD_HEIGHT + sum(heights) + FOOT_HEIGHT
    ks = sorted({k for one in evaluations for k in one.pass_at})
    drawn = [*_axis(height), *_legend(ks)]
    top = float(HEAD_HEIGHT)
    for one, tall in zip(evaluations, heights, strict=True):
        drawn += _line(one, top, tall, ks)
        top += tall
    said = "; ".join(_told(one) for one in evaluations)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {PICTURE_WIDTH} {height}" role="img" aria-label="{escape(said)}">{_STYLE}'
        f'<text x="12" y="24" font-weight="600">{escape(title)}</text>{"".join(drawn)}</svg>\n'
    )


def _axis(height: int) -> Iterator[str]:
    for tenth in range(0, 11, 2):
        x = _x(tenth / 10)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{HEAD_HEIGHT}" y2="{height - FOOT_HEIGHT + 4}"/>'
        yield f'<text class="dim" x="{x:.1f}" y="{height - 12}" text-anchor="middle">{tenth * 10} %</text>'


def _legend(ks: Sequence[int]) -> Iterator[str]:
    for number, k in enumerate(reversed(ks)):
        x = PICTURE_WIDTH - MARGIN_RIGHT - 84 * number
        yield f'<circle cx="{x - 62}" cy="20" r="5" fill="{_colour(ks, k)}"/><text x="{x}" y="24" text-anchor="end">pass@{k}</text>'


def _line(one: Evaluation, top: float, tall: float, ks: Sequence[int]) -> Iterator[str]:
    middle = top + tall / 2
    yield f'<text x="12" y="{middle - 1:.1f}">{escape(_cut(one.harness))}</text>'
    yield f'<text class="dim" x="12" y="{middle + 14:.1f}" font-size="11">{escape(_cut(one.task_set))}, {one.tasks} tasks</text>'
    if not one.pass_at:
        yield f'<text class="dim" x="{_x(0):.1f}" y="{middle + 4:.1f}">nothing was graded</text>'
    for number, (k, found) in enumerate(one.pass_at.items()):
        y = top + GAP / 2 + K_HEIGHT * (number + 0.5)
        colour = _colour(ks, k)
        yield f'<line x1="{_x(found.low):.1f}" x2="{_x(found.high):.1f}" y1="{y:.1f}" y2="{y:.1f}" stroke="{colour}" stroke-width="3"/>'
        yield f'<circle cx="{_x(found.value):.1f}" cy="{y:.1f}" r="5" fill="{colour}"><title>{escape(_share(k, one))}</title></circle>'


def _x(share: float) -> float:
    return LABEL_WIDTH + share * (PICTURE_WIDTH - LABEL_WIDTH - MARGIN_RIGHT)


def _colour(ks: Sequence[int], k: int) -> str:
    return SERIES[ks.index(k) % len(SERIES)]


def _cut(text: str) -> str:
    return text if len(text) <= 32 else f"{text[:31]}…"  # noqa: PLR2004 - what fits beside the axis


def _told(one: Evaluation) -> str:
    shares = ", ".join(_share(k, one) for k in one.pass_at) or "nothing was graded"
    return f"{one.harness} on {one.task_set}: {shares}"


def _share(k: int, one: Evaluation) -> str:
    found = one.pass_at[k]
    return f"pass@{k} {found.value:.1%} ({found.low:.1%} to {found.high:.1%}, {found.tasks} tasks)"
