"""Publishes versions: staged in the log, loaded into every engine, proven by the canary, published; or rolled back, with an alarm.

Killed anywhere, nothing is half done for good: what is staged and not published is taken up again (`keeping`).
"""

import asyncio
import time
from pathlib import Path

import structlog
from msgspec import Struct

from evener.client.views import EngineUpdate
from evener.proto.errors import EvenerError, Recoverable
from evener.proto.fleet import Canary, PolicyPublished, PolicyRetired, PolicyStaged
from evener.service.faults import point
from evener.service.telemetry import Metrics
from evener.trainer_bridge.canary import CanaryFailed, as_scored, compared
from evener.trainer_bridge.candidates import Candidates
from evener.trainer_bridge.driving import Driven, Missing, Prepared, drive, prepare
from evener.trainer_bridge.fleet import Engines, Joined
from evener.trainer_bridge.policies import Policies, Writer
from evener.trainer_bridge.under_way import UnderWay
from evener.trainer_bridge.weights import Weights, WeightsRefused, read_weights

log = structlog.get_logger()


class PolicyUnknown(EvenerError):
    """Publish to a policy that a gateway is configured for, or that an engine has joined for."""


class FleetUnknown(Recoverable):
    """Start a gateway, or wait until it has said that it is there."""


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
    """Publishes versions of the policies that this bridge is responsible for."""

    def __init__(self, policies: Policies, engines: Engines, candidates: Candidates, under_way: UnderWay, metrics: Metrics) -> None:
        self._policies = policies
        self._engines = engines
        self._candidates = candidates
        self._under_way = under_way
        self._metrics = metrics

    async def publish(self, wish: Wish) -> Done:
        """Publish a version, unless it is published.

        Raises PolicyUnknown, VersionRefused, WeightsRefused, CanaryFailed, NotUpdatable; NotDriving, NoEngineReached, EngineError; what
        a commit raises.
        """
        if not self._under_way.drives(wish.policy):
            msg = f"policy {wish.policy} is not this bridge's now"
            raise NotDriving(msg)
        await self._engines.refresh()
        self._check_policy(wish.policy)
        async with self._under_way.locks[wish.policy], self._policies.writer(wish.policy) as writer:
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
            return await self.drive(writer, staged, weights)

    async def drive(self, writer: Writer, staged: PolicyStaged, weights: Weights) -> Done:
        """Stage, load, prove and publish a version, or roll it back. Raises as `publish`."""
        await self._engines.refresh()
        missing = Missing(self._under_way.load_seconds)
        candidates = await self._candidates.of(staged, weights, missing)
        prepared = await prepare(candidates, missing, staged.canary)
        if missing.why and not prepared.steps:
            raise await self._unreached(staged, missing)
        with self._under_way.update(staged.policy):
            return await self._load(writer, staged, prepared, missing, tied=weights.tied)

    async def put_out(self, engine: Joined, error: EvenerError | str) -> None:
        """Let an engine leave that hangs, or whose weights nobody knows, with an alarm."""
        self._metrics.updates.labels("put_out").inc()
        log.error("engine_put_out", engine_id=engine.engine_id, policy=engine.joined.policy, error=str(error))
        await self._engines.put_out(engine)

    def _check_policy(self, policy: str) -> None:
        """Refuse a name that nobody uses: a policy to be served has a gateway, which says so to the fleet."""
        known = sorted({*self._policies.policies(), *self._engines.known()})
        if not known:
            msg = "no gateway has said yet which policies there are, and no engine has joined"
            raise FleetUnknown(msg)
        if policy not in known:
            msg = f"no gateway and no engine knows the policy {policy!r}: there are {', '.join(known)}"
            raise PolicyUnknown(msg)

    def _check_wish(self, wish: Wish, weights: Weights) -> None:
        if wish.digest not in {None, weights.digest}:
            msg = f"{wish.path} has the digest {weights.digest}, not {wish.digest}"
            raise WeightsRefused(msg)
        current = self._policies.current(wish.policy)
        if current is not None and current.version != wish.version and current.location == wish.path:
            msg = f"{wish.path} is version {current.version}, which must stay to be loaded again"
            raise WeightsRefused(msg)

    async def _load(self, writer: Writer, staged: PolicyStaged, prepared: Prepared, missing: Missing, *, tied: bool) -> Done:
        if self._policies.pending(staged.policy) != staged:
            await writer.write(staged)
        await point("bridge.policy_staged")
        driven = await drive(prepared, staged, missing, tied=tied)
        await point("bridge.policy_loaded")
        if driven.wrong is not None:
            raise await self._rolled_back(writer, staged, driven.wrong, driven.lost)
        if missing.why and not driven.updates:
            raise await self._unreached(staged, missing)
        done = await self._published(writer, staged, prepared, driven, missing, tied=tied)
        await self._put_out_hung(missing)
        return done

    async def _published(
        self, writer: Writer, staged: PolicyStaged, prepared: Prepared, driven: Driven, missing: Missing, *, tied: bool
    ) -> Done:
        updates = tuple(updated.view for updated in driven.updates)
        gaps = [update.gap for update in updates if update.gap is not None]
        event = PolicyPublished(
            policy=staged.policy,
            version=staged.version,
            location=staged.location,
            digest=staged.digest,
            canary=_for_others(staged, prepared, driven),
            gap=max(gaps, default=None),
            published_at=time.time(),
        )
        await writer.write(event)
        await point("bridge.policy_published")
        warnings = _warnings(staged, missing, updated=bool(updates), unseen=tied and bool(prepared.steps) and not gaps)
        self._metrics.updates.labels("published").inc()
        for update in updates:
            self._metrics.update_seconds.observe(update.seconds)
        log.info("policy_published", policy=event.policy, version=event.version, engines=len(updates), gap=event.gap)
        for warning in warnings:
            log.warning("policy_published_with", policy=event.policy, version=event.version, warning=warning)
        return Done(event=event, new=True, engines=updates, warnings=warnings)

    async def _rolled_back(self, writer: Writer, staged: PolicyStaged, wrong: EvenerError, lost: tuple[Joined, ...]) -> EvenerError:
        """Retire the version for good, with an alarm; return the error to raise. Engines were brought back, or leave."""
        reason = str(wrong.args[0]) if wrong.args else type(wrong).__name__
        await writer.write(PolicyRetired(policy=staged.policy, version=staged.version, reason=reason, retired_at=time.time()))
        await point("bridge.policy_retired")
        self._metrics.updates.labels("rolled_back").inc()
        log.error("policy_rolled_back", policy=staged.policy, version=staged.version, error=reason, lost=[one.engine_id for one in lost])
        for engine in lost:
            await self.put_out(engine, "it was not brought back to the version before")
        return CanaryFailed(f"version {staged.version} of {staged.policy} is rolled back: {reason}")

    async def _unreached(self, staged: PolicyStaged, missing: Missing) -> NoEngineReached:
        self._metrics.updates.labels("unreached").inc()
        await self._put_out_hung(missing)
        engine_id, why = next(iter(missing.why.items()))
        return NoEngineReached(f"version {staged.version} of {staged.policy}: engine {engine_id}: {why}")

    async def _put_out_hung(self, missing: Missing) -> None:
        for engine in missing.hung:
            await self.put_out(engine, missing.why[engine.engine_id])


def _for_others(staged: PolicyStaged, prepared: Prepared, driven: Driven) -> Canary | None:
    """Return what engines that join later are compared with: the trainer's logprobs, or, where it gave none, those of an engine."""
    if prepared.canary is None or compared(prepared.canary) or not driven.updates:
        return staged.canary
    return as_scored(prepared.canary, driven.updates[0].scores)


def _warnings(staged: PolicyStaged, missing: Missing, *, updated: bool, unseen: bool) -> tuple[str, ...]:
    """Return what a trainer should know. `unseen`: nobody has compared tied embeddings."""
    found = [f"engine {engine_id} has not got it yet: {why}" for engine_id, why in missing.why.items()]
    if not updated:
        found.append(f"no engine samples {staged.policy} now; those that join get it")
    if unseen:
        found.append("its embeddings are tied: vLLM for CPU keeps the old output matrix; give logprobs to see it, or save untied")
    return tuple(found)
