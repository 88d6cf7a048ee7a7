"""What commands write to stdout: text and tables for a terminal, otherwise lines of JSON."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TextIO, TypeVar

import msgspec
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from evener.service.exits import visible

T = TypeVar("T")


class Harmless(Console):
    """Shows control characters as text, so that the output of an agent or grader cannot move the cursor or clear the screen."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Return the segments without control characters in their texts."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def console(file: TextIO | None = None, *, width: int | None = None) -> Console:
    """Return the console that a command writes to, by default stdout; without colours if NO_COLOR is set.

    Plain strings are written verbatim: the output of a grader may look like markup. `width` is in characters. None: the terminal's.
    """
    return Harmless(file=file or sys.stdout, no_color="NO_COLOR" in os.environ, width=width, markup=False, emoji=False)


def tell(event: object) -> None:
    """Write one JSON line."""
    sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
    sys.stdout.flush()


def tell_each(events: Iterable[T], columns: Sequence[str], row: Callable[[T], Sequence[str | Text]], *, json: bool | None = None) -> None:
    """Write JSON lines or a table with a row for each event. `json` None: a table on a terminal only."""
    out = console()
    if json is None:
        json = not out.is_terminal
    shown = table(*columns)
    for event in events:
        if json:
            tell(event)
        else:
            shown.add_row(*row(event))
    if not json:
        out.print(shown)


def table(*columns: str) -> Table:
    """Return an empty table with these titles."""
    return Table(*columns, box=None, header_style="bold", pad_edge=False)


def facts(told: Iterable[tuple[str, str | Text]]) -> Table:
    """Return names and facts in two columns."""
    grid = Table.grid(padding=(0, 2))
    for name, fact in told:
        grid.add_row(Text(name, "bold"), Text(fact.strip(), overflow="fold") if isinstance(fact, str) else fact)
    return grid
