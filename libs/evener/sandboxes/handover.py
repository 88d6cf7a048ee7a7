"""Takes an agent's artifacts out of its sandbox, for a verifier that gets nothing else of it."""

import asyncio
import io
import tarfile
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Final

from evener.sandboxes.completion import complete
from evener.sandboxes.port import AGENT_LOGS, ChangeLimits, Changes, Program, Sandbox
from evener.tasks.tables import DeclaredArtifact, Handover

STAGE: Final = f"{AGENT_LOGS}/.handover"
COPY_SECONDS: Final = 600.0
_COPY: Final = """\
stage="$1"; shift
rm -rf "$stage" && mkdir -p "$stage" || exit 1
while [ $# -gt 0 ]; do
    if [ -d "$1" ]; then
        mkdir "$stage/$2" && cp -a "$1/." "$stage/$2/" || exit 1
    elif [ -e "$1" ]; then
        cp -a "$1" "$stage/$2" || exit 1
    fi
    shift 2
done
"""
"""Copies each path (a folder, or a file) to a numbered place in the stage."""


async def artifacts_of(sandbox: Sandbox, handover: Handover) -> Changes:
    """Return the artifacts in a sandbox, in their places, as changes. Hooks run first. Raises SandboxError."""
    for hook in handover.collect:
        user = None if hook.user is None else str(hook.user)
        await complete(sandbox, Program(argv=("sh", "-c", hook.command), user=user), hook.timeout_sec, f"collect hook {hook.command!r}")
    await sandbox.settle()
    places = [_place(one, sandbox.workdir) for one in handover.artifacts]
    words = [word for number, place in enumerate(places) for word in (sandbox.inside(place), str(number))]
    copy = Program(argv=("sh", "-c", _COPY, "copy", sandbox.inside(STAGE), *words))
    await complete(sandbox, copy, COPY_SECONDS, "copying the artifacts")
    changes = await sandbox.changes(ChangeLimits())
    return await asyncio.to_thread(_moved, changes.archive, places, handover.artifacts)


def _place(artifact: DeclaredArtifact, workdir: str) -> str:
    return str(PurePosixPath(workdir) / artifact.source)


def _moved(archive: bytes, places: Sequence[str], artifacts: Sequence[DeclaredArtifact]) -> Changes:
    """Return the staged files under the names of their places."""
    prefix = STAGE.lstrip("/") + "/"
    out, found = io.BytesIO(), dict[str, None]()
    with tarfile.open(fileobj=io.BytesIO(archive)) as staged, tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as moved:
        for member in staged:
            number, _, below = member.name.removeprefix(prefix).partition("/")
            if not member.name.startswith(prefix) or not number.isdecimal() or int(number) >= len(places):
                continue
            if below and _is_excluded(below, artifacts[int(number)].exclude):
                continue
            place = places[int(number)].lstrip("/")
            found[place] = None
            member.name = f"{place}/{below}" if below else place
            moved.addfile(member, staged.extractfile(member) if member.isreg() else None)
    return Changes(archive=out.getvalue(), removed=tuple(sorted(found)))  # the verifier's image may have files there


def _is_excluded(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a pattern matches a name below an artifact, or one of its folders, as `tar --exclude` has it."""
    parts = PurePosixPath(name).parts
    ends = ["/".join(parts[first:last]) for last in range(1, len(parts) + 1) for first in range(last)]
    return any(fnmatch(end, pattern.rstrip("/")) for pattern in patterns for end in ends)
