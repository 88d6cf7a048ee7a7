"""From task directories to submitted tasks."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, TypeVar

from msgspec import Struct, structs

from evener.cli.errors import Usage
from evener.client.client import Client
from evener.harnesses.port import Harness, HarnessError
from evener.harnesses.quirks_file import read_quirks
from evener.harnesses.registry import harness
from evener.proto.errors import EvenerError
from evener.proto.spec import Budgets, HarnessSpec, Purpose, Quirks, Sampling, Streaming
from evener.proto.tasks import TaskOptions
from evener.service.exits import complain
from evener.service.settings import Setting, Text, convert, known
from evener.tasks.directory import Task, find, load
from evener.tasks.errors import TaskError
from evener.tasks.pack import Packed, pack

RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
StructT = TypeVar("StructT", bound=Struct)


class TaskNeedsMore(EvenerError):
    """Leave it out, or make it a task for a plain working directory: no image, no network rules."""


class Wish(Struct, frozen=True, kw_only=True):
    """What a user wants done with all tasks of a run."""

    run_id: str
    harness: HarnessSpec
    samples: int
    purpose: Purpose
    policy: str = "policy"
    sampling: Sampling = Sampling()
    budgets: Budgets = Budgets()
    streaming: Streaming = Streaming.HOLD


class Planned(Struct, frozen=True, kw_only=True):
    """A task, ready to be submitted."""

    task_id: str
    packed: Packed
    options: TaskOptions


def plan(folder: Path, wish: Wish) -> list[Planned]:
    """Read and pack the task in `folder`, or all tasks in it. Raises TaskError. Blocks: for a thread."""
    planned: dict[str, Planned] = {}
    for path in find(folder):
        task = load(path)
        if task.needs and wish.harness.sandbox == "local":
            msg = f"task {path} needs what the sandbox `local` cannot give: {', '.join(task.needs)}"
            raise TaskNeedsMore(msg)
        task_id = task_id_of(wish.run_id, task.name)
        if task_id in planned:
            msg = f"two tasks in {folder} are called {task.name!r}: give one of them another name in its task.toml"
            raise TaskError(msg)
        planned[task_id] = Planned(task_id=task_id, packed=pack(path), options=_options(wish, task))
    return list(planned.values())


async def submit(client: Client, planned: Sequence[Planned]) -> None:
    """Put the tasks' archives into the blob store and submit them. Under the same ids again, it changes nothing."""
    for each in planned:
        await client.put_blob(each.packed.data)
        await client.submit(each.options, task=each.packed.ref, task_id=each.task_id)


def run_name(given: str | None, prefix: str) -> str:
    """Return the name of a run, a new one where none is given. Raises Usage."""
    name = given or f"{prefix}-{token_hex(4)}"
    if not RUN_ID.fullmatch(name):
        msg = f"--run-id {name!r} is not 1 to 60 letters, digits, '.', '_' and '-' that begin with a letter or digit"
        raise Usage(msg)
    return name


def task_id_of(run_id: str, name: str) -> str:
    """Return the task id that a run gives to a task: at most 100 letters, digits, '.', '_' and '-'."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", f"{run_id}.{name}")[:100]


def harness_spec(name: str, options: Mapping[str, str], quirks: Path | None = None) -> HarnessSpec:
    """Return a harness by name, with its options and quirks in a file. Raises Usage where it is unknown, or an option of it is."""
    found = known_harness(name)
    try:
        found.check(options)
    except HarnessError as cause:
        raise Usage(str(cause.args[0])) from cause
    return HarnessSpec(name=name, options=dict(options), quirks=known_quirks(None, quirks))


def known_quirks(name: str | None, file: Path | None) -> Quirks | None:
    """Return what is special about a harness: as a file says, or as the harness of this name declares. None: neither is given."""
    try:
        if file is not None:
            return read_quirks(file)
        return None if name is None else harness(name).quirks
    except HarnessError as cause:
        raise Usage(str(cause.args[0])) from cause


def known_harness(name: str) -> Harness:
    """Return the harness of this name. Raises Usage where it is unknown."""
    try:
        return harness(name)
    except HarnessError as cause:
        raise Usage(str(cause.args[0])) from cause


def trusting(wish: Wish, *, trust_local: bool) -> tuple[str, ...]:
    """Return the options of an `up` that is started for the wish; where trust is needed and given, say what it means.

    Raises Usage where it is needed and not given.
    """
    if not trust_local:
        if harness(wish.harness.name).has_tools:
            msg = (
                f"harness {wish.harness.name} has tools, and a `local` sandbox is a plain process: what the model writes would run on "
                "this machine with your rights. Give --trust-local if you trust the tasks and the model"
            )
            raise Usage(msg)
        return ()
    if harness(wish.harness.name).has_tools:
        complain(
            f"warning: harness {wish.harness.name} has tools, and a `local` sandbox is a plain process: what the model writes runs on "
            "this machine with your rights; use tasks and models that you trust"
        )
    return ("--trust-local",)


def read(kind: type[StructT], given: Mapping[str, str], flag: str) -> StructT:
    """Return flags `--FLAG.KEY VALUE` as a Struct. Raises ConfigError naming the key."""
    types = {field.name: field.type for field in structs.fields(kind)}
    values: dict[str, Any] = {}
    for key, value in given.items():
        name = key.replace("-", "_")
        known(name, types, f"in --{flag}.{key}")
        values[name] = convert(Setting(Text(value), f"--{flag}.{key}"), types[name])
    return kind(**values)


def _options(wish: Wish, task: Task) -> TaskOptions:
    budgets = wish.budgets
    if budgets.agent_seconds is None and task.agent_seconds is not None:
        budgets = structs.replace(budgets, agent_seconds=task.agent_seconds)
    return TaskOptions(
        run_id=wish.run_id,
        samples=wish.samples,
        purpose=wish.purpose,
        harness=wish.harness,
        policy=wish.policy,
        sampling=wish.sampling,
        streaming=wish.streaming,
        budgets=budgets,
        grader=task.grader,
    )
