"""Grades stored sessions again: their trajectories come from the log, what their agents left from the blob store."""

import asyncio
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct, structs

from evener.blobs.open import open_blobs
from evener.blobs.port import BlobError, Blobs
from evener.cli.connection import connect
from evener.cli.errors import Usage
from evener.cli.output import tell
from evener.cli.regraded import Regraded
from evener.client.client import Client
from evener.client.errors import ClientError, Unavailable
from evener.client.session_views import Score
from evener.graders.config import Endpoint
from evener.graders.hacking.detect import after_flags, weighed
from evener.graders.hacking.look import look
from evener.graders.port import Allowed, Grade, GraderError, GraderRefused, GradingContext
from evener.graders.registry import grader_for
from evener.proto.errors import ConfigError
from evener.proto.ids import session_of
from evener.proto.prepared import Converter
from evener.proto.spec import Consequence, Detector, GraderSpec, TaskRef
from evener.proto.trajectories import Flag, TrajectoryBuilt
from evener.runtime.children import WorkFailed
from evener.runtime.folders import temporary_folder
from evener.sandboxes.config import SandboxesConfig
from evener.sandboxes.port import Sandboxes
from evener.sandboxes.registry import BACKENDS, LOCAL, open_backends
from evener.tasks.directory import load
from evener.tasks.grader_table import seen_by_judge
from evener.tasks.pack import Packed, pack

Hacking = Mapping[Detector, Consequence]
RUNS_TESTS: Final = frozenset({"harbor", "python", "test_log"})
"""The graders that run programs in a sandbox."""


class RegradeRequest(Struct, frozen=True, kw_only=True):
    """How to grade again."""

    task: Path | None
    grader: str | None
    options: Mapping[str, str]
    config: Path | None
    sandbox: str | None
    concurrency: int
    trust_local: bool


class _Tables(Struct, frozen=True):
    endpoints: dict[str, Endpoint] = {}
    grader_modules: tuple[str, ...] = ()


class _File(Struct, frozen=True):
    evaluator: _Tables = _Tables()


_files: Final = Converter(_File)


class Regrader:
    """Grades sessions again, some at a time."""

    def __init__(self, client: Client, sandboxes: Mapping[str, Sandboxes], wanted: RegradeRequest, allowed: Allowed) -> None:
        self._client = client
        self._sandboxes = sandboxes
        self._wanted = wanted
        self._allowed = allowed
        self._room = asyncio.Semaphore(wanted.concurrency)

    async def regraded(self, session_id: str, number: int, own: Packed | None, grader: GraderSpec | None) -> Regraded:
        """Return the new score of a session. `own`: the task to grade with. Raises ClientError, Usage."""
        async with self._room:
            view = await self._client.session(session_id)
            if view.trajectory is None:
                msg = f"session {session_id} has not ended"
                raise Usage(msg)
            trajectory = _changed(view.trajectory, None if own is None else own.ref, grader, self._wanted.sandbox)
            self._check_trust(trajectory)
            blobs = open_blobs("memory://")
            ungraded = None
            grade = None
            try:
                await self._fetch(trajectory, own, blobs)
                for tries in range(1, trajectory.spec.grader.tries + 1):
                    ungraded = None
                    try:
                        grade = await self._graded(trajectory, blobs, f"regrade-{number}-{tries}")
                        break
                    except GraderError as error:
                        ungraded = error.what
                        if isinstance(error, GraderRefused):
                            break
            except (BlobError, ClientError) as error:
                ungraded = str(error)
        known = await self._known(session_id)
        hacking = trajectory.spec.grader.hacking or view.trajectory.spec.grader.hacking
        flags, unwatched = await self._flags(trajectory, blobs, known, view.trajectory.spec.grader.hacking, hacking)
        if grade is not None:
            grade = after_flags(grade, flags, unwatched, hacking)
        return Regraded(
            session_id=session_id,
            before=None if known is None else known.reward,
            reward=None if grade is None else grade.reward,
            rewards={} if grade is None else grade.rewards,
            call_rewards={} if grade is None else grade.call_rewards,
            ungraded=ungraded if grade is None else grade.ungraded,
            grader=trajectory.spec.grader.name,
            flags=flags,
        )

    async def _flags(
        self, trajectory: TrajectoryBuilt, blobs: Blobs, known: Score | None, before: Hacking, now: Hacking
    ) -> tuple[tuple[Flag, ...], str | None]:
        """Return the signs of reward hacking, and why not all could be looked at.

        They are the recorded ones with their consequences of now, and what detectors find that have not looked: they were off before, or
        nothing is recorded.
        """
        recorded = () if known is None else weighed(known.flags, now)
        unwatched = None if known is None else known.unwatched
        off = Consequence.OFF
        new = [one for one in Detector if now.get(one) is not off and (known is None or before.get(one) is off)]
        if not new:
            return recorded, unwatched
        only = {one: now.get(one, Consequence.FLAG) if one in new else off for one in Detector}
        if trajectory.records is not None:
            with suppress(ClientError):  # then it could not look at them, and says so
                await blobs.put(await self._client.get_blob(trajectory.records))
        grader = structs.replace(trajectory.spec.grader, hacking=only)
        try:
            looked, problem = await look(structs.replace(trajectory, spec=structs.replace(trajectory.spec, grader=grader)), blobs)
        except WorkFailed as crashed:
            return recorded, f"a detector crashed: {crashed}"
        return (*recorded, *looked), problem or unwatched

    async def _graded(self, trajectory: TrajectoryBuilt, blobs: Blobs, name: str) -> Grade:
        sandboxes = self._sandboxes.get(trajectory.spec.harness.sandbox, self._sandboxes[LOCAL])
        context = GradingContext(trajectory=trajectory, blobs=blobs, sandboxes=sandboxes, name=name, allowed=self._allowed)
        return await grader_for(trajectory.spec.grader.name)(context)

    async def _fetch(self, trajectory: TrajectoryBuilt, own: Packed | None, blobs: Blobs) -> None:
        """Bring what graders read: the task, and what the agent left."""
        left = () if trajectory.exit is None else trajectory.exit.artifacts
        task = trajectory.spec.task
        refs = [artifact.blob for artifact in left] + ([task.archive] if task is not None and own is None else [])
        refs += [trajectory.records] if trajectory.records is not None and _shows_messages(trajectory.spec.grader) else []
        for data in await asyncio.gather(*(self._client.get_blob(ref) for ref in refs)):
            await blobs.put(data)
        if own is not None:
            await blobs.put(own.data)

    async def _known(self, session_id: str) -> Score | None:
        """Return the recorded score, whose flags count again: they are of the session, and not of its grader."""
        try:
            return (await self._client.score(session_id)).score
        except Unavailable:
            return None

    def _check_trust(self, trajectory: TrajectoryBuilt) -> None:
        spec = trajectory.spec
        names = {spec.grader.name, *(part.grader for part in spec.grader.parts)}
        backend = BACKENDS.get(spec.harness.sandbox, BACKENDS[LOCAL])
        if names & RUNS_TESTS and not backend.isolates and not self._wanted.trust_local:
            msg = (
                f"session {trajectory.session_id}: its tests would run as plain processes with your rights. Choose a sandbox (--sandbox "
                "bubblewrap, --sandbox docker), or give --trust-local if you trust the task and what the agent left"
            )
            raise Usage(msg)


async def regrade_sessions(sessions: Sequence[str], run_id: str | None, wanted: RegradeRequest, state: Path | None) -> int:
    """Grade and print; return the exit code. Raises ClientError, ConfigError, TaskError."""
    if wanted.sandbox is not None and wanted.sandbox not in BACKENDS:
        msg = f"--sandbox {wanted.sandbox!r} is none of {', '.join(BACKENDS)}"
        raise Usage(msg)
    allowed = await asyncio.to_thread(_allowed, wanted.config)
    own = None if wanted.task is None else await asyncio.to_thread(pack, wanted.task)
    grader = None if wanted.task is None else (await asyncio.to_thread(load, wanted.task)).grader
    if wanted.grader is not None:
        grader = GraderSpec(name=wanted.grader, options=dict(wanted.options))
    worst = 0
    async with (
        connect(state) as client,
        temporary_folder("evener-regrade-") as root,
        open_backends(root, SandboxesConfig()) as sandboxes,
    ):
        named = sessions or [session_of(task.task_id, index) for task in await client.tasks(run_id) for index in range(task.samples)]
        regrader = Regrader(client, sandboxes, wanted, allowed)
        for done in asyncio.as_completed([regrader.regraded(session, number, own, grader) for number, session in enumerate(named)]):
            regraded = await done
            worst = worst or int(regraded.reward is None)
            tell(regraded)
    return worst


def _shows_messages(grader: GraderSpec) -> bool:
    return any("messages" in seen_by_judge(options) for options in (grader.options, *(part.options for part in grader.parts)))


def _changed(trajectory: TrajectoryBuilt, task: TaskRef | None, grader: GraderSpec | None, sandbox: str | None) -> TrajectoryBuilt:
    spec = trajectory.spec
    if task is not None:
        spec = structs.replace(spec, task=task)
    if grader is not None:
        spec = structs.replace(spec, grader=grader)
    if sandbox is not None:
        spec = structs.replace(spec, harness=structs.replace(spec.harness, sandbox=sandbox))
    return structs.replace(trajectory, spec=spec)


def _allowed(config: Path | None) -> Allowed:
    """Return what a configuration file lets graders reach. Raises ConfigError."""
    if config is None:
        return Allowed()
    try:
        tables = _files.convert(tomllib.loads(config.read_text(encoding="utf-8"))).evaluator
    except (OSError, ValueError, msgspec.ValidationError) as cause:
        msg = f"{config}: {getattr(cause, 'strerror', None) or cause}"
        raise ConfigError(msg) from cause
    return Allowed(endpoints=tables.endpoints, modules=tables.grader_modules)
