"""`python -m proofs.hostile [--only REGEX] [--kinds bodies,files]`: all inputs against one Evener; figures to outputs/hostile.json."""

import argparse
import asyncio
import re
import sys
from typing import Final

from msgspec import structs
from proofs.conformance.code import CODE
from proofs.figures import Row, report
from proofs.hostile.input import Input, Kind
from proofs.hostile.registry import INPUTS, NOT_DRIVEN
from proofs.hostile.stops import BAR_MS
from proofs.hostile.suite import Outcome, Report, run_all

NAME_CHARACTERS: Final = 70
"""How much of a name the table shows; `wrong` has it whole."""
HOW_STOPS_ARE_MEASURED: Final = (
    "how late a task wakes that sleeps 4 ms in the process of gateway and runner, without the time that its thread waited for a core "
    "(schedstat); an input above the bar and below a second is done up to three times, and the shortest of its longest stops counts"
)


def chosen(only: str, kinds: str) -> list[Input]:
    """Return the inputs whose kind and name are asked for."""
    wanted = {Kind(kind) for kind in kinds.split(",") if kind} or set(Kind)
    return [each for each in INPUTS if each.kind in wanted and re.search(only, each.name)]


def figures(run: Report) -> dict[str, object]:
    """Return what is said of a run beside its inputs."""
    wrong = [one for one in run.outcomes if not one.right]
    return {
        "inputs": len(run.outcomes),
        "died": sum(one.died for one in run.outcomes),
        "hung": sum(one.hung for one in run.outcomes),
        "longest_stop_ms": max((one.stop_ms for one in run.outcomes), default=0.0),
        "lost": None if run.books is None else run.books.lost,
        "right": run.right,
        "stopped_too_long": sum(one.stop_ms > BAR_MS for one in run.outcomes),
        "answered_or_ended_wrong": sum(bool(one.fault) for one in run.outcomes),
        "bar_ms": BAR_MS,
        "measured": HOW_STOPS_ARE_MEASURED,
        "baseline": structs.asdict(run.baseline),
        "books": None if run.books is None else structs.asdict(run.books),
        "ending": run.ending,
        "rss_mb": run.rss_mb,
        "peak_mb": run.peak_mb,
        "seconds": run.seconds,
        "code": CODE,
        "not_driven": NOT_DRIVEN,
        "wrong": [structs.asdict(one) for one in wrong],
    }


def row(one: Outcome) -> Row:
    """Return an input as a row of the table."""
    stops = " ".join(f"{stop:.0f}" for stop in one.stops_ms)
    said = " ".join(word for word, holds in (("died", one.died), ("hung", one.hung), ("fault", bool(one.fault))) if holds)
    return {
        "kind": one.kind,
        "input": one.name[:NAME_CHARACTERS],
        "review": one.review,
        "seconds": one.seconds,
        "stops_ms": stops,
        "stop_ms": one.stop_ms,
        "wrong": said,
    }


def main() -> int:
    """Return the exit status: 1 if anything was not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m proofs.hostile")
    parser.add_argument("--only", default="", help="a regular expression found in an input's name")
    parser.add_argument("--kinds", default="", help="with commas between them")
    options = parser.parse_args()
    inputs = chosen(options.only, options.kinds)
    if not inputs:
        parser.error("no input has such a name and kind")
    run = asyncio.run(run_all(inputs))
    about = figures(run)
    report("hostile", "Hostile inputs, and what came of them", [row(one) for one in run.outcomes], **about)
    for name in ("inputs", "died", "hung", "longest_stop_ms", "lost", "stopped_too_long", "answered_or_ended_wrong", "ending"):
        print(f"{name}: {about[name]}", file=sys.stderr)  # noqa: T201 - for whoever runs it
    for fault in () if run.books is None else run.books.faults:
        print(f"books: {fault}", file=sys.stderr)  # noqa: T201
    return 0 if run.right else 1


if __name__ == "__main__":
    sys.exit(main())
