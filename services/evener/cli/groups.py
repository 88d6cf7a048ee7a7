"""`evener groups`: what trainers get, as files."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from evener.proto.spec import Purpose

app = App(name="groups", help="Export what trainers get.", result_action="return_value")


@app.command
async def export(
    *,
    out: Path,
    format: Annotated[Literal["jsonl", "parquet"] | None, Parameter(name="--format")] = None,  # noqa: A002
    run_id: str | None = None,
    purpose: Purpose | None = None,
    state: Path | None = None,
) -> int:
    """Write the rows of all delivered groups into a file, one line or row each.

    Parameters
    ----------
    out
        File to write.
    format
        None: by the file's ending.
    run_id
        Only groups of this run.
    purpose
        Only groups of this purpose.
    state
        State folder of the Evener to use.
    """
    from evener.cli.exporting import fetch, format_of, write_groups
    from evener.cli.progress import tell
    from evener.cli.running import evener
    from evener.service.exits import complain

    kind = format_of(out, format)
    async with evener(state) as client:
        groups = await fetch(client, run_id, purpose)
    rows = await write_groups(out, kind, groups)
    if not groups:
        complain("warning: no such group has ended yet; the file is empty")
    tell({"file": str(out), "groups": len(groups), "rows": rows})
    return 0
