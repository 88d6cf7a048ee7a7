"""`evener tasks`: imports, lists and validates tasks."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.types import ExistingDirectory
from cyclopts.validators import Number

app = App(name="tasks", help="Import, list and validate tasks.", result_action="return_value")


@app.command(name="import")
async def import_(
    source: str,
    *,
    out: Path,
    format: Annotated[str | None, Parameter(name="--format")] = None,  # noqa: A002
    split: str | None = None,
    prompt: str | None = None,
    answer: str | None = None,
    name: str | None = None,
    match: str | None = None,
    endpoint: str = "judge",
    rubric: str | None = None,
    image: str | None = None,
    repositories: ExistingDirectory | None = None,
    limit: Annotated[int | None, Parameter(validator=Number(gte=1))] = None,
) -> int:
    """Write tasks of other formats as task directories. Exits with 1 if one could not be imported; the others are.

    The same import again replaces the tasks by themselves.

    Parameters
    ----------
    source
        A folder of tasks, a file or folder of rows (*.jsonl, *.json, *.parquet), or `hf:NAME` or `hf:NAME@CONFIGURATION` for a data set of
        the Hugging Face hub, which the package `datasets` reads, `harbor:NAME` or `harbor:NAME@VERSION` for one that the program `harbor`
        downloads, or `verifiers:NAME` for a taskset of the package `verifiers`.
    out
        The folder for the task directories.
    format
        `harbor`, `rows` (a prompt and its answer), `nemo-gym`, `swe-bench`, `swe-gym`, `swe-rebench`, `swe-smith`,
        `r2e-gym`, `terminal-bench` (version 1) or `verifiers`. Default: what the source looks like.
    split
        The split of a data set on the hub. Default: `test`, or the first.
    prompt
        The column with the instruction, or a field of it: `column.field`. Default: the first known one.
    answer
        The column with the right answer, or a list of them. Default: the first known one.
    name
        The column with the tasks' names. Default: an id, otherwise numbers.
    match
        How answers are compared: `exact`, `contains`, `regex`, `number`, `judge` (by a model) or `http` (by a verifier that gets the row).
        Default: `number` where the answer is one, otherwise `exact`.
    endpoint
        The name of the evaluator's endpoint that judges or verifies.
    rubric
        What a judge is told.
    image
        A template for the images of repositories instead of the data set's: `{instance_id}`, `{image_key}`, `{repo_name}`.
    repositories
        A folder with clones (`OWNER__NAME` or `NAME`). Tasks then bring the files of their base commit, and need no image.
    limit
        The largest number of tasks.
    """
    from evener.cli.task_import import import_tasks
    from evener.tasks.imports.port import ImportOptions

    defaults = ImportOptions()
    options = ImportOptions(
        split=split,
        prompt=prompt,
        answer=answer,
        name=name,
        match=match,
        endpoint=endpoint,
        rubric=rubric or defaults.rubric,
        image=image,
        repositories=repositories,
        limit=limit,
    )
    return await import_tasks(source, out, format, options)


@app.command(name="list")
async def list_(folder: ExistingDirectory, *, json: bool = False) -> int:
    """List the tasks of a folder: grader, image, oracle, what they need. Exits with 1 if one cannot be read.

    Parameters
    ----------
    folder
        A task directory, or a folder of them.
    json
        Print JSON lines instead of a table.
    """
    from evener.cli.task_list import list_tasks

    return list_tasks(folder, json=json)


@app.command
async def validate(
    folder: ExistingDirectory,
    *,
    sandbox: str | None = None,
    times: Annotated[int, Parameter(validator=Number(gte=1, lte=100))] = 2,
    concurrency: Annotated[int, Parameter(validator=Number(gte=1, lte=256))] = 4,
    trust_local: bool = False,
    json: bool = False,
) -> int:
    """Try tasks before anybody spends GPU time: their own solution must score 1, an agent that does nothing must not, and each time alike.

    Exits with 1 if a task has a fault: `oracle_fails`, `passes_without_work`, `flaky`, `no_reward` or `unreadable`.

    Parameters
    ----------
    folder
        A task directory, or a folder of them.
    sandbox
        Where solutions and tests run: `docker`, `bubblewrap` or `local`. Default: what the task names, otherwise `local`.
    times
        How often each is tried.
    concurrency
        The number of tasks at a time.
    trust_local
        Let solutions and tests run on this machine, with your rights.
    json
        Print JSON lines instead of a table.
    """
    from evener.cli.task_validation import validate_tasks

    return await validate_tasks(folder, sandbox, times=times, concurrency=concurrency, trust_local=trust_local, json=json)
