"""Makes attempts: in a sandbox as it is, and with the attempt's defence switched off, where it must succeed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from msgspec import Struct, structs
from proofs.escape.attempt import ESCAPED, Attempt
from proofs.escape.backends import BUBBLEWRAP, DOCKER, open_docker_backend
from proofs.escape.trial import Place, Trial
from proofs.escape.world import World

from evener.proto.sandbox import Mount, SandboxSpec
from evener.sandboxes.bubblewrap import open_bubblewrap
from evener.sandboxes.config import BubblewrapConfig
from evener.sandboxes.local import open_local
from evener.sandboxes.port import BUNDLES, Program, Sandbox, Sandboxes, SandboxLost

BUNDLE: Final = f"{BUNDLES}/bundle"


class Tried(Struct, frozen=True, kw_only=True):
    """What came of an attempt."""

    name: str
    backend: str
    made: bool = True
    """Whether it was made on this machine."""
    succeeded: bool
    """Whether it got out of the sandbox as it is."""
    without_defence: bool | None
    """Whether it succeeds with its defence switched off. None: that was not tried."""
    skipped: str = ""
    """Why that was not tried."""
    said: str = ""
    """The last line of the program in the sandbox."""
    said_without: str = ""


async def attempted(attempt: Attempt | Trial, kind: str, world: World) -> Tried:
    """Make an attempt on a backend, with its defence and without."""
    if isinstance(attempt, Trial):
        return await _trial(attempt, kind, world)
    if attempt.impossible:
        return Tried(name=attempt.name, backend=kind, made=False, succeeded=False, without_defence=None, skipped=attempt.impossible)
    said = await _said(attempt, kind, world, defended=True)
    skipped = attempt.plain or "" if kind == BUBBLEWRAP and not attempt.private_hosts else ""
    without = "" if skipped else await _said(attempt, kind, world, defended=False)
    return Tried(
        name=attempt.name,
        backend=kind,
        succeeded=ESCAPED in said,
        without_defence=None if skipped else ESCAPED in without,
        skipped=skipped,
        said=_last(said),
        said_without=_last(without),
    )


async def _trial(trial: Trial, kind: str, world: World) -> Tried:
    place = Place(world=world, kind=kind, defended=True)
    said = await trial.tried(place)
    without = await trial.tried(structs.replace(place, defended=False))
    return Tried(
        name=trial.name,
        backend=kind,
        succeeded=said == ESCAPED,
        without_defence=without == ESCAPED,
        said=_last(said),
        said_without=_last(without),
    )


async def _said(attempt: Attempt, kind: str, world: World, *, defended: bool) -> str:
    spec = SandboxSpec(network=attempt.network, limits=attempt.limits, mounts=(Mount(source=str(world.folder / "bundle"), place=BUNDLE),))
    async with AsyncExitStack() as stack:
        sandboxes = await stack.enter_async_context(_opened(attempt, kind, world, defended=defended))
        if kind == BUBBLEWRAP and not defended and not attempt.private_hosts:
            spec = structs.replace(spec, network=None)
        sandbox = await stack.enter_async_context(sandboxes.open("attempt", spec))
        other = await stack.enter_async_context(_other(sandboxes)) if "OTHER_PORT" in attempt.code else ""
        code = world.program(attempt.code, BUNDLE=sandbox.inside(BUNDLE), OTHER_PORT=other)
        user = "0:0" if attempt.as_root and kind == DOCKER and not defended else None
        return await _ran(sandbox, Program(argv=("python3", "-c", code), user=user, log_bytes=attempt.log_bytes))


async def _ran(sandbox: Sandbox, program: Program) -> str:
    process = await sandbox.start(program)
    try:
        async with asyncio.timeout(60):
            await process.wait()
    except TimeoutError:
        await process.end(grace_seconds=0)
    except SandboxLost:  # its memory ended
        pass
    return process.log().decode(errors="replace")


@asynccontextmanager
async def _other(sandboxes: Sandboxes) -> AsyncIterator[str]:
    """Yield the port of another sandbox's relay."""
    async with sandboxes.open("other") as other:
        listening = await other.listen()

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        async with await asyncio.start_server(answer, sock=listening):
            yield str(listening.getsockname()[1])


@asynccontextmanager
async def _opened(attempt: Attempt, kind: str, world: World, *, defended: bool) -> AsyncIterator[Sandboxes]:
    hosts = () if defended else attempt.private_hosts
    if kind == DOCKER:
        async with open_docker_backend(world, None if defended else attempt.loosened, hosts) as contained:
            yield contained
    elif defended or hosts:
        async with open_bubblewrap(world.folder / "sandboxes" / kind, BubblewrapConfig(private_hosts=hosts)) as isolated:
            yield isolated
    else:
        async with open_local(world.folder / "sandboxes" / "local") as plain:
            yield plain


def _last(said: str) -> str:
    return said.strip().rpartition("\n")[2][-120:]
