"""Updates that a dead bridge left staged: taken up by who owns the policy, told once where that fails."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.support.loop import turns
from tests.support.service_context import open_parts
from tests.support.waiting import eventually
from tests.support.weights_folders import save_weights

from evener.proto.fleet import PolicyStaged
from evener.service.context import ServiceContext
from evener.service.events import EventLog
from evener.service.telemetry import metrics
from evener.trainer_bridge.engines import PolicyEngines
from evener.trainer_bridge.policies import Policies
from evener.trainer_bridge.publisher import Publisher
from evener.trainer_bridge.reconcile import Reconciler
from evener.trainer_bridge.rollout_gate import RolloutGate
from evener.trainer_bridge.weights import read_weights

LOAD_SECONDS = 60.0


class Left:
    """A bridge that finds what another one left, without an engine in its fleet."""

    def __init__(self, context: ServiceContext, owns: Callable[[str], bool]) -> None:
        events, told = EventLog(context.bus, context.blobs), metrics(context.registry)
        self.policies = Policies(context.bus, events)
        self.engines = PolicyEngines(context.bus, context.fleet, events, told, load_seconds=LOAD_SECONDS)
        self.gate = RolloutGate(self.policies, owns, LOAD_SECONDS)
        self._reconciler = Reconciler(self.policies, self.engines, Publisher(self.policies, self.engines, self.gate, told), self.gate)

    async def stage(self, policy: str, folder: Path, digest: str) -> None:
        """Write what the other one wrote last."""
        staged = PolicyStaged(policy=policy, version=1, location=str(folder), digest=digest, staged_at=1.0)
        async with self.policies.writer(policy) as write:
            await write(staged)

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        """Look after the policies while the block runs."""
        task = asyncio.create_task(self._reconciler.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def look_again(self) -> None:
        """Have the policies looked at once more, as when an engine joins; wait until that is done."""
        self.engines.changed.set()
        await eventually(lambda: not self.engines.changed.is_set())
        await turns()
        await eventually(lambda: not any(lock.locked() for lock in self.gate.locks.values()))


@pytest.fixture
async def context(tmp_path: Path) -> AsyncIterator[ServiceContext]:
    async with open_parts(tmp_path, partitions=1) as context:
        yield context


async def test_version_that_a_dead_bridge_left_staged_is_published(context: ServiceContext, tmp_path: Path) -> None:
    """No engine is there to prove it: those that join will."""
    left, folder = Left(context, lambda _: True), save_weights(tmp_path / "weights", 1)
    await left.stage("policy", folder, read_weights(folder).digest)
    async with left.looking():
        await eventually(lambda: left.policies.newest("policy") == 1)

    assert left.policies.pending("policy") is None


async def test_policy_of_another_bridge_is_left_alone(context: ServiceContext, tmp_path: Path) -> None:
    """Its owner may be about to publish it."""
    left, folder = Left(context, lambda policy: policy == "mine"), save_weights(tmp_path / "weights", 1)
    for policy in ("mine", "theirs"):
        await left.stage(policy, folder, read_weights(folder).digest)
    async with left.looking():
        await eventually(lambda: left.policies.newest("mine") == 1)
        await left.look_again()

    assert (left.policies.newest("theirs"), left.policies.pending("theirs") is not None) == (None, True)


async def test_version_whose_weights_are_gone_is_reported_once_however_often_it_is_looked_at(
    context: ServiceContext, tmp_path: Path
) -> None:
    """It stays staged, and holds up no other policy."""
    left, folder = Left(context, lambda _: True), save_weights(tmp_path / "weights", 1)
    await left.stage("gone", tmp_path / "nowhere", "d")
    await left.stage("policy", folder, read_weights(folder).digest)
    with capture_logs() as logs:
        async with left.looking():
            await eventually(lambda: left.policies.newest("policy") == 1)
            for _ in range(3):
                await left.look_again()
        told = [entry for entry in logs if entry["event"] == "update_not_taken_up"]

    assert [(entry["policy"], "nowhere" in entry["error"]) for entry in told] == [("gone", True)]
    assert left.policies.pending("gone") is not None
