"""Where the proof commands leave their figures: outputs/<target>.json for machines, a table for people."""

import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

OUTPUTS = Path(__file__).parents[1] / "outputs"
PIPED_COLUMNS = 140
TICKS = os.sysconf("SC_CLK_TCK")
Row = Mapping[str, str | float | int | None]


def report(target: str, title: str, rows: Sequence[Row], **about: object) -> Path:
    """Show `rows`, write them and what is said `about` them to outputs/<target>.json, return the file's path.

    The machine, and its load averages over the last 1, 5 and 15 minutes, stand beside them.
    """
    show(title, rows)
    OUTPUTS.mkdir(exist_ok=True)
    path = OUTPUTS / f"{target}.json"
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "system": platform.system()}
    written = {"target": target, "at": time.time(), "machine": machine, "load": os.getloadavg(), **about, "rows": list(rows)}
    path.write_text(json.dumps(written, indent=2) + "\n")
    return path


def show(title: str, rows: Sequence[Row]) -> None:
    """Print a table. Columns are the keys of all rows, in the order in which they first come; a row without one has an empty cell there."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(title=title)
    for column in columns:
        numeric = any(isinstance(row.get(column), int | float) for row in rows)
        table.add_column(column.replace("_", " "), justify="right" if numeric else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    console = Console()
    (console if console.is_terminal else Console(width=PIPED_COLUMNS)).print(table)


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` (0 to 1) of `values` lie. Raises IndexError for none."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, without that of its children. Raises OSError if there is no such process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def children(pid: int) -> list[int]:
    """Return the process ids of a process's children. Raises OSError if there is no such process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _cell(value: str | float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.2f}" if isinstance(value, float) else str(value)
