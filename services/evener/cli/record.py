"""`evener record`: records a harness that somebody else runs."""

from pathlib import Path
from secrets import token_hex
from typing import Annotated

from cyclopts import Parameter
from cyclopts.types import ExistingDirectory, ExistingFile

from evener.proto.spec import Streaming


async def record(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True)],
    task: ExistingDirectory | None = None,
    reward: float | None = None,
    policy: str = "policy",
    sampling: dict[str, str] | None = None,
    streaming: Streaming = Streaming.LIVE,
    harness: str | None = None,
    quirks: ExistingFile | None = None,
    state: Path | None = None,
) -> int:
    """Record the model calls of a program: `evener record -- python agent.py`.

    The program runs here, with the base URL and key variables of every provider set to a fresh session; its exit code is the command's.
    Without a program the session stays open until Ctrl-C, for any program that uses the printed base URL and key.

    Parameters
    ----------
    command
        Program and arguments, after `--`.
    task
        Task directory: the session is graded as the task says.
    reward
        Score the session by hand.
    policy
        The policy that samples.
    sampling
        Sampling parameters: `--sampling.temperature 0.7`, `--sampling.max-tokens 256`, ... The program's own are only recorded.
    streaming
        `live`: text leaves as it is sampled, for people who watch. `buffered`: answers leave whole, after their commit.
    harness
        The program is this harness (`evener harness list`): use the quirks that it declares.
    quirks
        A TOML file with the program's quirks: docs/harnesses.md, Quirks.
    state
        State folder of the Evener to use.
    """
    from evener.cli.record_session import quirks_of, record_session
    from evener.cli.submission import read
    from evener.harnesses.registry import NO_HARNESS
    from evener.proto.spec import Budgets, GraderSpec, HarnessSpec, Purpose, Sampling
    from evener.proto.tasks import TaskOptions

    options = TaskOptions(
        run_id=f"record-{token_hex(4)}",
        purpose=Purpose.COLLECT,
        harness=HarnessSpec(name=harness or NO_HARNESS, sandbox="none", quirks=quirks_of(harness, quirks)),
        policy=policy,
        sampling=read(Sampling, sampling or {}, "sampling"),
        streaming=streaming,
        budgets=Budgets(attempts=1),
        grader=GraderSpec(name="fixed" if reward is not None else "none"),
    )
    return await record_session(command, options, task=task, reward=reward, state=state)
