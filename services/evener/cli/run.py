"""`evener run`: runs tasks with a harness."""

from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from cyclopts.types import ExistingDirectory, ExistingFile
from cyclopts.validators import Number

from evener.harnesses.registry import names
from evener.proto.spec import Purpose, Streaming

HARNESSES: Final = f"The agent program: {', '.join(names())}. `evener harness show NAME` describes its options."


async def run(
    tasks: ExistingDirectory,
    *,
    harness: Annotated[str, Parameter(help=HARNESSES)],
    samples: Annotated[int, Parameter(validator=Number(gte=1, lte=1024))] = 4,
    purpose: Purpose = Purpose.TRAIN,
    run_id: str | None = None,
    priority: Annotated[int, Parameter(validator=Number(gte=1, lte=100))] = 1,
    policy: str = "policy",
    option: dict[str, str] | None = None,
    quirks: ExistingFile | None = None,
    sampling: dict[str, str] | None = None,
    budgets: dict[str, str] | None = None,
    group: dict[str, str] | None = None,
    models: list[str] | None = None,
    streaming: Streaming = Streaming.BUFFERED,
    sandbox: str | None = None,
    trust_local: bool = False,
    state: Path | None = None,
) -> int:
    """Run tasks and show their progress.

    Uses the running `evener up`, or starts one for the duration of the command. Exits with 0 if every group was delivered, or dropped by a
    rule of the run; with 1 if one was neither; with 3 if one has nothing to train, or all were dropped. Ctrl-C leaves the run: see
    `--run-id`, and `evener cancel`.

    Parameters
    ----------
    tasks
        A task directory (Harbor format), or a folder of them.
    samples
        Sessions of each task: the size of its group.
    purpose
        What the groups are for. Only `train` reaches trainers.
    run_id
        Name of this run. The same command with the same name continues where it stopped. Default: a new name.
    priority
        This run's share of the runners while other runs wait too: 3 gets three times the sessions of 1.
    policy
        The policy that samples.
    option
        Options of the harness: `--option.turns ...`.
    quirks
        A TOML file with the quirks of the program of `command`, or of another harness instead of those that it declares:
        docs/harnesses.md, Quirks.
    sampling
        Sampling parameters: `--sampling.temperature 0.7`, `--sampling.max-tokens 256`, ...
    budgets
        Limits of a session: `--budgets.calls 20`, `--budgets.agent-seconds 300`, ...
    group
        When a group is delivered, and which sessions are excluded: `--group.deliver-early-at M`, `--group.min-usable K`,
        `--group.max-staleness S`, `--group.drop-zero-variance true`: docs/training.md, Group rules.
    models
        Where calls to another model name go, once for each name: `--models NAME=policy`, `--models NAME=frozen:ENGINE`,
        `--models NAME=refuse:REASON`. The name `*` stands for all others; without it they go to the policy.
    streaming
        `buffered`: answers leave whole, after their commit, and the harness does not notice a gateway that dies. `live`: text leaves as
        it is sampled.
    sandbox
        Where the harness and the tests run: `docker` (containers), `bubblewrap` (namespaces) or `local` (plain processes). Default: what
        the task names, otherwise what `evener up --sandbox` says or, without that, what isolates: docs/sandboxes.md.
    trust_local
        Let a harness with tools run on this machine, with your rights (if this command starts the services).
    state
        State folder of the Evener to use.
    """
    from evener.cli.run_tasks import run_tasks
    from evener.cli.submission import RunRequest, harness_spec, model_map, read, run_name
    from evener.proto.spec import Budgets, GroupOptions, Sampling

    run_request = RunRequest(
        run_id=run_name(run_id, "run"),
        priority=priority,
        harness=harness_spec(harness, option or {}, quirks),
        samples=samples,
        purpose=purpose,
        policy=policy,
        sampling=read(Sampling, sampling or {}, "sampling"),
        budgets=read(Budgets, budgets or {}, "budgets"),
        group=read(GroupOptions, group or {}, "group"),
        models=model_map(models or (), policy),
        streaming=streaming,
    )
    return await run_tasks(tasks, run_request, sandbox=sandbox, trust_local=trust_local, state=state)
