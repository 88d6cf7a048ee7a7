"""The example's trainer as a process, with a real bridge and a scripted engine: whatever ends it, it goes on where it must."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.builders import changed, ended, group, heartbeat
from tests.support.engines import Play
from tests.support.ports import closed_port
from tests.support.scheduler import scheduler
from tests.support.service_context import context_on, running_service
from tests.support.updates import events, join
from tests.support.waiting import eventually

from evener.bus.open import open_bus
from evener.client.client import Client
from evener.engines.scripted import Script
from evener.engines.vllm_server import find_program
from evener.proto.arrays import int32s, pack_int32
from evener.proto.fleet import PolicyPublished
from evener.proto.reasons import ExclusionReason
from evener.proto.topics import Topic
from evener.proto.trajectories import Accounting, TrajectoryScored
from evener.service.context import ServiceContext
from evener.service.events import EventLog
from evener.service.listener import Mounts, address_of, bind, listen
from evener.service.state_folder import TOKEN_FILE
from evener.trainer_bridge.config import Config
from evener.trainer_bridge.service import open_service

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
SECONDS = 300.0
ORDINARY = ((12, 6), (5, 4))
LONG = ((5_000, 6),)
"""More given tokens than a canary may have."""


class Ground:
    """A scheduler and a bridge on one log, and the trainer's folders."""

    def __init__(self, context: ServiceContext, client: Client, url: str, folder: Path) -> None:
        self.context = context
        self.client = client
        self.out = folder / "out"
        self._options = {"url": url, "token-file": folder / "state" / TOKEN_FILE, "model": folder / "model", "out": self.out}

    async def deliver(
        self, name: str, rewards: Sequence[float] = (1.0, 0.0), *, rows: bool = True, turns: Any = ORDINARY, **options: Any
    ) -> None:
        """Write a group as the bridge does; its ids are those of the tiny model, `options` are of its spec."""
        event = ended((_small if rows else _without_rows)(session) for session in group(rewards, name, turns=turns, **options))
        await EventLog(self.context.bus, self.context.blobs).send(Topic.MERGED, name, event, group_id=name)

    async def start(self, **options: Any) -> Process:
        """Start the trainer. A scripted engine's logprobs are its own: any difference is tolerated."""
        options = self._options | {"groups": 1, "tolerance": 1e9} | options
        command = [str(find_program(None).with_name("python")), "-u", str(ROOT / "examples/grpo_minimal/train.py")]
        command += [f"--{name}={value}" for name, value in options.items()]
        environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'proto'}:{ROOT / 'libs'}", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        return await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, env=environ)

    async def train(self, **options: Any) -> tuple[int, list[dict[str, Any]], str]:
        """Run the trainer to its end; return its status, its report on each step, and its errors."""
        process = await self.start(**options)
        async with asyncio.timeout(SECONDS):
            told, complaints = await process.communicate()
        assert process.returncode is not None
        return process.returncode, [json.loads(line) for line in told.splitlines()], complaints.decode()

    async def published(self) -> list[PolicyPublished]:
        """Return what was published, in its order."""
        return [event for event in await events(self.context) if isinstance(event, PolicyPublished)]


def _small(session: TrajectoryScored) -> TrajectoryScored:
    rows = [msgspec.structs.replace(row, ids=pack_int32(3 + int32s(row.ids) % 500)) for row in session.trajectory.rows]
    return changed(session, rows=tuple(rows))


def _without_rows(session: TrajectoryScored) -> TrajectoryScored:
    sampled = session.trajectory.accounting.sampled
    return changed(session, rows=(), accounting=Accounting(sampled=sampled, excluded={ExclusionReason.CONSTRAINED: sampled}))


def make_model(folder: Path, *, seed: int = 0) -> Path:
    """Make the tiny model: the same for the same seed."""
    subprocess.run((sys.executable, str(ROOT / "scripts/tiny_model.py"), str(folder), f"--seed={seed}"), check=True)
    return folder


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    """What a trainer needs, in this process; the model is tiny."""
    make_model(tmp_path / "model")
    state = tmp_path / "state"
    async with (
        open_bus(f"embedded:{state / 'bus'}", partitions=1) as bus,
        scheduler(bus, state, lease_seconds=600) as client,
        bridge(bus, state) as context,
    ):
        yield Ground(context, client, client._connection.url, tmp_path)


@asynccontextmanager
async def bridge(bus: Any, state: Path) -> AsyncIterator[ServiceContext]:
    """A bridge that serves over HTTP, and says so in the fleet."""
    config = Config(state=str(state))
    listening = bind(config)
    address = address_of(config, listening)
    context = context_on(bus, state, instance_id="bridge", address=address)
    mounts = Mounts()
    async with open_service(config, context) as service, listen(mounts, listening):
        mounts.replace(service.routes)
        async with running_service(service):
            sign = heartbeat("trainer_bridge", "bridge", at=time.time(), address=address)
            await EventLog(bus, context.blobs).send(Topic.FLEET, "bridge", sign)
            yield context


async def test_what_nothing_can_be_learnt_from_is_passed_over_and_long_rows_are_trained(ground: Ground, play: Play) -> None:
    """The position moves on, and no version is published; started again, the last step is told again and nothing is trained."""
    await join(ground.context, (await play(Script())).url)
    await ground.deliver("long", turns=LONG)
    await ground.deliver("alike", (0.1, 0.1, 0.1))
    await ground.deliver("empty", rows=False)
    await ground.deliver("last")
    status, told, complaints = await ground.train(steps=4)

    assert status == 0, complaints
    assert [step["groups"][0]["group_id"] for step in told] == ["long", "alike", "empty", "last"]
    assert [(step["tokens"], step["version"], step["gap"] is None) for step in told] == [
        (12, 1, False),
        (0, 1, True),
        (0, 1, True),
        (20, 2, False),
    ]
    assert told[-1]["position"] == {"0": 4}
    assert [event.version for event in await ground.published()] == [1, 2]

    status, again, _ = await ground.train(steps=4)
    assert status == 0
    assert [(step["step"], step["gap"]) for step in again] == [(4, told[-1]["gap"])]
    assert len(await ground.published()) == 2


async def test_after_a_roll_back_the_groups_are_trained_again_under_the_next_number(ground: Ground, play: Play) -> None:
    """The trainer ends with the reason, and puts the refused weights aside; its next start goes on from those before."""
    engine = await play(Script())
    await join(ground.context, engine.url)
    await ground.deliver("first")
    await ground.deliver("second")
    assert (await ground.train(steps=1))[0] == 0
    engine.play(Script(reload="ignore"))  # stale weights
    status, told, complaints = await ground.train(steps=2)

    assert status != 0
    assert [step["step"] for step in told] == [1]
    assert "version 2 of policy is rolled back" in complaints
    assert "Traceback" not in complaints

    engine.play(Script())
    status, told, complaints = await ground.train(steps=2)
    assert status == 0, complaints
    assert [(step["step"], step["version"], step["groups"][0]["group_id"]) for step in told] == [(1, 1, "first"), (2, 3, "second")]
    assert sorted(folder.name for folder in ground.out.iterdir()) == ["aside-2", "step-0001", "step-0002"]
    assert [event.version for event in await ground.published()] == [1, 3]


async def test_a_step_whose_number_somebody_else_passed_is_put_aside_and_its_groups_are_trained_again(
    ground: Ground, play: Play, tmp_path: Path
) -> None:
    """It can never be published: who tried it at each start would be stuck for good."""
    await join(ground.context, (await play(Script())).url)
    await ground.deliver("first")
    first = await ground.start(steps=2)
    assert first.stdout is not None
    async with asyncio.timeout(SECONDS):
        assert json.loads(await first.stdout.readline())["version"] == 1
    await ground.client.publish("policy", 5, str(make_model(tmp_path / "theirs", seed=5)))
    await ground.deliver("second")
    _, complaints = await first.communicate()
    assert first.returncode == 1
    assert b"version 2 of policy is not above 5" in complaints
    assert b"Traceback" not in complaints

    status, told, refused = await ground.train(steps=2)
    assert status == 0, refused
    assert [(step["step"], step["version"], step["groups"][0]["group_id"]) for step in told] == [(1, 1, "first"), (2, 6, "second")]
    assert sorted(folder.name for folder in ground.out.iterdir()) == ["aside-2", "step-0001", "step-0002"]
    assert [event.version for event in await ground.published()] == [1, 5, 6]


async def test_groups_of_other_runs_and_other_policies_are_not_trained(ground: Ground, play: Play) -> None:
    """The policy is the one whose versions it publishes; a run is asked for by name."""
    await join(ground.context, (await play(Script())).url)
    await ground.deliver("of-another-policy", policy="critic", run_id="mine")
    await ground.deliver("of-another-run", run_id="theirs")
    await ground.deliver("own", run_id="mine")
    status, told, complaints = await ground.train(steps=1, **{"run-id": "mine"})

    assert status == 0, complaints
    assert [one["group_id"] for step in told for one in step["groups"]] == ["own"]
    assert told[0]["position"] == {"0": 3}


async def test_the_ten_thousandth_step_is_after_the_one_before(ground: Ground, play: Play) -> None:
    """Names of steps are not in the order of their letters."""
    await join(ground.context, (await play(Script())).url)
    await ground.deliver("first")
    assert (await ground.train(steps=1))[0] == 0
    for step in (9_999, 10_000):
        later = shutil.copytree(ground.out / "step-0001", ground.out / f"step-{step}")
        told = json.loads((later / "step.json").read_text())
        (later / "step.json").write_text(json.dumps(told | {"step": step}))

    status, again, complaints = await ground.train(steps=10_000)
    assert status == 0, complaints
    assert [step["step"] for step in again] == [10_000]


async def test_killed_between_saving_and_publishing_it_publishes_with_the_canary_and_tells_of_the_step(ground: Ground, play: Play) -> None:
    """No engine answers, so that nothing can be published before the kill."""
    await join(ground.context, f"http://127.0.0.1:{closed_port()}")
    await ground.deliver("first")
    await ground.deliver("second")
    first = await ground.start(steps=2)
    await eventually((ground.out / "step-0001").exists)
    first.kill()
    told, _ = await first.communicate()
    assert told == b""
    assert await ground.published() == []

    await join(ground.context, (await play(Script())).url)
    status, steps, complaints = await ground.train(steps=2)
    assert status == 0, complaints
    assert [(step["step"], step["version"], step["groups"][0]["group_id"]) for step in steps] == [(1, 1, "first"), (2, 2, "second")]
    assert None not in [step["gap"] for step in steps]
    for event in await ground.published():
        assert event.canary is not None
        assert event.canary.prompts[0].logprobs is not None


async def test_logprobs_that_are_not_ours_end_it_before_anything_is_trained(ground: Ground, play: Play) -> None:
    """The groups' logprobs are made up: by the tolerance of every day they are wrong."""
    await join(ground.context, (await play(Script())).url)
    await ground.deliver("wrong")
    status, told, complaints = await ground.train(steps=1, tolerance=1e-3)

    assert (status, told) == (1, [])
    assert "from ours: more than 0.001" in complaints.strip().splitlines()[-1]
    assert "Traceback" not in complaints
    assert not ground.out.exists()
