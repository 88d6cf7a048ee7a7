"""Rollouts of weights: a version is staged in the log, loaded into every engine, proven by the canary, and published or rolled back.

`updates` decides what follows what, and this module carries it out. If the process is killed at any point, a version that is staged and not
published is taken up again (`reconcile`).
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Final

import structlog

from evener.client.views import EngineUpdate, Publish, PublishAnswer
from evener.engines.port import EngineError, EngineUnreachable, TokenScores
from evener.proto.errors import EvenerError, Recoverable
from evener.proto.fields import shared_fields
from evener.proto.fleet import Canary, PolicyPublished, PolicyRetired, PolicyStaged
from evener.runtime.faults import point
from evener.runtime.tasks import Tasks
from evener.service.telemetry import Metrics
from evener.trainer_bridge.canary import UNCHANGED, CanaryFailed, as_scored, compared, prove, same
from evener.trainer_bridge.engines import (
    EngineHung,
    KnownWeights,
    PolicyEngine,
    PolicyEngines,
    check_folder,
    has,
    in_time,
    load,
    loadable,
    own_canary,
    scores,
    weights_of,
)
from evener.trainer_bridge.policies import CommitEvent, Policies
from evener.trainer_bridge.updates import (
    COMMITS,
    ENDED_STAGES,
    AnswerKind,
    EngineAnswered,
    EngineStage,
    Update,
    UpdateStage,
    advance,
    begin,
)
from evener.trainer_bridge.weights import Weights, WeightsRefused, check_same_model, read_weights

STAGED_POLL_SECONDS: Final = 0.2
"""The interval of checks whether a staged version was published or rolled back."""

log = structlog.get_logger()


class PolicyUnknown(EvenerError):
    """Publish to a policy that a gateway is configured for, or that an engine has joined for."""


class FleetUnknown(Recoverable):
    """Start a gateway, or wait until it has announced its policies."""


class PolicyNotOwned(Recoverable):
    """Another bridge owns this policy, or this one has just started. Ask again, or ask the other bridge."""


class NoEngineReached(Recoverable):
    """No engine took the version, and none answers now. Look at the engines, and publish the version again with the same number."""


class NotUpdatable(EvenerError):
    """Serve the policy with vLLM in development mode, or let this engine leave, to publish versions of the policy."""


class RolloutGate:
    """Knows which rollouts are under way. Each policy has one at a time, and no group of the policy is delivered meanwhile."""

    def __init__(self, policies: Policies, owns: Callable[[str], bool], load_seconds: float) -> None:
        """`owns`: whether this bridge owns a policy now. `load_seconds`: how long an engine may take for an update."""
        self.owns: Final = owns
        self.locks: Final[defaultdict[str, asyncio.Lock]] = defaultdict(asyncio.Lock)
        """Policy to the lock that is held while its engines are updated."""
        self._policies = policies
        self._load_seconds = load_seconds
        self._ends: dict[str, asyncio.Event] = {}
        """Policy with a rollout to the event that is set when the rollout has ended."""
        self._staged: dict[str, tuple[PolicyStaged, float]] = {}
        """Policy to the version that was last waited for, and until when (monotonic seconds)."""

    @contextmanager
    def closed(self, policy: str) -> Iterator[None]:
        """Keep `settled` waiting until this block ends."""
        ended = self._ends[policy] = asyncio.Event()
        try:
            yield
        finally:
            del self._ends[policy]
            ended.set()

    async def settled(self, policy: str) -> None:
        """Wait until no rollout of a policy is under way. Before its end nobody knows whether the version's tokens may be trained.

        A rollout by another bridge, or one still to be taken up after a crash, is waited for as long as an engine may take.
        """
        while True:
            if (ended := self._ends.get(policy)) is not None:
                await ended.wait()
            elif (staged := self._policies.pending(policy)) is not None and time.monotonic() < self._until(staged):
                await asyncio.sleep(STAGED_POLL_SECONDS)
            else:
                return

    async def all_settled(self) -> None:
        """Wait until this bridge has no rollout under way."""
        while self._ends:
            await next(iter(self._ends.values())).wait()

    def _until(self, staged: PolicyStaged) -> float:
        """Return until when a staged version is waited for. The time counts from when this process first saw the version."""
        version, until = self._staged.get(staged.policy, (None, 0.0))
        if version != staged:
            until = time.monotonic() + self._load_seconds
            self._staged[staged.policy] = (staged, until)
        return until


class Publisher:
    """Publishes versions of the policies that this bridge owns."""

    def __init__(self, policies: Policies, engines: PolicyEngines, gate: RolloutGate, metrics: Metrics) -> None:
        self._policies = policies
        self._engines = engines
        self._gate = gate
        self._metrics = metrics

    async def publish(self, policy: str, asked: Publish) -> PublishAnswer:
        """Publish a version, unless it is published already.

        Raises PolicyUnknown, VersionRefused, WeightsRefused, CanaryFailed, NotUpdatable, PolicyNotOwned, NoEngineReached, EngineError, and
        the errors of a commit.
        """
        if not self._gate.owns(policy):
            msg = f"policy {policy} is not this bridge's now"
            raise PolicyNotOwned(msg)
        await self._engines.refresh()
        self._check_policy(policy)
        async with self._gate.locks[policy], self._policies.writer(policy) as write:
            weights = await asyncio.to_thread(read_weights, Path(asked.path))
            self._check_asked(policy, asked, weights)
            known = self._policies.known(policy, asked.version, weights.digest)
            if isinstance(known, PolicyPublished):
                return PublishAnswer(**shared_fields(known, PublishAnswer), new=False)
            staged = PolicyStaged(
                policy=policy,
                version=asked.version,
                location=asked.path,
                digest=weights.digest,
                canary=asked.canary,
                staged_at=time.time(),
            )
            return await self._roll_out(write, staged, weights)

    async def take_up(self, policy: str) -> None:
        """Continue the rollout of a version that is staged but not published. The caller holds the policy's lock. Raises as `publish`."""
        async with self._policies.writer(policy) as write:
            if (staged := self._policies.pending(policy)) is not None:
                await self._roll_out(write, staged, await check_folder(staged))

    async def _roll_out(self, write: CommitEvent, staged: PolicyStaged, weights: Weights) -> PublishAnswer:
        await self._engines.refresh()
        policy, name = staged.policy, f"version {staged.version} of {staged.policy}"
        if (current := self._policies.current(policy)) is not None:
            await _check_against(current, weights)
        rollout = Rollout(staged, weights, self._policies, self._engines, write)
        update = await rollout.run(lambda: self._gate.closed(policy))
        match update.stage:
            case UpdateStage.REFUSED:
                raise rollout.trouble()
            case UpdateStage.UNREACHED:
                self._metrics.updates.labels("unreached").inc()
                engine_id, why = next(iter(update.why.items()))
                msg = f"{name}: engine {engine_id}: {why}"
                raise NoEngineReached(msg)
            case UpdateStage.RETIRED:
                self._metrics.updates.labels("rolled_back").inc()
                msg = f"{name} is rolled back: {rollout.reason()}"
                raise CanaryFailed(msg)
            case _:
                answer = rollout.answer(update)
        self._metrics.updates.labels("published").inc()
        for engine in answer.engines:
            self._metrics.update_seconds.observe(engine.seconds)
        log.info("policy_published", policy=policy, version=answer.version, engines=len(answer.engines), gap=answer.gap)
        for warning in answer.warnings:
            log.warning("policy_published_with", policy=policy, version=answer.version, warning=warning)
        return answer

    def _check_policy(self, policy: str) -> None:
        """Raise PolicyUnknown for a name that no gateway serves and no engine samples, FleetUnknown if no gateway has announced itself."""
        known = sorted({*self._policies.policies(), *self._engines.known()})
        if not known:
            msg = "no gateway has said yet which policies there are, and no engine has joined"
            raise FleetUnknown(msg)
        if policy not in known:
            msg = f"no gateway and no engine knows the policy {policy!r}: there are {', '.join(known)}"
            raise PolicyUnknown(msg)

    def _check_asked(self, policy: str, asked: Publish, weights: Weights) -> None:
        if asked.digest not in {None, weights.digest}:
            msg = f"{asked.path} has the digest {weights.digest}, not {asked.digest}"
            raise WeightsRefused(msg)
        current = self._policies.current(policy)
        if current is not None and current.version != asked.version and current.location == asked.path:
            msg = f"{asked.path} is version {current.version}, which must stay to be loaded again"
            raise WeightsRefused(msg)


class EngineRollout:
    """One engine in a rollout: its weights before, and its scores."""

    def __init__(self, engine: PolicyEngine) -> None:
        """Raises NotUpdatable for an engine whose weights cannot be exchanged."""
        if engine.control is None:
            msg = f"engine {engine.engine_id} of kind {engine.joined.kind} keeps the weights that it was started with"
            raise NotUpdatable(msg)
        self.engine: Final = engine
        self.engine_id: Final = engine.engine_id
        self.control: Final = engine.control
        self.before: KnownWeights | None = None
        """The weights before the update. None: the engine has other weights than it should, and cannot be given those."""
        self.canary: Canary
        """The canary that the engine has scored. Set from READY on."""
        self.scores: list[TokenScores]
        """The scores of the canary before the update. Set from READY on."""
        self.after: list[TokenScores]
        """The scores of the canary after the update. Set from PROVEN on."""
        self.view: EngineUpdate | None = None
        """The result of its proof. None: it has not proven the version."""


class Rollout:
    """Carries out one update of the engines."""

    def __init__(self, staged: PolicyStaged, weights: Weights, policies: Policies, engines: PolicyEngines, write: CommitEvent) -> None:
        """Raises NotUpdatable for an engine whose weights cannot be exchanged."""
        self._staged = staged
        self._weights = weights
        self._current = policies.current(staged.policy)
        """The version before. None: engines have the weights that they started with."""
        self._fleet = engines
        self._write = write
        self._in_log = policies.pending(staged.policy) == staged
        self._canary: Final = staged.canary
        self._engines = {engine.engine_id: EngineRollout(engine) for engine in engines.of(staged.policy)}
        self._loadable: dict[str, asyncio.Task[bool]] = {}
        """Folder to whether it still holds the weights that engines are to load again."""
        self._wrong: dict[str, EvenerError] = {}
        """Engine id to what the engine refused, or why its scores were wrong."""
        self._published: PolicyPublished
        """The record of the publication. Set at the stage PUBLISHING."""

    async def run(self, gate: Callable[[], AbstractContextManager[None]]) -> Update:
        """Carry the update out, and return its end. `gate` is entered at the staging. Raises the errors of a commit."""
        update = begin(self._engines)
        with ExitStack() as stack:
            while update.stage not in ENDED_STAGES:
                if update.stage is UpdateStage.STAGING:
                    stack.enter_context(gate())
                if update.stage in COMMITS:
                    await self._commit(update)
                    update = advance(update)
                else:
                    update = advance(update, await self._answers(update))
            for engine_id in update.leaving:
                await self._fleet.evict(self._engines[engine_id].engine, update.why[engine_id])
        return update

    def trouble(self) -> EvenerError:
        """Return the first engine's error."""
        return next(self._wrong[engine_id] for engine_id in self._engines if engine_id in self._wrong)

    def reason(self) -> str:
        """Return the first engine's error as text."""
        return _why(self.trouble())

    def answer(self, update: Update) -> PublishAnswer:
        """Return the answer to the trainer that publishes, for an update that is published."""
        event = self._published
        warnings = [f"engine {engine_id} has not got it yet: {why}" for engine_id, why in update.why.items()]
        if not (views := self._views()):
            warnings.append(f"no engine samples {event.policy} now; those that join get it")
        if self._weights.tied and views and event.gap is None:
            warnings.append("its embeddings are tied: vLLM for CPU keeps the old output matrix; give logprobs to see it, or save untied")
        return PublishAnswer(**shared_fields(event, PublishAnswer), new=True, engines=views, warnings=tuple(warnings))

    async def _answers(self, update: Update) -> list[EngineAnswered]:
        """Have each engine do the work of its stage; return their answers."""
        async with Tasks() as tasks:
            telling = [tasks.create_task(self._tell(self._engines[one], update.engines[one])) for one in update.at_work]
        return [task.result() for task in telling]

    async def _tell(self, one: EngineRollout, stage: EngineStage) -> EngineAnswered:
        """Have an engine do the work of its stage within its time."""
        doing = {EngineStage.PREPARING: self._prepare, EngineStage.LOADING: self._load, EngineStage.RESTORING: self._restore}[stage]
        try:
            await in_time(one.engine_id, self._fleet.load_seconds, doing(one))
        except EngineUnreachable as silent:
            hung = isinstance(silent, EngineHung)
            return EngineAnswered(engine_id=one.engine_id, answer=AnswerKind.SILENT, why=_why(silent), hung=hung)
        except EvenerError as wrong:
            self._wrong.setdefault(one.engine_id, wrong)
            return EngineAnswered(engine_id=one.engine_id, answer=AnswerKind.WRONG, why=_why(wrong))
        return EngineAnswered(engine_id=one.engine_id)

    async def _prepare(self, one: EngineRollout) -> None:
        """Ensure that an engine has the version before, and score the canary."""
        control = one.control
        try:
            await control.label()
            before = await self._before(one)
        except EngineUnreachable:
            raise
        except EngineError as cause:
            msg = f"engine {one.engine_id} takes no weights: {cause.args[0]}"
            raise NotUpdatable(msg) from cause
        if await has(control, before):
            one.before = before
        elif await loadable(before):
            await load(control, before)
            one.before = before
        elif await control.paused():
            msg = f"it is paused in the middle of an update, and {before.location} is not what it was: start it again"
            raise EngineUnreachable(msg)
        one.canary = self._canary or await own_canary(control)
        one.scores = await scores(control, one.canary)

    async def _before(self, one: EngineRollout) -> KnownWeights:
        """Return the weights that an engine must have before the update. Raises WeightsRefused if they are of another model."""
        if self._current is not None:
            return weights_of(self._current, one.engine.joined)
        before = await self._fleet.started_with(self._staged.policy, one.control)
        location = self._staged.location
        if Path(before.location).is_absolute() and Path(location) == await asyncio.to_thread(Path(before.location).resolve):
            msg = f"{location} is what engine {one.engine_id} was started with (version 0), which must stay to be loaded again"
            raise WeightsRefused(msg)
        if (first := await self._fleet.first_seen(before.location)) is not None:
            check_same_model(self._weights, first)
        return before

    async def _load(self, one: EngineRollout) -> None:
        """Have an engine load the version and prove it."""
        began, wanted = time.monotonic(), weights_of(self._staged, one.engine.joined)
        paused = await load(one.control, wanted)
        one.after = await scores(one.control, one.canary)
        known = None if one.before is None else one.before.digest
        differs = None if known is None else known != self._staged.digest
        proof = prove(one.engine_id, one.canary, one.scores, one.after, version=wanted.version, differs=differs, tied=self._weights.tied)
        await one.control.relabel(wanted.proven)
        await point("bridge.engine_proven")
        seconds = time.monotonic() - began
        one.view = EngineUpdate(engine_id=one.engine_id, seconds=seconds, paused_seconds=paused, change=proof.change, gap=proof.gap)

    async def _restore(self, one: EngineRollout) -> None:
        """Restore the weights that an engine had. If their folder is gone, that works only for an engine that never loaded the version."""
        before = one.before
        if before is None:
            msg = "it had other weights than those of the version before"
            raise CanaryFailed(msg)
        if there := await self._is_loadable(before):
            await load(one.control, before)
        elif await one.control.paused():
            msg = f"it is paused, and {before.location} is not what it was"
            raise CanaryFailed(msg)
        if not same(one.scores, await scores(one.control, one.canary), one.canary.tolerance if there else UNCHANGED):
            msg = "it was given the version before again, and does not score the canary as it did"
            raise CanaryFailed(msg)
        await one.control.relabel(before.proven)

    async def _is_loadable(self, before: KnownWeights) -> bool:
        """Return whether a folder can be loaded again. Each folder is read once, for all engines that had it."""
        if before.location not in self._loadable:
            self._loadable[before.location] = asyncio.ensure_future(loadable(before))
        return await asyncio.shield(self._loadable[before.location])

    async def _commit(self, update: Update) -> None:
        """Write the record of a stage."""
        staged = self._staged
        if update.stage is UpdateStage.STAGING:
            if not self._in_log:
                await self._write(staged)
            await point("bridge.policy_staged")
            return
        await point("bridge.policy_loaded")
        if update.stage is UpdateStage.PUBLISHING:
            self._published = self._publication()
            await self._write(self._published)
            await point("bridge.policy_published")
            return
        reason, lost = self.reason(), update.engines_in(EngineStage.LOST)
        await self._write(PolicyRetired(policy=staged.policy, version=staged.version, reason=reason, retired_at=time.time()))
        await point("bridge.policy_retired")
        log.error("policy_rolled_back", policy=staged.policy, version=staged.version, error=reason, lost=lost)

    def _publication(self) -> PolicyPublished:
        canary = self._canary
        if (first := next((one for one in self._engines.values() if one.view is not None), None)) and not compared(first.canary):
            canary = as_scored(first.canary, first.after)  # engines that join later are compared with this one
        return PolicyPublished(
            policy=self._staged.policy,
            version=self._staged.version,
            location=self._staged.location,
            digest=self._staged.digest,
            canary=canary,
            gap=max((view.gap for view in self._views() if view.gap is not None), default=None),
            published_at=time.time(),
        )

    def _views(self) -> tuple[EngineUpdate, ...]:
        return tuple(one.view for one in self._engines.values() if one.view is not None)


def _why(failed: EvenerError) -> str:
    return str(failed.args[0]) if failed.args else type(failed).__name__


async def _check_against(current: PolicyPublished, weights: Weights) -> None:
    """Raise WeightsRefused if the weights are of another model than the current version's, unless that version's folder is gone."""
    try:
        before = await asyncio.to_thread(read_weights, Path(current.location), digest=current.digest)
    except WeightsRefused:
        return
    check_same_model(weights, before)
