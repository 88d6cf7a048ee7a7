"""Publishes the results of runs: the printed matrix, outputs/conformance.json, and the table in docs/harnesses.md."""

import re
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, Final

import msgspec
from proofs.conformance.cases import CASES
from proofs.conformance.code import CODE
from proofs.conformance.setups import SETUPS
from proofs.conformance.suite import Run
from proofs.figures import OUTPUTS, Row, report

from evener.harnesses.registry import harness

TARGET: Final = "conformance"
PAGE: Final = Path(__file__).parents[2] / "docs" / "harnesses.md"
BEGIN: Final = "<!-- Made by `make conformance`. -->"
END: Final = "<!-- End of what `make conformance` made. -->"
LINEAR: Final = ("linear", "live")
BAR: Final = 1.2
"""Rows of a linear session, where the history is only appended to."""
ROWS: Final = "rows_per_session"

Cell = tuple[str, str]
"""A set-up and a case."""


class Written(msgspec.Struct, frozen=True):
    """What is read of an earlier outputs/conformance.json."""

    runs: tuple[Run, ...] = ()


def publish(made: Sequence[Run], asked: Collection[Cell]) -> int:
    """Show and write the runs, with earlier ones of other cells; return the exit status: 1 if a cell that was asked for has not passed.

    Earlier runs count where code and CLI are still those that they were made with. The page changes once all cells are there.
    """
    runs = merged([run for run in earlier() if still_true(run)], made)
    setups = {name: figures for name in SETUPS if (figures := linear_of(name, runs))}
    linear = by_harness(setups)
    rows = [_matrix_row(name, runs) for name in SETUPS if any(run.set_up == name for run in runs)]
    title = "Conformance: rows of each session (-: it has none; ?: not run on this code)"
    report(TARGET, title, rows, code=CODE, runs=msgspec.to_builtins(runs), linear=linear, setups=setups)
    failed = {(run.set_up, run.case): run.note for run in runs if not run.passed}
    missing = dict.fromkeys(empty(runs), "not run")
    over = {name: f"{figures[ROWS]:g} rows per linear session, above {BAR}" for name, figures in linear.items() if figures[ROWS] > BAR}
    for where, why in {**{", ".join(cell): why for cell, why in {**failed, **missing}.items()}, **over}.items():
        print(f"FAILED {where}: {why}")  # noqa: T201 - what the command says
    if all(CASES[case].only_when_asked for _, case in missing):
        write_table(table(runs))
    else:
        print(f"{PAGE.name} stays as it is: its table is of one code, and not all cells were run on this one")  # noqa: T201 - likewise
    return 1 if over or any(cell in failed or cell in missing for cell in asked) else 0


def still_true(run: Run) -> bool:
    """Return whether a run was made with today's code and today's version of the CLI."""
    return run.code == CODE and run.set_up in SETUPS and run.version == harness(run.harness).version


def earlier() -> list[Run]:
    """Return the runs of the figures that are there."""
    try:
        return list(msgspec.json.decode((OUTPUTS / f"{TARGET}.json").read_bytes(), type=Written).runs)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return []


def merged(before: Sequence[Run], made: Sequence[Run]) -> list[Run]:
    """Return the newest run of each cell that the suite still has, in the suite's order."""
    runs = {(run.set_up, run.case): run for run in sorted((*before, *made), key=lambda run: run.at)}
    return [runs[cell] for cell in cells() if cell in runs]


def cells() -> list[Cell]:
    """Return all cells, in the suite's order."""
    return [(name, case) for name, setup in SETUPS.items() for case in CASES if setup.has(case)]


def empty(runs: Sequence[Run]) -> list[Cell]:
    """Return the cells that were not run."""
    there = {(run.set_up, run.case) for run in runs}
    return [cell for cell in cells() if cell not in there]


def linear_of(name: str, runs: Sequence[Run]) -> dict[str, Any]:
    """Return what becomes of a set-up's linear sessions; empty: none has passed."""
    found = [run for run in runs if run.set_up == name and run.case in LINEAR and run.passed]
    if not found:
        return {}
    return {
        "harness": SETUPS[name].harness,
        "dialect": SETUPS[name].dialect,
        "append_only": SETUPS[name].append_only,
        ROWS: mean(run.rows for run in found),
        "delivered": mean(run.delivered for run in found),
        "fed": mean(run.fed for run in found),
    }


def by_harness(setups: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the worst figures of each harness's set-ups whose history is only appended to."""
    worst: dict[str, dict[str, float]] = {}
    for figures in (figures for figures in setups.values() if figures["append_only"]):
        known = worst.get(figures["harness"], figures)
        shares = {share: min(known[share], figures[share]) for share in ("delivered", "fed")}
        worst[figures["harness"]] = {ROWS: max(known[ROWS], figures[ROWS]), **shares}
    return worst


def table(runs: Sequence[Run]) -> str:
    """Return what docs/harnesses.md shows: a table, and which code it is of."""
    day = time.strftime("%Y-%m-%d", time.gmtime(max((run.at for run in runs), default=0.0)))
    return "\n".join(
        [
            "| set-up | version | dialect | rows per linear session | delivered | fed | cells passed | notes |",
            "|---|---|---|---|---|---|---|---|",
            *(f"| {' | '.join(_table_row(name, runs))} |" for name in SETUPS),
            "",
            f"Run until {day} (UTC) on the code `{CODE}`: the SHA-256 over the files of `proto`, `libs` and `services`.",
        ]
    )


def write_table(made: str) -> None:
    """Put it between its marks in the page."""
    page = PAGE.read_text()
    PAGE.write_text(re.sub(rf"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: f"{BEGIN}\n\n{made}\n\n{END}", page, flags=re.DOTALL))


def _table_row(name: str, runs: Sequence[Run]) -> list[str]:
    setup, own = SETUPS[name], [run for run in runs if run.set_up == name]
    figures = linear_of(name, own)
    linear = [f"{figures[ROWS]:g}", f"{figures['delivered']:.0%}", f"{figures['fed']:.0%}"] if figures else ["", "", ""]
    passed = f"{sum(run.passed for run in own)} of {sum(setup.has(case) for case in CASES)}"
    return [name, harness(setup.harness).version, setup.dialect, *linear, passed, _notes(name, own)]


def _notes(name: str, own: Sequence[Run]) -> str:
    said: dict[str, list[str]] = {}
    for run in own:
        if run.note:
            said.setdefault(("" if run.passed else "FAILED: ") + run.note, []).append(run.case)
    for at, case in empty(own):
        if at == name:
            said.setdefault("not run", []).append(case)
    for case, why in SETUPS[name].lacks.items():
        said.setdefault(f"none, {why}", []).append(case)
    return "; ".join(f"{', '.join(cases)}: {note}" for note, cases in said.items()).replace("|", "\\|").replace("\n", " ")


def _matrix_row(name: str, runs: Sequence[Run]) -> Row:
    own: Mapping[str, Run] = {run.case: run for run in runs if run.set_up == name}
    shown = {case.short: _cell(name, case.name, own.get(case.name)) for case in CASES.values()}
    return {"set_up": name, "version": next(iter(own.values())).version, **shown}


def _cell(name: str, case: str, run: Run | None) -> str:
    if run is None:
        return "?" if SETUPS[name].has(case) else "-"
    return f"{run.rows}" if run.passed else "FAIL"
