"""`evener groups`: what trainers get, as files."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

app = App(name="groups", help="Export what trainers get.", result_action="return_value")


@app.command
async def export(
    *,
    out: Path,
    format: Annotated[Literal["jsonl", "parquet"] | None, Parameter(name="--format")] = None,  # noqa: A002
    run_id: str | None = None,
    purpose: Literal["train", "eval", "collect", "all"] = "train",
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
        Only groups of this purpose; each row names its own.
    state
        State folder of the Evener to use.
    """
    from evener.cli.exporting import check_folder, export_groups, format_of
    from evener.cli.progress import tell
    from evener.cli.running import evener
    from evener.proto.spec import Purpose
    from evener.service.exits import complain

    kind = format_of(out, format)
    check_folder(out)
    async with evener(state) as client:
        exported = await export_groups(client, out, kind, run_id, None if purpose == "all" else Purpose(purpose))
    for warning in exported.warnings():
        complain(f"warning: {warning}")
    tell(exported)
    return 0
