"""Reads what detectors look at: the session's records, what its agent left, its task."""

import asyncio
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from evener.blobs.port import BlobError, Blobs
from evener.graders.hacking.actions import Action, actions_of
from evener.graders.hacking.detect import flags_of
from evener.graders.hacking.hard_coded import SOURCES
from evener.graders.hacking.watched import Watched, is_runner_file, is_test
from evener.graders.task_tests import CHANGES, REMOVED
from evener.proto.blobs import BlobRef
from evener.proto.codec import NOT_AN_EVENT, BadRecord
from evener.proto.errors import Recoverable
from evener.proto.spec import Consequence, Detector
from evener.proto.trajectories import Flag, TrajectoryBuilt
from evener.runtime.folders import temporary_folder
from evener.sandboxes.port import WORKDIR
from evener.tasks.directory import Task
from evener.tasks.errors import TaskError
from evener.tasks.pack import unpacked
from evener.tasks.verification import STEPS_FOLDER
from evener.tokens.kept import unpack

REPLACED: Final = "replaced.json"
RECORDS: Final = "records"
MAX_FILE_BYTES: Final = 256 << 10
"""Larger files are not read: nobody writes them by hand."""
MAX_FILES_BYTES: Final = 16 << 20


async def look(trajectory: TrajectoryBuilt, blobs: Blobs) -> tuple[tuple[Flag, ...], str | None]:
    """Return the flags of a session, and why not all of it could be looked at (None: it was). Raises what `blobs` cannot wait for."""
    spec = trajectory.spec
    if spec.task is None or all(spec.grader.hacking.get(one) is Consequence.OFF for one in Detector):
        return (), None
    left = () if trajectory.exit is None else trajectory.exit.artifacts
    problems: list[str] = []
    fetched: dict[str, bytes] = {}
    wanted: dict[str, BlobRef] = {
        artifact.name: artifact.blob for artifact in left if PurePosixPath(artifact.name).name in {CHANGES, REMOVED, REPLACED}
    }
    if trajectory.records is not None:
        wanted[RECORDS] = trajectory.records
    for name, ref in wanted.items():
        try:
            fetched[name] = await blobs.get(ref)
        except BlobError as failed:
            if isinstance(failed, Recoverable):
                raise
            problems.append(str(failed))
    try:
        archive = await blobs.get(spec.task.archive)
        async with temporary_folder("evener-task-") as folder:
            task = await asyncio.to_thread(unpacked, archive, folder)
            watched, found = await asyncio.to_thread(_watched, trajectory.session_id, fetched, task)
    except TaskError as bad:
        return (), str(bad.args[0])
    flags = await asyncio.to_thread(flags_of, watched, spec.grader.hacking)
    return flags, "; ".join([*problems, *found]) or None


def _watched(session_id: str, fetched: Mapping[str, bytes], task: Task) -> tuple[Watched, list[str]]:
    """Return what detectors see of a session, and what could not be read. Blocks."""
    problems: list[str] = []
    actions: tuple[Action, ...] = ()
    if RECORDS in fetched:
        try:
            actions = tuple(actions_of(unpack(session_id, fetched[RECORDS]).session))
        except (BadRecord, *NOT_AN_EVENT) as bad:
            problems.append(f"its records cannot be read: {bad}")
    else:
        problems.append("its records are not stored")
    changes: dict[str, bytes] = {}
    names: dict[str, set[str]] = {REMOVED: set(), REPLACED: set()}
    for file, content in fetched.items():  # one of each, or of each step
        name = PurePosixPath(file).name
        try:
            if name == CHANGES:
                changes |= _changed(content)
            elif name in names:
                names[name] |= set(json.loads(content))
        except (tarfile.TarError, ValueError, TypeError) as bad:
            problems.append(f"{file} cannot be read: {bad}")
    workdir = task.sandbox.workdir or WORKDIR
    watched = Watched(
        actions=actions,
        changes=changes,
        removed=frozenset(names[REMOVED]),
        replaced=frozenset(names[REPLACED]),
        before={} if task.environment is None else _texts(task.environment, f"{workdir.strip('/')}/"),
        workdir=workdir,
        instruction=task.instruction,
        tests={name: text for tests in _folders_of_tests(task.path) for name, text in _texts(tests, "").items()},
        network=task.sandbox.network,
    )
    return watched, problems


def _folders_of_tests(path: Path) -> list[Path]:
    """Return the tests of a task, and of each of its steps."""
    return [path / "tests", *sorted(path.glob(f"{STEPS_FOLDER}/*/tests"))]


def _changed(archive: bytes) -> dict[str, bytes]:
    """Return the changed files, with the contents of programs and tests. Raises tarfile.TarError."""
    changes: dict[str, bytes] = {}
    left = MAX_FILES_BYTES
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
        for member in tar:
            if not (member.isreg() or member.issym()):
                continue
            changes[member.name] = b""
            tells = PurePosixPath(member.name).suffix in SOURCES or is_test(member.name) or is_runner_file(member.name)
            if member.isreg() and tells and member.size <= min(MAX_FILE_BYTES, left) and (file := tar.extractfile(member)) is not None:
                left -= member.size
                changes[member.name] = file.read()
    return changes


def _texts(folder: Path, prefix: str) -> dict[str, bytes]:
    """Return the small files of a folder by name."""
    found: dict[str, bytes] = {}
    left = MAX_FILES_BYTES
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if not path.is_symlink() and path.is_file() and (size := path.stat().st_size) <= min(MAX_FILE_BYTES, left):
            left -= size
            found[f"{prefix}{path.relative_to(folder).as_posix()}"] = path.read_bytes()
    return found
