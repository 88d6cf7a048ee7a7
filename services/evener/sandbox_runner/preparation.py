"""Prepares what a session needs before its harness can start: the harness's bundle, the task's files, a sandbox."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from msgspec import Struct, structs

from evener.blobs.port import Blobs
from evener.harnesses.mcp import not_taken
from evener.harnesses.port import Harness, HarnessError
from evener.harnesses.registry import NO_HARNESS
from evener.harnesses.registry import harness as harness_named
from evener.proto.sandbox import Mount
from evener.proto.spec import HarnessSpec, Quirks, SessionSpec, TaskRef
from evener.runtime.folders import temporary_folder
from evener.sandbox_runner.context import RunnerContext
from evener.sandbox_runner.core import NoStart, allow
from evener.sandboxes.cleaning import Unclean, clean
from evener.sandboxes.health import wait_until_healthy
from evener.sandboxes.port import BUNDLES, Sandbox
from evener.sandboxes.registry import lacks
from evener.tasks.directory import Task
from evener.tasks.errors import TaskError
from evener.tasks.pack import unpacked
from evener.tasks.tables import Cleaning


class PreparedLaunch(Struct, frozen=True, kw_only=True, eq=False):
    """Everything that a launch needs."""

    harness: Harness
    bundle: Path
    """Where programs in the sandbox find the harness's bundle."""
    task: Task
    """The task. Its files are there until the attempt has ended."""
    sandbox: Sandbox


def chosen(spec: SessionSpec, *, trust_local: bool) -> Harness:
    """Return the harness that may run this session. Raises NoStart."""
    try:
        harness = harness_named(spec.harness.name)
        harness.check(spec.harness.options)
    except HarnessError as cause:
        raise NoStart(str(cause)) from cause
    allow(spec.harness, has_tools=harness.has_tools, trust_local=trust_local)
    return harness


def declared(spec: HarnessSpec, harness: Harness | None) -> Quirks:
    """Return a harness's quirks, those of its run or those of its folder. `harness` None: somebody else runs it."""
    if spec.quirks is not None:
        return spec.quirks
    if harness is not None:
        return harness.quirks
    if spec.name == NO_HARNESS:
        return Quirks()
    try:
        return harness_named(spec.name).quirks
    except HarnessError:  # a recording of whatever it is
        return Quirks()


async def prepare(stack: AsyncExitStack, spec: SessionSpec, name: str, harness: Harness, context: RunnerContext) -> PreparedLaunch:
    """Open a sandbox called `name` on the stack, with the task's files. Raises NoStart, BlobError, SandboxError."""
    if spec.task is None:
        msg = f"harness {harness.name} needs a task to work on; only recordings have none"
        raise NoStart(msg)
    backend = context.sandboxes.get(spec.harness.sandbox)
    if backend is None:
        msg = f"this runner has no `{spec.harness.sandbox}` sandboxes: they are not configured, or the machine lacks what they need"
        raise NoStart(msg)
    bundle = await context.bundles.bundle(harness)
    folder = await stack.enter_async_context(temporary_folder("evener-task-"))
    task = await _unpacked(context.blobs, spec.task, folder, spec.harness.sandbox)
    if (problem := not_taken(harness, task.mcp_servers)) is not None:
        raise NoStart(problem)
    has_bundle = await asyncio.to_thread(bundle.is_dir)
    place = f"{BUNDLES}/{bundle.name}"
    wanted = structs.replace(task.sandbox, mounts=(Mount(source=str(bundle), place=place),) if has_bundle else ())
    sandbox = await stack.enter_async_context(backend.open(name, wanted))
    if task.environment is not None:
        await sandbox.bring(task.environment, sandbox.workdir)
    if task.clean is not None:
        await _clean(sandbox, task.clean, spec.task)
    if task.healthcheck is not None:
        await wait_until_healthy(sandbox, task.healthcheck)
    return PreparedLaunch(harness=harness, bundle=Path(sandbox.inside(place)), task=task, sandbox=sandbox)


async def _clean(sandbox: Sandbox, wanted: Cleaning, ref: TaskRef) -> None:
    try:
        await clean(sandbox, wanted)
    except Unclean as cause:  # an agent that finds the solution is worth nothing, and the next attempt would meet the same
        msg = f"task {ref.name}: {cause}"
        raise NoStart(msg) from cause


async def _unpacked(blobs: Blobs, ref: TaskRef, folder: Path, backend: str) -> Task:
    data = await blobs.get(ref.archive)
    try:
        task = await asyncio.to_thread(unpacked, data, folder)
    except TaskError as cause:
        raise NoStart(str(cause)) from cause
    if lacking := lacks(backend, task):
        msg = f"task {ref.name} needs {', '.join(lacking)}, which a `{backend}` sandbox cannot give"
        raise NoStart(msg)
    return task
