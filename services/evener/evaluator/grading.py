"""Grades one session: tries, time limit, evidence."""

import asyncio
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Final

import structlog
from opentelemetry import trace

from evener.blobs.port import BlobError, Blobs
from evener.evaluator.config import Config
from evener.evaluator.core import CRASH, gives_up, not_graded, of_group, of_try, score
from evener.graders.hacking.detect import after_flags
from evener.graders.hacking.look import look
from evener.graders.inputs import INPUTS, inputs_of
from evener.graders.port import Allowed, Grade, GraderError, GradingContext
from evener.graders.registry import GROUP_GRADERS, grader_for
from evener.proto.errors import Recoverable
from evener.proto.sessions import Artifact
from evener.proto.trajectories import Flag, TrajectoryBuilt, TrajectoryScored
from evener.runtime.backoff import Backoff
from evener.sandboxes.port import Sandboxes
from evener.sandboxes.registry import BACKENDS, LOCAL
from evener.service.telemetry import Metrics

LONGEST_PAUSE_SECONDS: Final = 60.0

log = structlog.get_logger()
tracer = trace.get_tracer("evener.evaluator")


class Gradings:
    """Grades sessions, a bounded number at a time."""

    def __init__(self, config: Config, waiting: Blobs, answering: Blobs, sandboxes: Mapping[str, Sandboxes], metrics: Metrics) -> None:
        """`sandboxes` are the backends by name: a session is graded in that of its harness, a recording in `local`.

        Evidence is stored in `waiting`; a grader reads from `answering`, which raises when the store is unavailable.
        """
        self._config = config
        self._waiting = waiting
        self._answering = answering
        self._sandboxes = sandboxes
        self._metrics = metrics
        self._allowed = Allowed(endpoints=config.endpoints, modules=config.grader_modules)
        self._room = asyncio.Semaphore(config.concurrency)

    async def scored(self, trajectory: TrajectoryBuilt, name: str) -> TrajectoryScored:
        """Return the session with its reward, or with the reason why it has none. `name` is unique among the open gradings."""
        reason = not_graded(trajectory)
        if reason is not None:
            return score(trajectory, Grade(reward=None, ungraded=reason), (), seconds=0.0, tries=0, now=time.time())
        if trajectory.spec.grader.name in GROUP_GRADERS:
            flags, unwatched = await self._looked(trajectory)
            waits = Grade(reward=None, ungraded="its group is graded together")
            return score(trajectory, waits, (), flags=flags, unwatched=unwatched, pending=True, seconds=0.0, tries=0, now=time.time())
        grade, evidence, tries, seconds = await self._tried(trajectory, name)
        flags, unwatched = await self._looked(trajectory)
        grade = after_flags(grade, flags, unwatched, trajectory.spec.grader.hacking)
        grader = trajectory.spec.grader.name
        self._metrics.grading_seconds.labels(grader).observe(seconds)
        self._metrics.gradings.labels(grader, "ungraded" if grade.reward is None else "graded").inc()
        kept = await self._kept(evidence)
        return score(trajectory, grade, kept, flags=flags, unwatched=unwatched, seconds=seconds, tries=tries, now=time.time())

    async def group_scored(self, pending: Sequence[TrajectoryScored], name: str) -> list[TrajectoryScored]:
        """Return the sessions of a group with their rewards, or with the reason why none has one. Their own scores are pending."""
        group = tuple(scored.trajectory for scored in sorted(pending, key=lambda one: one.trajectory.spec.index))
        grade, evidence, tries, seconds = await self._tried(group[0], name, group)
        grader = group[0].spec.grader.name
        self._metrics.grading_seconds.labels(grader).observe(seconds)
        self._metrics.gradings.labels(grader, "ungraded" if grade.reward is None else "graded").inc(len(group))
        kept = await self._kept(evidence)
        return [of_group(scored, grade, kept, seconds=seconds, tries=tries, now=time.time()) for scored in pending]

    async def _looked(self, trajectory: TrajectoryBuilt) -> tuple[tuple[Flag, ...], str | None]:
        """Return the signs of reward hacking, and why not all of the session could be looked at."""
        try:
            with tracer.start_as_current_span("look"):
                flags, unwatched = await look(trajectory, self._waiting)
        except Exception as bug:  # a detector that fails on what the agent left must not cost the session
            log.exception("session_not_looked_at", session_id=trajectory.session_id)
            flags, unwatched = (), f"a detector crashed: {type(bug).__name__}: {bug}"
        for detector, consequence in sorted({(flag.detector, flag.consequence) for flag in flags}):
            self._metrics.sessions_flagged.labels(detector, consequence).inc()
            log.warning("session_flagged", session_id=trajectory.session_id, detector=detector, consequence=consequence)
        if unwatched is not None:
            self._metrics.sessions_unwatched.inc()
        return flags, unwatched

    async def _tried(
        self, trajectory: TrajectoryBuilt, name: str, group: Sequence[TrajectoryBuilt] = ()
    ) -> tuple[Grade, dict[str, bytes], int, float]:
        """Return the grade, or the reason after the last failed try; the evidence of all tries, their number, and their seconds.

        `group`: the sessions that are graded together, the first of which is `trajectory`. Empty: it is graded alone.

        A try whose blobs could not be read does not count as the grader's: the store may recover.
        """
        tries = unread = 0
        wanted = trajectory.spec.harness.sandbox
        inputs = await asyncio.to_thread(inputs_of, trajectory)
        earlier = dict[str, bytes]()
        pauses = Backoff(self._config.retry_seconds, LONGEST_PAUSE_SECONDS)
        seconds, deadline = 0.0, time.monotonic() + self._config.blob_seconds
        while True:
            context = GradingContext(
                trajectory=trajectory,
                blobs=self._answering,
                sandboxes=self._sandboxes.get(LOCAL if wanted not in BACKENDS else wanted),
                name=f"{name}-{tries + unread + 1}",
                allowed=self._allowed,
                group=group,
                evidence={INPUTS: inputs},
            )
            async with self._room:
                began, grade = time.monotonic(), None
                try:
                    grade = await self._try(context)
                    tries += 1
                except BlobError as failed:
                    unread += 1
                    log.warning("blob_not_read_for_grading", session_id=trajectory.session_id, error=str(failed))
                    if not isinstance(failed, Recoverable) and time.monotonic() > deadline:
                        grade = Grade(reward=None, ungraded=str(failed))
                except GraderError as error:
                    tries += 1
                    log.warning("grading_failed", session_id=trajectory.session_id, tries=tries, error=error.what)
                    if gives_up(trajectory, error, tries):
                        grade = Grade(reward=None, ungraded=error.what)
                    else:
                        earlier |= of_try(tries, context.evidence, error.what)
                seconds += time.monotonic() - began
            if grade is not None:
                return grade, context.evidence | earlier, max(tries, 1), seconds
            await asyncio.sleep(pauses.seconds(tries + unread))

    async def _try(self, context: GradingContext) -> Grade:
        """Grade once. Any exception of a grader is a crash of the grader."""
        trajectory = context.trajectory
        try:
            with tracer.start_as_current_span("try"):
                async with asyncio.timeout(self._config.grading_seconds):
                    return await grader_for(trajectory.spec.grader.name)(context)
        except (GraderError, BlobError):
            raise
        except TimeoutError as cause:
            msg = f"no grade within {self._config.grading_seconds:g} s"
            raise GraderError(msg) from cause
        except Exception as cause:
            log.exception("grader_crashed", session_id=trajectory.session_id, grader=trajectory.spec.grader.name)
            context.evidence[CRASH] = traceback.format_exc().encode(errors="replace")
            msg = f"the grader crashed: {type(cause).__name__}: {cause}"
            raise GraderError(msg) from cause

    async def _kept(self, evidence: Mapping[str, bytes]) -> tuple[Artifact, ...]:
        return tuple([Artifact(name=name, blob=await self._waiting.put(content)) for name, content in evidence.items()])
