"""`evener groups`: exports what trainers get."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.types import ExistingFile

app = App(name="groups", help="Export delivered groups.", result_action="return_value")


@app.command
async def export(
    *,
    out: Path,
    format: Annotated[str | None, Parameter(name="--format")] = None,  # noqa: A002
    run_id: str | None = None,
    purpose: Literal["train", "eval", "collect", "all"] = "train",
    rewards: ExistingFile | None = None,
    state: Path | None = None,
) -> int:
    """Write the rows of all delivered groups into a file.

    Parameters
    ----------
    out
        File to write.
    format
        Format of the file: `jsonl`, `parquet`, or that of a trainer (docs/trainers.md). Default: by its extension.
    run_id
        Export only groups of this run.
    purpose
        Export only groups of this purpose. Each row names its own.
    rewards
        What `evener regrade` printed: its rewards replace the recorded ones, and rows name the file (`regrade`). Of several lines for a
        session the last counts; a session that has no reward there is left out.
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
        wanted = None if purpose == "all" else Purpose(purpose)
        exported = await export_groups(client, out, kind, run_id=run_id, purpose=wanted, rewards=rewards)
    for warning in exported.warnings():
        complain(f"warning: {warning}")
    tell(exported)
    return 0
