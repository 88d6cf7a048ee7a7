"""Plans and submits the tasks of a run."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, TypeVar

from msgspec import Struct, structs

from evener.cli.errors import Usage
from evener.cli.task_needs import check_name, check_needs
from evener.client.client import Client
from evener.harnesses.quirks_file import read_quirks
from evener.harnesses.registry import harness
from evener.proto.errors import ConfigError
from evener.proto.names import unknown
from evener.proto.spec import Budgets, GroupOptions, HarnessSpec, Purpose, Sampling, Streaming, Target
from evener.proto.tasks import TaskOptions, group_problem
from evener.sandboxes.registry import BACKENDS
from evener.service.text_values import from_text
from evener.tasks.directory import Task, find, load
from evener.tasks.errors import TaskError
from evener.tasks.pack import Packed, pack

RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
StructT = TypeVar("StructT", bound=Struct)


class RunRequest(Struct, frozen=True, kw_only=True):
    """What to do with all tasks of a run: TaskOptions without the grader, which each task brings."""

    run_id: str
    priority: int = 1
    harness: HarnessSpec
    samples: int
    purpose: Purpose
    policy: str = "policy"
    sampling: Sampling = Sampling()
    budgets: Budgets = Budgets()
    group: GroupOptions = GroupOptions()
    models: dict[str, Target] = {}
    streaming: Streaming = Streaming.BUFFERED


class Planned(Struct, frozen=True, kw_only=True):
    """A task that is ready to be submitted."""

    task_id: str
    packed: Packed
    options: TaskOptions
    task: Task
    """What the task directory says."""
    chosen: bool = True
    """Whether the run or the task named the sandbox. If not, `sandbox_choice.placed` chooses it."""


def plan(folder: Path, run_request: RunRequest, sandbox: str | None = None) -> list[Planned]:
    """Read and pack the task in `folder`, or all tasks in it. Raises TaskError, Usage. Blocks: call it in a thread.

    `sandbox`: the backend of all of them. None: each task's own; where it names none, that is still to be chosen.
    """
    check_name(sandbox)
    planned: dict[str, Planned] = {}
    for path in find(folder):
        task = load(path)
        named = sandbox or task.backend
        check_needs(task, (named,) if named else BACKENDS)
        task_id = task_id_of(run_request.run_id, task.name)
        if task_id in planned:
            msg = f"two tasks in {folder} are called {task.name!r}: give one of them another name in its task.toml"
            raise TaskError(msg)
        options = _options(run_request, task, named or run_request.harness.sandbox)
        planned[task_id] = Planned(task_id=task_id, packed=pack(path), options=options, task=task, chosen=named is not None)
    return list(planned.values())


async def submit(client: Client, planned: Sequence[Planned]) -> None:
    """Put the tasks' archives into the blob store and submit them. Submitting the same ids again changes nothing."""
    for each in planned:
        await client.put_blob(each.packed.data)
        await client.submit(each.options, task=each.packed.ref, task_id=each.task_id)


def run_name(given: str | None, prefix: str) -> str:
    """Return the name of a run, a new one if none is given. Raises Usage."""
    name = given or f"{prefix}-{token_hex(4)}"
    if not RUN_ID.fullmatch(name):
        msg = f"--run-id {name!r} is not 1 to 60 letters, digits, '.', '_' and '-' that begin with a letter or digit"
        raise Usage(msg)
    return name


def task_id_of(run_id: str, name: str) -> str:
    """Return the id of a task in a run: at most 100 letters, digits, '.', '_' and '-'."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{run_id}.{name}")[:100]


def harness_spec(name: str, options: Mapping[str, str], quirks: Path | None = None) -> HarnessSpec:
    """Return the spec of a harness with its options and a file of quirks. Raises HarnessError if one of them is wrong."""
    harness(name).check(options)
    return HarnessSpec(name=name, options=dict(options), quirks=None if quirks is None else read_quirks(quirks))


def model_map(given: Iterable[str], policy: str) -> dict[str, Target]:
    """Return what NAME=TARGET says of each model name. Raises Usage."""
    targets: dict[str, Target] = {}
    for each in given:
        name, _, target = each.partition("=")
        kind, _, value = target.partition(":")
        match kind:
            case "policy" if name and not value:
                targets[name] = Target(policy=policy)
            case "frozen" if name and value:
                targets[name] = Target(frozen=value)
            case "refuse" if name and value:
                targets[name] = Target(refuse=value)
            case _:
                msg = f"--models {each!r} is not one of NAME=policy, NAME=frozen:ENGINE and NAME=refuse:REASON"
                raise Usage(msg)
    return targets


def read(kind: type[StructT], given: Mapping[str, str], flag: str) -> StructT:
    """Return flags `--FLAG.KEY VALUE` as a Struct. Raises ConfigError naming the key."""
    types = {field.name: field.type for field in structs.fields(kind)}
    values: dict[str, Any] = {}
    for key, value in given.items():
        name = key.replace("-", "_")
        if name not in types:
            msg = unknown("key", name, types, f"in --{flag}.{key}")
            raise ConfigError(msg)
        try:
            values[name] = from_text(value, types[name])
        except ValueError as cause:
            msg = f"--{flag}.{key}: {cause}"
            raise ConfigError(msg) from cause
    return kind(**values)


def _options(run_request: RunRequest, task: Task, sandbox: str) -> TaskOptions:
    options = TaskOptions(**structs.asdict(run_request), grader=task.grader)
    options = structs.replace(options, harness=structs.replace(options.harness, sandbox=sandbox))
    if options.budgets.agent_seconds is None and task.agent_seconds is not None:
        options = structs.replace(options, budgets=structs.replace(options.budgets, agent_seconds=task.agent_seconds))
    if (problem := group_problem(options)) is not None:
        field, what = problem
        msg = f"--group.{field.replace('_', '-')}: {what}"
        raise Usage(msg)
    return options
