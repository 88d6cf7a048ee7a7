"""Makes a sandbox one in which the solution cannot be found: the history of repositories is cut, and what a task names is removed.

It is done by programs in the sandbox, before its state is settled, so that none of it is a change of the agent's. The sandbox of the tests
keeps everything: tests may need the history.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from evener.sandboxes.port import HOME, SOLUTION, TEMPORARY, TESTS, VERIFIER_LOGS, Program, Sandbox, SandboxError
from evener.tasks.tables import Cleaning

CLEAN: Final = Path(__file__).with_name("clean.sh")
LEAKS: Final = Path(__file__).with_name("leaks.sh")
CACHES: Final = tuple(
    f"{home}/{cache}"
    for home in (HOME, "/root")
    for cache in (".cache/pip", ".cache/uv", ".cache/yarn", ".cargo/registry", ".npm/_cacache")
)
"""Where package managers keep what they fetched: perhaps the version with the fix."""
PATCHES: Final = f"{TEMPORARY}/.evener-patches"
MAX_LEAKS: Final = 20


class Unclean(SandboxError):
    """The sandbox cannot be made a clean one. Correct the task's table `clean`, or its image."""


async def clean(sandbox: Sandbox, wanted: Cleaning) -> None:
    """Cut histories and remove what is to be removed. Raises Unclean, SandboxError."""
    repositories = [sandbox.inside(place) for place in wanted.repositories]
    removed = [sandbox.inside(place) for place in (*wanted.removed, *(CACHES if wanted.repositories else ()))]
    code, said = await _ran(sandbox, CLEAN, "clean", wanted.history.value, *repositories, "--", *removed)
    if code:
        msg = f"the sandbox is not clean: {said.splitlines()[-1] if said else f'exit code {code}'}"
        raise Unclean(msg)


async def leaks(sandbox: Sandbox, wanted: Cleaning, patches: Mapping[str, bytes]) -> tuple[str, ...]:
    """Return what gives an agent its tests or its solution in a sandbox that is ready for it, in words. Raises SandboxError.

    `patches`: those of the task's tests and of its solution, by name. None of them may be applied already.
    """
    await sandbox.write({f"{PATCHES}/{name.replace('/', '%')}": content for name, content in patches.items()})
    repositories = [sandbox.inside(place) for place in wanted.repositories]
    empty = [sandbox.inside(place) for place in (TESTS, SOLUTION, VERIFIER_LOGS)]
    absent = [sandbox.inside(place) for place in (*wanted.removed, *(CACHES if wanted.repositories else ()))]
    root = sandbox.inside("/").rstrip("/")
    words = (root, sandbox.inside(PATCHES), sandbox.inside(sandbox.workdir), *repositories, "--", *empty, "--", *absent)
    _, said = await _ran(sandbox, LEAKS, "leaks", *words)
    return tuple(said.splitlines()[:MAX_LEAKS])


async def _ran(sandbox: Sandbox, script: Path, *words: str) -> tuple[int, str]:
    text = await asyncio.to_thread(script.read_text)
    process = await sandbox.start(Program(argv=("sh", "-c", text, *words)))
    return await process.wait(), process.log().decode(errors="replace").strip()
