"""Keeps every engine at its policy's version: engines that join or come back, and updates that a dead bridge left unfinished."""

import asyncio
from contextlib import suppress
from typing import Final

import structlog

from evener.engines.port import EngineError, WeightControl
from evener.runtime.tasks import Tasks
from evener.trainer_bridge.canary import CanaryFailed
from evener.trainer_bridge.engines import EngineHung, PolicyEngine, PolicyEngines, bring, has, in_time, load
from evener.trainer_bridge.policies import Policies
from evener.trainer_bridge.publisher import NoEngineReached, Publisher
from evener.trainer_bridge.rollout import NotUpdatable
from evener.trainer_bridge.rollout_gate import RolloutGate
from evener.trainer_bridge.weights import WeightsRefused

WEIGHTS_POLL_SECONDS: Final = 2.0
"""The interval of checks of the engines' weights."""

log = structlog.get_logger()


class Reconciler:
    """Checks the engines of the policies that this bridge owns."""

    def __init__(self, policies: Policies, engines: PolicyEngines, publisher: Publisher, gate: RolloutGate) -> None:
        self._policies = policies
        self._engines = engines
        self._publisher = publisher
        self._gate = gate
        self._told: dict[str, str] = {}
        """Policy to the last trouble with its staged version, so that it is logged once."""

    async def run(self) -> None:
        """Check all policies for ever, independently: slow engines of one policy do not delay the others."""
        async with Tasks() as tasks:
            while True:
                await self._look(tasks)

    async def _look(self, tasks: Tasks) -> None:
        """Check every policy that is not being checked already. Then wait for the interval, or until an engine joins."""
        locks = self._gate.locks
        for policy in self._policies.policies():  # engines of others may have versions from elsewhere
            if self._gate.owns(policy) and not locks[policy].locked():
                tasks.create_task(self._look_after(policy))
        if not any(lock.locked() for lock in locks.values()):
            await self._engines.clean()
        with suppress(TimeoutError):
            async with asyncio.timeout(
                WEIGHTS_POLL_SECONDS
            ):  # `wait_for` swallows a cancellation that meets the change, before Python 3.12
                await self._engines.changed.wait()
        self._engines.changed.clear()

    async def _look_after(self, policy: str) -> None:
        async with self._gate.locks[policy]:
            if self._policies.pending(policy) is not None:
                await self._take_up(policy)
            await self._bring_all(policy)

    async def _take_up(self, policy: str) -> None:
        """Continue an update that did not end: the bridge died, or reached no engine. A failure is logged once."""
        try:
            await self._publisher.take_up(policy)
        except CanaryFailed:
            return  # rolled back, and said so
        except (WeightsRefused, NotUpdatable, NoEngineReached, EngineError) as failed:
            if self._told.get(policy) != str(failed):
                log.error("update_not_taken_up", policy=policy, error=str(failed))
            self._told[policy] = str(failed)
        else:
            self._told.pop(policy, None)

    async def _bring_all(self, policy: str) -> None:
        """Bring all engines of a policy up to date, including those that join meanwhile. An engine that hangs does not delay the others."""
        bringing: dict[str, asyncio.Task[None]] = {}
        async with Tasks() as tasks:
            while True:
                for engine in self._engines.of(policy):
                    if engine.control is not None and engine.engine_id not in bringing:
                        bringing[engine.engine_id] = tasks.create_task(self._bring(policy, engine, engine.control))
                if all(task.done() for task in bringing.values()):
                    return
                await asyncio.wait(bringing.values(), timeout=WEIGHTS_POLL_SECONDS)

    async def _bring(self, policy: str, engine: PolicyEngine, control: WeightControl) -> None:
        """Have an engine load and prove the current version. A failure is logged once."""
        try:
            await in_time(engine.engine_id, self._engines.load_seconds, self._brought(policy, engine, control))
            engine.told = ""
        except (CanaryFailed, EngineHung) as failed:
            await self._engines.evict(engine, failed)
        except (EngineError, WeightsRefused) as failed:
            if engine.told != str(failed):
                log.warning("engine_not_updated", engine_id=engine.engine_id, policy=policy, error=str(failed))
            engine.told = str(failed)

    async def _brought(self, policy: str, engine: PolicyEngine, control: WeightControl) -> None:
        if (current := self._policies.current(policy)) is not None:
            await bring(engine, control, current)
            return
        first = await self._engines.started_with(policy, control)
        if not await has(control, first):
            await load(control, first)
