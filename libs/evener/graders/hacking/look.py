"""Looks at a session with the detectors, in a process of its own: an agent can leave what they would read for hours."""

from pathlib import PurePosixPath
from typing import Final

import msgspec

from evener.blobs.port import BlobError, Blobs
from evener.graders.hacking.reading import RECORDS, REPLACED, Looked, Question, looked_at
from evener.graders.task_tests import CHANGES, REMOVED
from evener.proto.blobs import BlobRef
from evener.proto.errors import Recoverable
from evener.proto.spec import Consequence, Detector
from evener.proto.trajectories import Flag, TrajectoryBuilt
from evener.runtime.children import Children, WorkTooLong
from evener.runtime.folders import temporary_folder

LOOKING: Final = Children("look", 2)
LOOKING_SECONDS: Final = 60.0
"""The limit of a look, which takes less than a second unless the agent worked against it."""

_looked: Final = msgspec.msgpack.Decoder(Looked)


async def look(trajectory: TrajectoryBuilt, blobs: Blobs, seconds: float = LOOKING_SECONDS) -> tuple[tuple[Flag, ...], str | None]:
    """Return the flags of a session, and why not all of it could be looked at (None: it was).

    A look that takes longer than `seconds` is ended. Raises what `blobs` cannot wait for, and WorkFailed if a detector crashes.
    """
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
    archive = await blobs.get(spec.task.archive)
    async with temporary_folder("evener-task-") as folder:
        question = Question(session_id=trajectory.session_id, folder=str(folder), hacking=spec.grader.hacking, names=tuple(fetched))
        try:
            answer = await LOOKING.run(looked_at, msgspec.msgpack.encode(question), archive, *fetched.values(), seconds=seconds)
        except WorkTooLong:
            return (), f"the detectors took more than {seconds:g} s"
    found = _looked.decode(answer)
    return found.flags, "; ".join([*problems, *found.problems]) or None
