"""Publishes versions of policies: checks what a trainer asks for, stages it in the log, and answers with how its rollout ended.

If the process is killed at any point, a version that is staged and not published is taken up again (`reconcile`).
"""

import asyncio
import time
from pathlib import Path

import structlog

from evener.client.views import Publish, PublishAnswer
from evener.proto.errors import EvenerError, Recoverable
from evener.proto.fields import shared_fields
from evener.proto.fleet import PolicyPublished, PolicyStaged
from evener.service.telemetry import Metrics
from evener.trainer_bridge.canary import CanaryFailed
from evener.trainer_bridge.engines import PolicyEngines, check_folder
from evener.trainer_bridge.policies import CommitEvent, Policies
from evener.trainer_bridge.rollout import Rollout
from evener.trainer_bridge.rollout_gate import RolloutGate
from evener.trainer_bridge.updates import UpdateStage
from evener.trainer_bridge.weights import Weights, WeightsRefused, check_same_model, read_weights

log = structlog.get_logger()


class PolicyUnknown(EvenerError):
    """Publish to a policy that a gateway is configured for, or that an engine has joined for."""


class FleetUnknown(Recoverable):
    """Start a gateway, or wait until it has announced its policies."""


class PolicyNotOwned(Recoverable):
    """Another bridge owns this policy, or this one has just started. Ask again, or ask the other bridge."""


class NoEngineReached(Recoverable):
    """No engine took the version, and none answers now. Look at the engines, and publish the version again with the same number."""


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
            msg = f"policy {policy} is not owned by this bridge now"
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


async def _check_against(current: PolicyPublished, weights: Weights) -> None:
    """Raise WeightsRefused if the weights are of another model than the current version's, unless that version's folder is gone."""
    try:
        before = await asyncio.to_thread(read_weights, Path(current.location), digest=current.digest)
    except WeightsRefused:
        return
    check_same_model(weights, before)
