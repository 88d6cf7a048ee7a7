"""`evener run`: tasks through a harness."""

from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter
from cyclopts.types import ExistingDirectory, ExistingFile
from cyclopts.validators import Number

from evener.harnesses.registry import names
from evener.proto.spec import Purpose, Streaming

HARNESSES: Final = f"The agent program: {', '.join(names())}. `evener harness show NAME` tells its options."
Keys = Annotated[dict[str, str] | None, Parameter(negative="")]


async def run(
    tasks: ExistingDirectory,
    *,
    harness: Annotated[str, Parameter(help=HARNESSES)],
    samples: Annotated[int, Parameter(validator=Number(gte=1, lte=1024))] = 4,
    purpose: Purpose = Purpose.TRAIN,
    run_id: str | None = None,
    policy: str = "policy",
    option: Keys = None,
    quirks: ExistingFile | None = None,
    sampling: Keys = None,
    budgets: Keys = None,
    streaming: Streaming = Streaming.HOLD,
    trust_local: Annotated[bool, Parameter(negative="")] = False,
    state: Path | None = None,
) -> int:
    """Run tasks, and show how they go on.

    Talks to the running `evener up`; where there is none, starts one for its own time. Exits with 0 if every group was delivered, 1 if one
    was not, 3 if one was delivered for training and has nothing to train. Ctrl-C leaves the run: see `--run-id`, and `evener cancel`.

    Parameters
    ----------
    tasks
        A task directory (Harbor format), or a folder of them.
    samples
        Sessions of each task: the size of its group.
    purpose
        What the groups are for; only `train` reaches trainers.
    run_id
        Name of this run; the same command with the same name goes on where it stopped. None: a new one.
    policy
        The policy that samples.
    option
        Options of the harness: `--option.turns ...`.
    quirks
        A TOML file that says what is special about the program of `command`, or of another harness instead of what it declares:
        docs/harnesses.md, Quirks.
    sampling
        Sampling parameters: `--sampling.temperature 0.7`, `--sampling.max-tokens 256`, ...
    budgets
        Limits of a session: `--budgets.calls 20`, `--budgets.agent-seconds 300`, ...
    streaming
        `hold`: answers leave whole, after their commit, and a gateway that dies is not noticed. `live`: text leaves as it is sampled.
    trust_local
        Let a harness with tools run on this machine, with your rights (where this command starts the services).
    state
        State folder of the Evener to use.
    """
    from evener.cli.running_tasks import run_tasks
    from evener.cli.submitting import Wish, harness_spec, read, run_name
    from evener.proto.spec import Budgets, Sampling

    wish = Wish(
        run_id=run_name(run_id, "run"),
        harness=harness_spec(harness, option or {}, quirks),
        samples=samples,
        purpose=purpose,
        policy=policy,
        sampling=read(Sampling, sampling or {}, "sampling"),
        budgets=read(Budgets, budgets or {}, "budgets"),
        streaming=streaming,
    )
    return await run_tasks(tasks, wish, trust_local=trust_local, state=state)
