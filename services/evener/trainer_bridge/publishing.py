"""Publishes versions: staged in the log, loaded into every engine, proven by the canary, published; or rolled back, with an alarm.

Killed anywhere, nothing is half done for good: what is staged and not published is taken up again by `run`.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import structlog
from msgspec import Struct

from evener.client.views import EngineUpdate
from evener.engines.port import EngineError, EngineUnreachable, WeightControl
from evener.proto.errors import EvenerError, Recoverable
from evener.proto.fleet import Canary, PolicyPublished, PolicyRetired, PolicyStaged
from evener.service.faults import point
from evener.service.telemetry import Metrics
from evener.trainer_bridge.canary import CanaryFailed, prove
from evener.trainer_bridge.driving import Driven, Prepared, drive, prepare
from evener.trainer_bridge.fleet import Engines, Joined
from evener.trainer_bridge.policies import Policies, Writer
from evener.trainer_bridge.updating import Held, has, held, held_at_start, load, scores
from evener.trainer_bridge.weights import Weights, WeightsRefused, check_same_model, read_weights

LOOK_SECONDS: Final = 2.0
"""Between two looks at what the engines have."""

log = structlog.get_logger()


class NotUpdatable(EvenerError):
    """Serve the policy with vLLM in development mode, or let this engine leave, to publish versions of it."""


class NotDriving(Recoverable):
    """Another bridge drives this policy, or this one has just started. Ask again, or ask the other."""


class NoEngineReached(Recoverable):
    """No engine took the version, and none answers now. Look at the engines; publish it again, with the same number."""


class Wish(Struct, frozen=True, kw_only=True):
    """A version that a trainer wants to publish."""

    policy: str
    version: int
    path: str
    digest: str | None = None
    canary: Canary | None = None


class Done(Struct, frozen=True, kw_only=True):
    """A version that is published."""

    event: PolicyPublished
    new: bool
    engines: tuple[EngineUpdate, ...] = ()
    warnings: tuple[str, ...] = ()


class Publisher:
    """Drives the engines of the policies that this bridge is responsible for."""

    def __init__(self, policies: Policies, engines: Engines, metrics: Metrics, drives: Callable[[str], bool]) -> None:
        """`drives`: whether a policy is this bridge's now. Two must not drive one engine."""
        self._policies = policies
        self._engines = engines
        self._metrics = metrics
        self._drives = drives
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._origins: dict[str, Weights] = {}
        """Weights that engines were started with, by folder."""
        self._under_way: set[asyncio.Future[None]] = set()
        """One a version that engines are being given."""
        self._told: dict[str, str] = {}
        """The last trouble with a staged version, so that it is logged once."""

    async def publish(self, wish: Wish) -> Done:
        """Publish a version, unless it is published.

        Raises VersionRefused, WeightsRefused, CanaryFailed, NotUpdatable; NotDriving, NoEngineReached, EngineError; what a commit raises.
        """
        if not self._drives(wish.policy):
            msg = f"policy {wish.policy} is not this bridge's now"
            raise NotDriving(msg)
        async with self._locks[wish.policy], self._policies.writer(wish.policy) as writer:
            weights = await asyncio.to_thread(read_weights, Path(wish.path))
            self._check_wish(wish, weights)
            known = self._policies.known(wish.policy, wish.version, weights.digest)
            if isinstance(known, PolicyPublished):
                return Done(event=known, new=False)
            staged = PolicyStaged(
                policy=wish.policy,
                version=wish.version,
                location=wish.path,
                digest=weights.digest,
                canary=wish.canary,
                staged_at=time.time(),
            )
            return await self._drive(writer, staged, weights)

    async def run(self) -> None:
        """Bring every engine to its policy's version, for ever: joined ones, those that came back, and what a dead bridge left."""
        while True:
            for policy in self._policies.policies():  # engines of others may have versions from elsewhere
                if self._drives(policy) and not self._locks[policy].locked():
                    async with self._locks[policy]:
                        await self._look_after(policy)
            if not any(lock.locked() for lock in self._locks.values()):
                await self._engines.clean()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._engines.changed.wait(), LOOK_SECONDS)
            self._engines.changed.clear()

    async def settled(self) -> None:
        """Wait until no update is under way: before its end nobody knows whether its tokens may be trained."""
        while self._under_way:
            await asyncio.wait(set(self._under_way))

    def _check_wish(self, wish: Wish, weights: Weights) -> None:
        if wish.digest not in {None, weights.digest}:
            msg = f"{wish.path} has the digest {weights.digest}, not {wish.digest}"
            raise WeightsRefused(msg)
        current = self._policies.current(wish.policy)
        if current is not None and current.version != wish.version and current.location == wish.path:
            msg = f"{wish.path} is version {current.version}, which must stay to be loaded again"
            raise WeightsRefused(msg)

    async def _drive(self, writer: Writer, staged: PolicyStaged, weights: Weights) -> Done:
        """Stage, load, prove and publish a version, or roll it back."""
        await self._engines.refresh()
        engines, absent = await self._updatable(staged.policy)
        before = await self._weights_before(staged.policy, [control for _, control, _ in engines])
        if before is not None:
            check_same_model(weights, before)
        prepared = await prepare(engines, absent, staged.canary)
        if prepared.absent and not prepared.steps:
            raise self._unreached(staged, prepared.absent)
        differs = before is not None and before.digest != weights.digest
        with self._going_on():
            return await self._load(writer, staged, prepared, differs=differs, tied=weights.tied)

    @contextmanager
    def _going_on(self) -> Iterator[None]:
        """Let `settled` wait until this block ends."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._under_way.add(ended)
        try:
            yield
        finally:
            self._under_way.discard(ended)
            ended.set_result(None)

    async def _load(self, writer: Writer, staged: PolicyStaged, prepared: Prepared, *, differs: bool, tied: bool) -> Done:
        if self._policies.pending(staged.policy) != staged:
            await writer.write(staged)
        await point("bridge.policy_staged")
        driven = await drive(prepared, staged, differs=differs, tied=tied)
        await point("bridge.policy_loaded")
        if driven.wrong is not None:
            raise await self._rolled_back(writer, staged, driven.wrong, driven.lost)
        if driven.absent and not driven.updates:
            raise self._unreached(staged, driven.absent)
        return await self._published(writer, staged, prepared, driven, tied=tied)

    async def _published(self, writer: Writer, staged: PolicyStaged, prepared: Prepared, driven: Driven, *, tied: bool) -> Done:
        gaps = [update.gap for update in driven.updates if update.gap is not None]
        event = PolicyPublished(
            policy=staged.policy,
            version=staged.version,
            location=staged.location,
            digest=staged.digest,
            canary=staged.canary,
            gap=max(gaps, default=None),
            published_at=time.time(),
        )
        await writer.write(event)
        await point("bridge.policy_published")
        warnings = [f"engine {engine_id} has not got it yet: {why}" for engine_id, why in driven.absent.items()]
        if tied and prepared.steps and not gaps:
            warnings.append("its embeddings are tied: vLLM for CPU keeps the old output matrix; give logprobs to see it, or save untied")
        self._metrics.updates.labels("published").inc()
        for update in driven.updates:
            self._metrics.update_seconds.observe(update.seconds)
        log.info("policy_published", policy=event.policy, version=event.version, engines=len(driven.updates), gap=event.gap)
        for warning in warnings:
            log.warning("policy_published_with", policy=event.policy, version=event.version, warning=warning)
        return Done(event=event, new=True, engines=driven.updates, warnings=tuple(warnings))

    async def _rolled_back(self, writer: Writer, staged: PolicyStaged, wrong: EvenerError, lost: tuple[Joined, ...]) -> EvenerError:
        """Retire the version for good, with an alarm; return the error to raise. Engines were brought back, or leave."""
        reason = str(wrong.args[0]) if wrong.args else type(wrong).__name__
        await writer.write(PolicyRetired(policy=staged.policy, version=staged.version, reason=reason, retired_at=time.time()))
        await point("bridge.policy_retired")
        self._metrics.updates.labels("rolled_back").inc()
        log.error("policy_rolled_back", policy=staged.policy, version=staged.version, error=reason, lost=[one.engine_id for one in lost])
        for engine in lost:
            await self._engines.put_out(engine)
        return CanaryFailed(f"version {staged.version} of {staged.policy} is rolled back: {reason}")

    def _unreached(self, staged: PolicyStaged, absent: dict[str, str]) -> NoEngineReached:
        self._metrics.updates.labels("unreached").inc()
        engine_id, why = next(iter(absent.items()))
        return NoEngineReached(f"version {staged.version} of {staged.policy}: engine {engine_id}: {why}")

    async def _updatable(self, policy: str) -> tuple[list[tuple[Joined, WeightControl, Held]], dict[str, str]]:
        """Return the policy's engines with the version that they are to have before, and why others do not answer.

        Raises NotUpdatable.
        """
        current = self._policies.current(policy)
        found: list[tuple[Joined, WeightControl, Held]] = []
        absent: dict[str, str] = {}
        for engine in self._engines.of(policy):
            if engine.control is None:
                msg = f"engine {engine.engine_id} of kind {engine.joined.kind} keeps the weights that it was started with"
                raise NotUpdatable(msg)
            try:
                await engine.control.label()
                before = held(current) if current is not None else await held_at_start(policy, engine.control)
            except EngineUnreachable as unreachable:
                absent[engine.engine_id] = str(unreachable.args[0])
            except EngineError as cause:
                msg = f"engine {engine.engine_id} takes no weights: {cause.args[0]}"
                raise NotUpdatable(msg) from cause
            else:
                found.append((engine, engine.control, before))
        return found, absent

    async def _weights_before(self, policy: str, controls: list[WeightControl]) -> Weights | None:
        """Return the weights that the engines have. None: their folder cannot be seen from here."""
        current = self._policies.current(policy)
        if current is not None:
            with suppress(WeightsRefused):
                weights = await asyncio.to_thread(read_weights, Path(current.location), digest=current.digest)
                self._origins.clear()
                return weights
            return None
        for control in controls:
            with suppress(EngineError, WeightsRefused):
                origin = await control.origin()
                if not Path(origin).is_absolute():  # a name, or a place that only the engine knows
                    continue
                if origin not in self._origins:
                    self._origins[origin] = await asyncio.to_thread(read_weights, Path(origin))
                return self._origins[origin]
        return None

    async def _look_after(self, policy: str) -> None:
        staged = self._policies.pending(policy)
        if staged is not None:
            await self._take_up(staged)
        for engine in self._engines.of(policy):
            if engine.control is not None:
                await self._bring(policy, engine, engine.control)

    async def _take_up(self, staged: PolicyStaged) -> None:
        """Go on with an update that did not end: the bridge died, or reached no engine. What stands against it is logged once."""
        name = f"{staged.policy}@{staged.version}"
        try:
            async with self._policies.writer(staged.policy) as writer:
                await self._drive(writer, staged, await _weights_of(staged))
        except CanaryFailed:
            return  # rolled back, and said so
        except (WeightsRefused, NotUpdatable, NoEngineReached, EngineError) as failed:
            if self._told.get(name) != str(failed):
                log.error("update_not_taken_up", policy=staged.policy, version=staged.version, error=str(failed))
            self._told[name] = str(failed)
        else:
            self._told.pop(name, None)

    async def _bring(self, policy: str, engine: Joined, control: WeightControl) -> None:
        """Load the current version into an engine that has another. What stands against it is logged once."""
        current = self._policies.current(policy)
        try:
            wanted = held(current) if current is not None else await held_at_start(policy, control)
            if not await has(control, wanted):
                await self._load_current(engine, control, wanted, current)
            engine.told = ""
        except CanaryFailed as failed:
            log.error("engine_put_out", engine_id=engine.engine_id, policy=policy, error=str(failed))
            await self._engines.put_out(engine)
        except (EngineError, WeightsRefused) as failed:
            if engine.told != str(failed):
                log.warning("engine_not_updated", engine_id=engine.engine_id, policy=policy, error=str(failed))
            engine.told = str(failed)

    async def _load_current(self, engine: Joined, control: WeightControl, wanted: Held, current: PolicyPublished | None) -> None:
        if current is not None:
            await _weights_of(current)
        seconds = await load(control, wanted)
        if current is not None and current.canary is not None:
            after = await scores(control, current.canary)
            prove(engine.engine_id, current.canary, None, after, version=wanted.version, must_change=False)
        log.info("engine_updated", engine_id=engine.engine_id, policy=wanted.label, seconds=round(seconds, 3))


async def _weights_of(version: PolicyStaged | PolicyPublished) -> Weights:
    """Return the weights of a version, whose folder may have been written over since. Raises WeightsRefused."""
    weights = await asyncio.to_thread(read_weights, Path(version.location))
    if weights.digest != version.digest:
        msg = f"{version.location} holds other weights than it did as version {version.version} of {version.policy}"
        raise WeightsRefused(msg)
    return weights
