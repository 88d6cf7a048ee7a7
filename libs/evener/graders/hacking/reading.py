"""Reads what detectors look at: the session's records, what its agent left, its task. This runs in a process of its own."""

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec
from msgspec import Struct

from evener.graders.hacking.actions import Action, TooMuchDone, actions_of
from evener.graders.hacking.detect import flags_of
from evener.graders.hacking.hard_coded import SOURCES
from evener.graders.hacking.watched import Watched, is_runner_file, is_test
from evener.graders.task_tests import CHANGES, REMOVED
from evener.proto.codec import NOT_AN_EVENT, BadRecord
from evener.proto.spec import Consequence, Detector
from evener.proto.trajectories import Flag
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
"""How much is read of the files of a task, and of those that an agent changed."""


class Question(Struct, frozen=True, kw_only=True):
    """What is to be looked at."""

    session_id: str
    folder: str
    """An empty folder, into which the task is unpacked."""
    hacking: dict[Detector, Consequence]
    names: tuple[str, ...]
    """What the blobs after the task's archive are."""


class Looked(Struct, frozen=True, kw_only=True):
    """What was found."""

    flags: tuple[Flag, ...] = ()
    problems: tuple[str, ...] = ()
    """Why not all of the session could be looked at."""


_questions: Final = msgspec.msgpack.Decoder(Question)


def looked_at(question: bytes, archive: bytes, *blobs: bytes) -> bytes:
    """Return the Looked of a Question, both as msgpack."""
    asked = _questions.decode(question)
    try:
        task = unpacked(archive, Path(asked.folder))
    except TaskError as bad:
        return _told((), [str(bad.args[0])])
    watched, problems = _watched(asked.session_id, dict(zip(asked.names, blobs, strict=True)), task)
    return _told(flags_of(watched, asked.hacking), problems)


def _told(flags: tuple[Flag, ...], problems: list[str]) -> bytes:
    """`problems` may name files whose names are no UTF-8."""
    said = [problem.encode(errors="backslashreplace").decode() for problem in problems]
    return msgspec.msgpack.encode(Looked(flags=flags, problems=tuple(said)))


def _watched(session_id: str, fetched: Mapping[str, bytes], task: Task) -> tuple[Watched, list[str]]:
    """Return what detectors see of a session, and what could not be read. Blocks."""
    problems: list[str] = []
    actions: list[Action] = []
    read: dict[str, int] = {}
    if RECORDS in fetched:
        try:
            for action in actions_of(unpack(session_id, fetched[RECORDS]).session, read):
                actions.append(action)  # noqa: PERF402 - those before an error stay
        except TooMuchDone as too_much:
            problems.append(str(too_much))
        except (BadRecord, *NOT_AN_EVENT) as bad:
            problems.append(f"its records cannot be read: {bad}")
    else:
        problems.append("its records are not stored")
    changes: dict[str, bytes] = {}
    left = MAX_FILES_BYTES
    names: dict[str, set[str]] = {REMOVED: set(), REPLACED: set()}
    for file, content in fetched.items():  # one of each, or of each step
        name = PurePosixPath(file).name
        try:
            if name == CHANGES:
                left = _change(changes, content, left)
            elif name in names:
                names[name] |= set(json.loads(content))
        except (tarfile.TarError, ValueError, TypeError) as bad:
            problems.append(f"{file} cannot be read: {bad}")
    if left < 0:
        problems.append(f"the programs that it changed have more than {MAX_FILES_BYTES >> 20} MB, and not all of them were looked at")
    workdir = task.sandbox.workdir or WORKDIR
    watched = Watched(
        actions=tuple(actions),
        read=read,
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


def _change(changes: dict[str, bytes], archive: bytes, left: int) -> int:
    """Add the files of an archive to the changes, with the contents of programs and tests. Raises tarfile.TarError.

    Returns how many of `left` bytes may still be read; below 0: a file was not read for that reason.
    """
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:") as tar:
        for member in tar:
            if not (member.isreg() or member.issym()):
                continue
            changes[member.name] = b""
            tells = PurePosixPath(member.name).suffix in SOURCES or is_test(member.name) or is_runner_file(member.name)
            if member.isreg() and tells and member.size <= MAX_FILE_BYTES and (file := tar.extractfile(member)) is not None:
                left -= member.size
                changes[member.name] = file.read() if left >= 0 else b""
    return left


def _texts(folder: Path, prefix: str) -> dict[str, bytes]:
    """Return the small files of a folder by name."""
    found: dict[str, bytes] = {}
    left = MAX_FILES_BYTES
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if not path.is_symlink() and path.is_file() and (size := path.stat().st_size) <= min(MAX_FILE_BYTES, left):
            left -= size
            found[f"{prefix}{path.relative_to(folder).as_posix()}"] = path.read_bytes()
    return found
