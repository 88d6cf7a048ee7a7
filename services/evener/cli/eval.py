"""`evener eval`: evaluates harnesses on sets of tasks."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.types import ExistingDirectory
from cyclopts.validators import Number

from evener.proto.spec import Streaming


async def eval(  # noqa: A001 - the command's name
    *tasks: ExistingDirectory,
    harness: list[str],
    samples: Annotated[int, Parameter(validator=Number(gte=1, lte=1024))] = 4,
    k: list[int] | None = None,
    solved_at: float = 1.0,
    run_id: str | None = None,
    priority: Annotated[int, Parameter(validator=Number(gte=1, lte=100))] = 1,
    policy: str = "policy",
    option: dict[str, str] | None = None,
    sampling: dict[str, str] | None = None,
    budgets: dict[str, str] | None = None,
    models: list[str] | None = None,
    sandbox: str | None = None,
    trust_local: bool = False,
    out: Path | None = None,
    state: Path | None = None,
) -> int:
    """Evaluate each harness on each set of tasks: pass@1 and pass@k with intervals of 95 %, as a table, JSON and an SVG picture.

    Nothing of it reaches trainers. Exits with 1 if a task has no graded session. Ctrl-C leaves the evaluation: the same command with its
    --run-id goes on where it stopped.

    Parameters
    ----------
    tasks
        Sets of tasks: folders of task directories (Harbor format), or single ones.
    harness
        The agent programs, one --harness for each.
    samples
        Sessions of each task.
    k
        The ks of pass@k, one --k for each. Default: 1 and the number of samples.
    solved_at
        The least reward that counts as solved.
    run_id
        Name of this evaluation. Each harness and set is a run called NAME.HARNESS.SET. Default: a new name.
    priority
        This evaluation's share of the runners while other runs wait too: 3 gets three times the sessions of 1.
    policy
        The policy that samples.
    option
        Options of the harnesses: `--option.turns ...`.
    sampling
        Sampling parameters: `--sampling.temperature 0.7`, ...
    budgets
        Limits of a session: `--budgets.calls 20`, ...
    models
        Where calls to another model name go, as with `evener run`.
    sandbox
        Where harnesses and tests run: `docker`, `bubblewrap` or `local`. Default: as with `evener run`.
    trust_local
        Let a harness with tools run on this machine, with your rights (if this command starts the services).
    out
        Folder for `evaluation.json` and `evaluation.svg`. Default: they are not written.
    state
        State folder of the Evener to use.
    """
    from evener.cli.errors import Usage
    from evener.cli.evaluation import EvaluationRequest, evaluate, plan_arms
    from evener.cli.submission import RunRequest, harness_spec, model_map, read, run_name
    from evener.proto.spec import Budgets, Purpose, Sampling

    if not tasks:
        msg = "give a folder of tasks"
        raise Usage(msg)
    name = run_name(run_id, "eval")
    ks = tuple(sorted(set(k or (1, samples))))
    if ks[0] < 1 or ks[-1] > samples:
        msg = f"--k is from 1 to the number of samples ({samples})"
        raise Usage(msg)
    requests = [
        RunRequest(
            run_id=name,
            priority=priority,
            harness=harness_spec(one, option or {}),
            samples=samples,
            purpose=Purpose.EVAL,
            policy=policy,
            sampling=read(Sampling, sampling or {}, "sampling"),
            budgets=read(Budgets, budgets or {}, "budgets"),
            models=model_map(models or (), policy),
            streaming=Streaming.BUFFERED,
        )
        for one in dict.fromkeys(harness)
    ]
    arms = plan_arms(requests, tasks, sandbox)
    wanted = EvaluationRequest(name=name, ks=ks, solved_at=solved_at, trust_local=trust_local, out=out, state=state)
    return await evaluate(arms, wanted)
