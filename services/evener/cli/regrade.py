"""`evener regrade`: grades stored sessions again."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.types import ExistingDirectory, ExistingFile
from cyclopts.validators import Number


async def regrade(
    *sessions: str,
    run_id: str | None = None,
    task: ExistingDirectory | None = None,
    grader: str | None = None,
    option: dict[str, str] | None = None,
    config: ExistingFile | None = None,
    sandbox: str | None = None,
    concurrency: Annotated[int, Parameter(validator=Number(gte=1, lte=256))] = 4,
    trust_local: bool = False,
    state: Path | None = None,
) -> int:
    """Grade stored sessions again, on this machine, and print each old and new reward as a line of JSON.

    The record does not change: the first score of a session counts. Exits with 1 if a session has no reward now.

    Parameters
    ----------
    sessions
        Session ids.
    run_id
        All sessions of this run instead.
    task
        The task directory to grade with, such as one with corrected tests. Default: each session's own.
    grader
        Another grader than the task's.
    option
        Its options: `--option.endpoint judge`, ...
    config
        A configuration file, whose `[evaluator]` has the `endpoints` and `grader_modules`.
    sandbox
        Where tests run: `docker`, `bubblewrap` or `local`. Default: where the session ran.
    concurrency
        The number of gradings at a time.
    trust_local
        Let tests, and what agents left, run on this machine with your rights.
    state
        State folder of the Evener to use.
    """
    from evener.cli.errors import Usage
    from evener.cli.regrading import RegradeRequest, regrade_sessions

    if bool(sessions) == (run_id is not None):
        msg = "give sessions, or --run-id"
        raise Usage(msg)
    wanted = RegradeRequest(
        task=task, grader=grader, options=option or {}, config=config, sandbox=sandbox, concurrency=concurrency, trust_local=trust_local
    )
    return await regrade_sessions(sessions, run_id, wanted, state)
