"""The registry of sandbox backends. A new backend is a module that implements `port.Sandboxes`, and one entry here."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from evener.proto.sandbox import SandboxSpec
from evener.sandboxes import bubblewrap, docker, local
from evener.sandboxes.config import DockerConfig, SandboxesConfig
from evener.sandboxes.port import Sandboxes
from evener.sandboxes.tracked import tracked
from evener.tasks.directory import Task

LOCAL: Final = "local"
BUBBLEWRAP: Final = "bubblewrap"
DOCKER: Final = "docker"


class Backend(Struct, frozen=True, kw_only=True):
    """One way to have sandboxes."""

    open: Callable[[Path, SandboxesConfig], AbstractAsyncContextManager[Sandboxes]]
    """Opens the backend on a folder of its own. Raises SandboxHeld, SandboxError."""
    is_wanted: Callable[[SandboxesConfig], bool] = lambda _: True
    """Returns whether a process with this configuration has the backend. Blocks."""
    needs: str = ""
    """What such a process lacks that does not have it, and how to get that, in words."""
    lacks: Callable[[SandboxSpec], tuple[str, ...]]
    """Returns what the backend cannot give of a spec, wherever it runs, in words."""
    isolates: bool = True
    """Whether it keeps programs from the rest of the machine. If not, harnesses with tools need the user's trust."""
    warms: bool = True
    """Whether preparing its sandboxes takes so long that it is done ahead."""


BACKENDS: Final[dict[str, Backend]] = {
    LOCAL: Backend(
        open=lambda root, config: local.open_local(root, free_bytes=config.free_bytes), lacks=local.lacks, isolates=False, warms=False
    ),
    BUBBLEWRAP: Backend(
        open=lambda root, config: bubblewrap.open_bubblewrap(root, config.bubblewrap, free_bytes=config.free_bytes),
        is_wanted=bubblewrap.works,
        needs="bwrap does not work here: install bubblewrap and util-linux; other users than root need user namespaces",
        lacks=bubblewrap.lacks,
    ),
    DOCKER: Backend(
        open=lambda root, config: docker.open_docker_sandboxes(root, config.docker or DockerConfig()),
        is_wanted=lambda config: docker.is_wanted(config.docker),
        needs=f"no Docker daemon listens at {DockerConfig().host}: start it, or name another one by `sandboxes.docker.host`",
        lacks=docker.lacks,
    ),
}


def lacks(backend: str, task: Task) -> tuple[str, ...]:
    """Return what a task needs that a backend (`none`: somebody else's) cannot give, in words."""
    if (known := BACKENDS.get(backend)) is None:
        return ()
    verified = [one.verification for one in task.steps or (task,)]
    lacking = [*task.needs, *known.lacks(task.sandbox), *(lack for one in verified for lack in known.lacks(one.sandbox))]
    places = [artifact.source for one in verified if one.handover is not None for artifact in one.handover.artifacts]
    lacking += [f"the artifact {place}, which is not kept there" for place in places if not tracked(place.strip("/"))]
    return tuple(dict.fromkeys(lacking))


def usable(backends: Mapping[str, Sandboxes]) -> dict[str, bool]:
    """Return the condition of readiness that some backend can open sandboxes. If none can, the reason of each is a condition too."""
    told = troubles(backends)
    return {"sandboxes": True} if len(told) < len(backends) else {"sandboxes": False} | dict.fromkeys(told, False)


def troubles(backends: Mapping[str, Sandboxes]) -> tuple[str, ...]:
    """Return which backends cannot open sandboxes now, and why."""
    return tuple(f"sandboxes {name}: {why}" for name, backend in backends.items() if (why := backend.trouble()))


@asynccontextmanager
async def open_backends(root: Path, config: SandboxesConfig) -> AsyncIterator[Mapping[str, Sandboxes]]:
    """Open the backends of this process, each on a folder of its own; yield them by name. Raises SandboxHeld, SandboxError."""
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(backend.open(root / name, config))
            for name, backend in BACKENDS.items()
            if await asyncio.to_thread(backend.is_wanted, config)
        }
