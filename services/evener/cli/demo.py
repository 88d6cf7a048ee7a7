"""`evener demo`: the whole path once, from tasks to a report."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number


async def demo(
    *,
    harness: str = "script",
    samples: Annotated[int, Parameter(validator=Number(gte=1, lte=1024))] = 4,
    out: Path = Path("outputs/demo"),
    sandbox: str | None = None,
    trust_local: bool = False,
    state: Path | None = None,
) -> int:
    """Run the bundled tasks with a real model on this machine; write summary.json, groups.jsonl, groups.parquet and report.html.

    Parameters
    ----------
    harness
        The agent program: `script`, or `pi` (with --trust-local).
    samples
        Sessions of each task.
    out
        Folder for the results.
    sandbox
        Where the harness and the tests run: `docker`, `bubblewrap` or `local`.
    trust_local
        Let a harness with tools run on this machine, with your rights.
    state
        State folder of the Evener to use.
    """
    from evener.cli.demo_run import demonstrate

    return await demonstrate(harness, samples, out, sandbox=sandbox, trust_local=trust_local, state=state)
