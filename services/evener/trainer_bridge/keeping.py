"""Keeps every engine at its policy's version: those that join, those that come back, and what a dead bridge left half done."""

import asyncio
from contextlib import suppress
from typing import Final

import structlog

from evener.engines.port import EngineError, WeightControl
from evener.trainer_bridge.canary import CanaryFailed
from evener.trainer_bridge.candidates import Candidates, NotUpdatable
from evener.trainer_bridge.fleet import Engines, Joined
from evener.trainer_bridge.joining import bring, weights_of
from evener.trainer_bridge.policies import Policies
from evener.trainer_bridge.publishing import NoEngineReached, Publisher
from evener.trainer_bridge.under_way import UnderWay
from evener.trainer_bridge.updating import EngineHung, holds, in_time, load
from evener.trainer_bridge.weights import WeightsRefused

LOOK_SECONDS: Final = 2.0
"""Between two looks at what the engines have."""

log = structlog.get_logger()


class Keeper:
    """Looks at the engines of the policies that this bridge is responsible for."""

    def __init__(self, policies: Policies, engines: Engines, candidates: Candidates, publisher: Publisher, under_way: UnderWay) -> None:
        self._policies = policies
        self._engines = engines
        self._candidates = candidates
        self._publisher = publisher
        self._under_way = under_way
        self._told: dict[str, str] = {}
        """By policy: the last trouble with a staged version, so that it is logged once."""

    async def run(self) -> None:
        """Look for ever, at all policies at once: one whose engines are slow does not keep the others waiting."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    await self._look(tasks)
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _look(self, tasks: asyncio.TaskGroup) -> None:
        """Look after every policy that is not looked after still; then wait a while, or until an engine joins."""
        locks = self._under_way.locks
        for policy in self._policies.policies():  # engines of others may have versions from elsewhere
            if self._under_way.drives(policy) and not locks[policy].locked():
                tasks.create_task(self._look_after(policy))
        if not any(lock.locked() for lock in locks.values()):
            await self._engines.clean()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):  # `wait_for` swallows a cancellation that meets the change, before Python 3.12
                await self._engines.changed.wait()
        self._engines.changed.clear()

    async def _look_after(self, policy: str) -> None:
        async with self._under_way.locks[policy]:
            if self._policies.pending(policy) is not None:
                await self._take_up(policy)
            await self._bring_all(policy)

    async def _bring_all(self, policy: str) -> None:
        """Bring all engines of a policy up to date, those that join meanwhile too: one that hangs keeps no other waiting."""
        bringing: dict[str, asyncio.Task[None]] = {}
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    for engine in self._engines.of(policy):
                        if engine.control is not None and engine.engine_id not in bringing:
                            bringing[engine.engine_id] = tasks.create_task(self._bring(policy, engine, engine.control))
                    if all(task.done() for task in bringing.values()):
                        return
                    await asyncio.wait(bringing.values(), timeout=LOOK_SECONDS)
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def _take_up(self, policy: str) -> None:
        """Go on with an update that did not end: the bridge died, or reached no engine. What stands against it is logged once."""
        try:
            async with self._policies.writer(policy) as writer:
                if (staged := self._policies.pending(policy)) is not None:
                    await self._publisher.drive(writer, staged, await weights_of(staged))
        except CanaryFailed:
            return  # rolled back, and said so
        except (WeightsRefused, NotUpdatable, NoEngineReached, EngineError) as failed:
            if self._told.get(policy) != str(failed):
                log.error("update_not_taken_up", policy=policy, error=str(failed))
            self._told[policy] = str(failed)
        else:
            self._told.pop(policy, None)

    async def _bring(self, policy: str, engine: Joined, control: WeightControl) -> None:
        """Let an engine have and prove the current version. What stands against it is logged once."""
        try:
            await in_time(engine.engine_id, self._under_way.load_seconds, self._brought(policy, engine, control))
            engine.told = ""
        except (CanaryFailed, EngineHung) as failed:
            await self._publisher.put_out(engine, failed)
        except (EngineError, WeightsRefused) as failed:
            if engine.told != str(failed):
                log.warning("engine_not_updated", engine_id=engine.engine_id, policy=policy, error=str(failed))
            engine.told = str(failed)

    async def _brought(self, policy: str, engine: Joined, control: WeightControl) -> None:
        current = self._policies.current(policy)
        if current is not None:
            await bring(engine, control, current)
            return
        first = await self._candidates.origin(policy, control)
        if not await holds(control, first):
            await load(control, first)
