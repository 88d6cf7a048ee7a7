"""What a session needs before its harness can start: the harness's bundle, the task's files, a sandbox."""

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

from msgspec import Struct

from evener.blobs.port import Blobs
from evener.harnesses.port import Harness, HarnessError
from evener.harnesses.registry import harness as harness_named
from evener.proto.spec import HarnessSpec, Quirks, SessionSpec, TaskRef
from evener.sandbox_runner.core import NoStart, allow
from evener.sandbox_runner.site import Site
from evener.sandboxes.port import WORKDIR, Sandbox
from evener.tasks import directory, pack
from evener.tasks.errors import TaskError


class Prepared(Struct, frozen=True, kw_only=True, eq=False):
    """All that a launch needs."""

    harness: Harness
    bundle: Path
    task: directory.Task
    """Its files are gone when it is used; its values stay."""
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
    """Return what is special about a harness: as its run says, else as its folder does. `harness`: None where somebody else runs it."""
    if spec.quirks is not None:
        return spec.quirks
    if harness is not None:
        return harness.quirks
    try:
        return harness_named(spec.name).quirks
    except HarnessError:  # a recording of whatever it is
        return Quirks()


async def prepare(stack: AsyncExitStack, spec: SessionSpec, name: str, harness: Harness, site: Site) -> Prepared:
    """Open a sandbox called `name` on the stack, with the task's files. Raises NoStart; BlobError and SandboxError may pass."""
    if spec.task is None:
        msg = f"harness {harness.name} needs a task to work on; only recordings have none"
        raise NoStart(msg)
    bundle = await site.bundles.bundle(harness)
    with tempfile.TemporaryDirectory(prefix="evener-task-") as folder:
        task = await _unpacked(site.blobs, spec.task, Path(folder))
        sandbox = await stack.enter_async_context(site.sandboxes.open(name, workdir=task.workdir or WORKDIR))
        if task.environment is not None:
            await sandbox.bring(task.environment, task.workdir or WORKDIR)
    return Prepared(harness=harness, bundle=bundle, task=task, sandbox=sandbox)


async def _unpacked(blobs: Blobs, ref: TaskRef, folder: Path) -> directory.Task:
    data = await blobs.get(ref.archive)
    try:
        await asyncio.to_thread(pack.unpack, data, folder)
        task = await asyncio.to_thread(directory.load, folder)
    except TaskError as cause:
        raise NoStart(str(cause)) from cause
    if task.needs:
        msg = f"task {ref.name} needs {', '.join(task.needs)}, which a `local` sandbox cannot give"
        raise NoStart(msg)
    return task
