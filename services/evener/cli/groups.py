"""`evener groups`: exports what trainers get."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

app = App(name="groups", help="Export delivered groups.", result_action="return_value")


@app.command
async def export(
    *,
    out: Path,
    format: Annotated[str | None, Parameter(name="--format")] = None,  # noqa: A002
    run_id: str | None = None,
    purpose: Literal["train", "eval", "collect", "all"] = "train",
    state: Path | None = None,
) -> int:
    """Write the rows of all delivered groups into a file.

    Parameters
    ----------
    out
        File to write.
    format
        Format of the file: `jsonl`, `parquet`, or another of evener.formats.registry. Default: by its extension.
    run_id
        Export only groups of this run.
    purpose
        Export only groups of this purpose. Each row names its own.
    state
        State folder of the Evener to use.
    """
    from evener.cli.connection import connect
    from evener.cli.group_files import check_folder, export_groups, format_of
    from evener.cli.output import tell
    from evener.proto.spec import Purpose
    from evener.service.exits import complain

    kind = format_of(out, format)
    check_folder(out)
    async with connect(state) as client:
        exported = await export_groups(client, out, kind, run_id, None if purpose == "all" else Purpose(purpose))
    for warning in exported.warnings():
        complain(f"warning: {warning}")
    tell(exported)
    return 0
