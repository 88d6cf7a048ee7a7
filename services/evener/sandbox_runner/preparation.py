"""Prepares what a session needs before its harness can start: the harness's bundle, a sandbox, the task's files.

The sandbox is the same for many sessions, and may be prepared ahead (`warm`); the task's files are brought when a session has it.
"""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from secrets import token_hex

from msgspec import Struct, structs

from evener.blobs.port import Blobs
from evener.harnesses.mcp import not_taken
from evener.harnesses.port import Harness, HarnessError
from evener.harnesses.registry import NO_HARNESS
from evener.harnesses.registry import harness as harness_named
from evener.proto.fleet import QueuedSessions
from evener.proto.sandbox import Mount, SandboxKind, SandboxSpec
from evener.proto.spec import HarnessSpec, Quirks, SessionSpec, TaskRef
from evener.runtime.folders import temporary_folder
from evener.sandbox_runner.context import RunnerContext
from evener.sandbox_runner.core import NoStart, allow
from evener.sandboxes.cleaning import Unclean, clean
from evener.sandboxes.health import wait_until_healthy
from evener.sandboxes.port import BUNDLES, Sandbox
from evener.sandboxes.registry import BACKENDS, lacks
from evener.tasks.directory import Task
from evener.tasks.errors import TaskError
from evener.tasks.pack import unpacked
from evener.tasks.sandbox_digest import sandbox_digest
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
    """Take a warm sandbox, or open one called `name` on the stack; bring the task's files.

    Raises NoStart; whatever else another attempt may not meet: HarnessMissing, BlobError, SandboxError, OSError.
    """
    if spec.task is None:
        msg = f"harness {harness.name} needs a task to work on; only recordings have none"
        raise NoStart(msg)
    backend_name = spec.harness.sandbox
    bundle = await context.bundles.bundle(harness)
    folder = await stack.enter_async_context(temporary_folder("evener-task-"))
    task = await _unpacked(context.blobs, spec.task, folder, backend_name)
    if (problem := not_taken(harness, task.mcp_servers)) is not None:
        raise NoStart(problem)
    sandbox, prepared = None, "warm"
    if BACKENDS[backend_name].warms:
        sandbox = await context.pool.take(await _kind(backend_name, harness.name, task), stack)
    if sandbox is None:
        sandbox, prepared = await _open(stack, name, await _with(bundle, task.sandbox), backend_name, context), "cold"
    context.metrics.sandbox_starts.labels(prepared).inc()
    if task.environment is not None:
        await sandbox.bring(task.environment, sandbox.workdir)
    if task.clean is not None:
        await _clean(sandbox, task.clean, spec.task)
    if task.healthcheck is not None:
        await wait_until_healthy(sandbox, task.healthcheck)
    return PreparedLaunch(harness=harness, bundle=Path(sandbox.inside(_place(bundle))), task=task, sandbox=sandbox)


async def _clean(sandbox: Sandbox, wanted: Cleaning, ref: TaskRef) -> None:
    try:
        await clean(sandbox, wanted)
    except Unclean as cause:  # an agent that finds the solution is worth nothing, and the next attempt would meet the same
        msg = f"task {ref.name}: {cause}"
        raise NoStart(msg) from cause


async def warm(queued: QueuedSessions, stack: AsyncExitStack, context: RunnerContext) -> Sandbox:
    """Open a sandbox for any of the queued sessions on the stack, and warm it. Raises NoStart, EvenerError, OSError."""
    kind = queued.kind
    try:
        bundle = await context.bundles.bundle(harness_named(kind.harness))
    except HarnessError as cause:
        raise NoStart(str(cause)) from cause
    async with temporary_folder("evener-task-") as folder:
        task = await _unpacked(context.blobs, queued.task, folder, kind.backend)
        sandbox = await _open(stack, f"warm-{token_hex(8)}", await _with(bundle, task.sandbox), kind.backend, context)
    await sandbox.warm()
    return sandbox


async def _with(bundle: Path, spec: SandboxSpec) -> SandboxSpec:
    """Return the requirements of a sandbox with a harness's bundle, if it has one."""
    has_bundle = await asyncio.to_thread(bundle.is_dir)
    return structs.replace(spec, mounts=(Mount(source=str(bundle), place=_place(bundle)),)) if has_bundle else spec


async def _open(stack: AsyncExitStack, name: str, spec: SandboxSpec, backend_name: str, context: RunnerContext) -> Sandbox:
    backend = context.sandboxes.get(backend_name)
    if backend is None:
        msg = f"this runner has no `{backend_name}` sandboxes: they are not configured, or the machine lacks what they need"
        raise NoStart(msg)
    return await stack.enter_async_context(backend.open(name, spec))


def _place(bundle: Path) -> str:
    return f"{BUNDLES}/{bundle.name}"


async def _kind(backend_name: str, harness: str, task: Task) -> SandboxKind:
    needs = await asyncio.to_thread(sandbox_digest, task.sandbox)
    return SandboxKind(backend=backend_name, harness=harness, needs=needs)


async def _unpacked(blobs: Blobs, ref: TaskRef, folder: Path, backend_name: str) -> Task:
    data = await blobs.get(ref.archive)
    try:
        task = await asyncio.to_thread(unpacked, data, folder)
    except TaskError as cause:
        raise NoStart(str(cause)) from cause
    if lacking := lacks(backend_name, task):
        msg = f"task {ref.name} needs {', '.join(lacking)}, which a `{backend_name}` sandbox cannot give"
        raise NoStart(msg)
    return task
