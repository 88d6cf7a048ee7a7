"""The picture: one page without anything from outside, its charts as inline SVG."""

import html
import json
import math
from collections.abc import Sequence
from statistics import mean
from typing import Any, Final

from arms import rewards_of
from bars import Bar
from figures import Said, gap, trained
from msgspec import Struct

WIDTH, HEIGHT = 680, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 14, 34
COLOURS: Final = ("#1f6feb", "#d1681c", "#2a8a4a", "#8250df")
PALE: Final = ("#9cc1f7", "#ecb995")
"""The colours of the control, one for each of `COLOURS`."""
LEGEND: Final = 18
"""Height of a line of the legend."""
STYLE: Final = "<style>text{font:12px system-ui,sans-serif;fill:#59636e}.grid{stroke:#d1d9e0}.dot{stroke:#fff;stroke-width:1.5}</style>"
MEAN_OF: Final = 3
"""Steps that the thick line is a running mean of."""

Point = tuple[float, float]


class Line(Struct, frozen=True, kw_only=True):
    """The points that are drawn in one colour."""

    name: str
    points: Sequence[Point]
    colour: str
    dots: bool = False
    """Single points, without a line."""
    faint: bool = False


def chart(title: str, lines: Sequence[Line], *, unit: str, top: float | None = None, log: bool = False) -> str:
    """Return a figure; x is the step. `log`: y is logarithmic."""
    xs, ys = [x for line in lines for x, _ in line.points], [y for line in lines for _, y in line.points if y > 0 or not log]
    if not ys:
        return ""
    low, high = (math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)) + 1e-9)) if log else (0.0, top or max(ys) * 1.1 or 1.0)
    left, right = min(xs), max(*xs, min(xs) + 1)

    def place(point: Point) -> tuple[float, float]:
        height = math.log10(max(point[1], 10**low)) if log else point[1]
        x = LEFT + (point[0] - left) / (right - left) * (WIDTH - LEFT - RIGHT)
        return x, HEIGHT - BOTTOM - (height - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    ticks = [float(number) for number in range(int(low), int(high) + 1)] if log else [low + (high - low) * part / 4 for part in range(5)]
    drawn = []
    for tick in ticks:
        y = place((left, 10**tick if log else tick))[1]
        told = f"1e{tick:.0f}" if log else f"{tick:.2g}"
        drawn.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" class="grid"/>')
        drawn.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{told}</text>')
    for step in range(math.ceil(left), math.floor(right) + 1, max(1, round((right - left) / 15))):
        x = place((step, 10**low if log else 0))[0]
        drawn.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{step}</text>')
    drawn.extend(_drawn(line, [place(point) for point in line.points]) for line in lines)
    named = [line for line in lines if not line.faint]
    drawn.extend(_named(line, HEIGHT + 6 + LEGEND * number) for number, line in enumerate(named))
    tall = HEIGHT + LEGEND * len(named)
    told = html.escape(f"{title} ({unit})")
    picture = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {tall}" role="img" aria-label="{told}">{STYLE}{"".join(drawn)}</svg>'
    )
    return f"<figure><figcaption>{html.escape(title)} <small>{html.escape(unit)}</small></figcaption>{picture}</figure>"


def _named(line: Line, y: int) -> str:
    spot = f'<circle cx="{LEFT + 5}" cy="{y - 4}" r="5" fill="{line.colour}"/>'
    return f'{spot}<text x="{LEFT + 16}" y="{y}">{html.escape(line.name)}</text>'


def only_picture(figure: str) -> str:
    """Return the SVG of a figure, to be kept as a file of its own."""
    return figure[figure.index("<svg") : figure.index("</svg>")] + "</svg>\n"


def _drawn(line: Line, places: Sequence[tuple[float, float]]) -> str:
    if line.dots:
        return "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{line.colour}" class="dot"/>' for x, y in places)
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    width, opacity = (1, 0.4) if line.faint else (2.5, 1)
    return f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="{width}" opacity="{opacity}"/>'


def rewards(steps: Sequence[Said], kinds: Sequence[str], held_out: dict[str, tuple[float, float, float]]) -> list[Line]:
    """Return reward by step, with the held-out share before and after, and that of the control, which is evaluated at the end."""
    lines = []
    for kind, colour, pale in zip(kinds, COLOURS, PALE, strict=False):
        by_step = [(float(step["step"]), mean(rewards_of(step, kind))) for step in steps]
        smooth = [(x, mean(y for _, y in by_step[max(0, at - MEAN_OF + 1) : at + 1])) for at, (x, _) in enumerate(by_step)]
        before, after, control = held_out[kind]
        last = by_step[-1][0]
        lines += [
            Line(name=kind, points=by_step, colour=colour, faint=True),
            Line(name=f"{kind}: mean reward of {MEAN_OF} steps", points=smooth, colour=colour),
            Line(name=f"{kind}: held out, before and after", points=[(0, before), (last, after)], colour=colour, dots=True),
            Line(name=f"{kind}: held out, control at the end (weights of the start)", points=[(last, control)], colour=pale, dots=True),
        ]
    return lines


def through_pi(said: Said, told: Said) -> str:
    """Return the figure of the rewards through Pi."""
    tasks = {kind: (each["before"], each["after"], each["control"]) for kind, each in told["tasks"].items()}
    lines = rewards(said["arms"]["through-pi"], tuple(tasks), tasks)
    return chart("Through Pi: reward by step", lines, unit="1: exactly the right file", top=1.0)


def gaps(steps: Sequence[Said]) -> list[Point]:
    """Return the largest difference of a logprob by step, of the updates that were compared."""
    return [(float(step["step"]), each) for step in trained(steps) if (each := gap(step)) is not None]


def page(said: Said, told: Said, shown: Sequence[Bar]) -> str:
    """Return the whole page. `shown`: the conditions."""
    first, second = said["arms"]["through-pi"], said["arms"]["through-script"]
    other = {"write": (told["second"]["before"], told["second"]["after"], told["second"]["control"])}
    parts = ("rollout", "train", "sync")
    charts = [
        through_pi(said, told),
        chart("Through the script harness: reward by step", rewards(second, ("write",), other), unit="1: exactly the right file", top=1.0),
        chart(
            "Largest difference of a logprob, engine against trainer",
            [
                Line(name="through Pi", points=gaps(first), colour=COLOURS[0]),
                Line(name="through script", points=gaps(second), colour=COLOURS[1]),
                Line(name="the bar", points=[(1, 1e-3), (len(first), 1e-3)], colour="#cf222e"),
            ],
            unit="natural log; logarithmic",
            log=True,
        ),
        chart(
            "Seconds of a step",
            [
                Line(name=part, points=[(step["step"], step["seconds"][part]) for step in first], colour=colour)
                for part, colour in zip(parts, COLOURS, strict=False)
            ],
            unit="rollout: waiting for groups; sync: save, pause, reload, prove, resume; logarithmic",
            log=True,
        ),
        chart(
            "Version lag of trained tokens",
            [
                Line(name="mean", points=[(step["step"], step["lag_mean"]) for step in trained(first)], colour=COLOURS[0]),
                Line(name="largest", points=[(step["step"], float(step["lag_max"])) for step in trained(first)], colour=COLOURS[1]),
            ],
            unit="versions behind the newest",
        ),
    ]
    style = (
        "body{font:15px/1.5 system-ui,sans-serif;max-width:720px;margin:2em auto;padding:0 1em;color:#1f2328}"
        "svg{width:100%;height:auto}"
        "figure{margin:2em 0}figcaption{font-weight:600}small{font-weight:400;color:#59636e}"
        "table{border-collapse:collapse}td,th{padding:3px 14px 3px 0;text-align:right}td:first-child,th:first-child{text-align:left}"
        "pre{background:#f6f8fa;padding:1em;overflow:auto;font-size:12px}"
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>The loop closes</title><style>{style}</style>'
        f"<h1>The loop closes</h1><p>A policy of a million parameters, trained by GRPO through an unmodified harness while its weights "
        f"were updated under it. Held-out figures are shares of sampled sessions that left exactly the right file.</p>"
        f"{_table(told)}<h2>What must hold</h2><pre>{html.escape(chr(10).join(map(str, shown)))}</pre>"
        f"{''.join(charts)}<h2>All figures</h2><pre>{html.escape(json.dumps(told, indent=1))}</pre></html>\n"
    )


def _table(told: Said) -> str:
    rows: list[tuple[str, Any]] = [*told["tasks"].items(), (f"write, through {told['second']['harness']}", told["second"])]
    cells = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{each['before']:.2f}</td><td>{each['after']:.2f}</td><td>{each['control']:.2f}</td>"
        f"<td>{'not compared' if each['gap_max'] is None else format(each['gap_max'], '.1e')}</td></tr>"
        for name, each in rows
    )
    return f"<table><tr><th>held out</th><th>before</th><th>after</th><th>control</th><th>largest gap</th></tr>{cells}</table>"
