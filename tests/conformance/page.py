"""What the runs say: the printed matrix, outputs/conformance.json, and the table in docs/harnesses.md."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Final

import msgspec
from tests.bench.figures import OUTPUTS, Row, report
from tests.conformance.cases import CASES
from tests.conformance.setups import SETUPS
from tests.conformance.suite import Run

TARGET: Final = "conformance"
PAGE: Final = Path(__file__).parents[2] / "docs" / "harnesses.md"
BEGIN: Final = "<!-- Made by `make conformance`. -->"
END: Final = "<!-- End of what `make conformance` made. -->"
LINEAR: Final = ("linear", "live")
BAR: Final = 1.2
"""Rows of a linear session, where the history is only appended to."""


class Written(msgspec.Struct, frozen=True):
    """What is read of an earlier outputs/conformance.json."""

    runs: tuple[Run, ...] = ()


def publish(made: Sequence[Run]) -> int:
    """Show and write the runs, together with earlier ones of other cells; return the exit status: 1 if one of `made` failed.

    A cell that was never run is printed as failed, too.
    """
    runs = merged(earlier(), made)
    rows = [_matrix_row(name, runs) for name in SETUPS if any(run.set_up == name for run in runs)]
    linear = {name: figures for name, setup in SETUPS.items() if setup.append_only and (figures := linear_of(name, runs))}
    report(TARGET, "Conformance: rows of each session (-: it has none; ?: not run)", rows, runs=msgspec.to_builtins(runs), linear=linear)
    for name, case, why in (*((run.set_up, run.case, run.note) for run in runs if not run.passed), *empty(runs)):
        print(f"FAILED {name}, {case}: {why}")  # noqa: T201 - what the command says
    write_table(table(runs))
    over = [name for name, figures in linear.items() if figures["rows_per_session"] > BAR]
    for name in over:
        print(f"FAILED {name}: {linear[name]['rows_per_session']} rows per linear session, above {BAR}")  # noqa: T201 - likewise
    return 1 if over or not all(run.passed for run in made) else 0


def earlier() -> list[Run]:
    """Return the runs of the figures that are there."""
    try:
        return list(msgspec.json.decode((OUTPUTS / f"{TARGET}.json").read_bytes(), type=Written).runs)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError):
        return []


def merged(before: Sequence[Run], made: Sequence[Run]) -> list[Run]:
    """Return the newest run of each cell that the suite still has, in the suite's order."""
    cells = {(run.set_up, run.case): run for run in sorted((*before, *made), key=lambda run: run.at)}
    return [cells[name, case] for name in SETUPS for case in CASES if (name, case) in cells]


def empty(runs: Sequence[Run]) -> list[tuple[str, str, str]]:
    """Return the cells that were never run: set-up, case, and that word."""
    there = {(run.set_up, run.case) for run in runs}
    return [(name, case, "not run") for name, setup in SETUPS.items() for case in CASES if setup.has(case) and (name, case) not in there]


def linear_of(name: str, runs: Sequence[Run]) -> dict[str, float]:
    """Return what becomes of a set-up's linear sessions; empty: there were none."""
    found = [run for run in runs if run.set_up == name and run.case in LINEAR]
    if not found:
        return {}
    return {
        "rows_per_session": mean(run.rows for run in found),
        "delivered": mean(run.delivered for run in found),
        "fed": mean(run.fed for run in found),
    }


def table(runs: Sequence[Run]) -> str:
    """Return the table of docs/harnesses.md."""
    lines = [
        "| set-up | version | dialect | rows per linear session | delivered | fed | cells passed | notes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, setup in SETUPS.items():
        own = [run for run in runs if run.set_up == name]
        if not own:
            continue
        figures = linear_of(name, own)
        passed = f"{sum(run.passed for run in own)} of {sum(setup.has(case) for case in CASES)}"
        linear = [f"{figures['rows_per_session']:g}", f"{figures['delivered']:.0%}", f"{figures['fed']:.0%}"] if figures else ["", "", ""]
        lines.append(
            "| "
            + " | ".join(
                [name, own[0].version, setup.dialect, *linear, passed, _notes(own, [case for at, case, _ in empty(runs) if at == name])]
            )
            + " |"
        )
    return "\n".join(lines)


def write_table(made: str) -> None:
    """Put it between its marks in the page."""
    page = PAGE.read_text()
    PAGE.write_text(re.sub(rf"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _: f"{BEGIN}\n\n{made}\n\n{END}", page, flags=re.DOTALL))


def _notes(own: Sequence[Run], missing: Sequence[str]) -> str:
    said: dict[str, list[str]] = {"not run": list(missing)} if missing else {}
    for run in own:
        if run.note:
            said.setdefault(("" if run.passed else "FAILED: ") + run.note, []).append(run.case)
    return "; ".join(f"{', '.join(cases)}: {note}" for note, cases in said.items()).replace("|", "\\|").replace("\n", " ")


def _matrix_row(name: str, runs: Sequence[Run]) -> Row:
    own: Mapping[str, Run] = {run.case: run for run in runs if run.set_up == name}
    cells = {case.short: _cell(name, case.name, own.get(case.name)) for case in CASES.values()}
    return {"set_up": name, "version": next(iter(own.values())).version, **cells}


def _cell(name: str, case: str, run: Run | None) -> str:
    if run is None:
        return "?" if SETUPS[name].has(case) else "-"
    return f"{run.rows}" if run.passed else "FAIL"
