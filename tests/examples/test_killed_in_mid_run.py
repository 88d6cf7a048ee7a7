"""The trainer and `evener up` die by SIGKILL in the middle of a training on real vLLM: every group is trained once, in its order.

The trainer dies between saving and publishing, and in publishing, which dies with it; `evener up` dies alone, too.
"""

import asyncio
import json
import os
import subprocess
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.up import Up, up
from tests.support.waiting import eventually

from evener.client.client import Client
from evener.client.groups import Groups
from evener.engines.vllm_server import VllmOptions, find_program, start_vllm
from evener.proto.spec import GraderSpec, HarnessSpec, Purpose, Sampling
from evener.proto.tasks import TaskOptions
from evener.tasks.directory import load
from evener.tasks.pack import pack

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
STEPS, GROUPS, SAMPLES = 8, 2, 6
SECONDS = 300.0
TOLERANCE = 1e-3
IN_PUBLISHING = "kill@bridge.policy_staged#4"
"""`evener up` dies when its fourth update is staged: the trainer has saved, and nothing is published."""


@asynccontextmanager
async def vllm(folder: Path, model: Path) -> AsyncIterator[str]:
    server = await start_vllm(VllmOptions(model=model, extra=("--max-model-len=2048",)), folder / "vllm.log")
    try:
        await server.until_ready(lambda _seconds, _line: None)
        yield server.url
    finally:
        await server.stop()


async def trainer(folder: Path, url: str, model: Path) -> Process:
    """Start the example's trainer; it goes on where the last one died."""
    python = find_program(None).with_name("python")
    options = {"url": url, "token-file": folder / "state" / "operator-token", "model": model, "out": folder / "out"}
    options |= {"steps": STEPS, "groups": GROUPS}
    command = [str(python), "-u", str(ROOT / "examples/grpo_minimal/train.py"), *(f"--{name}={value}" for name, value in options.items())]
    environ = {**os.environ, "PYTHONPATH": f"{ROOT / 'proto'}:{ROOT / 'libs'}", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    with (folder / "trainer.log").open("ab") as log:
        return await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=log, env=environ)


async def until_step(process: Process, number: int) -> list[dict[str, Any]]:
    """Wait until it has reported a step; return its reports up to there."""
    assert process.stdout is not None
    told: list[dict[str, Any]] = []
    async with asyncio.timeout(SECONDS):
        while not told or told[-1]["step"] < number:
            line = await process.stdout.readline()
            assert line, f"the trainer ended with {await process.wait()}"
            told.append(json.loads(line))
    return told


async def until_saved(folder: Path, number: int) -> None:
    """Wait until a step's checkpoint is there; it is published later."""
    await eventually(checkpoint(folder, number).exists)


async def kill(process: Process) -> list[dict[str, Any]]:
    """Kill it; return its unread reports."""
    process.kill()
    told, _ = await process.communicate()
    return [json.loads(line) for line in told.splitlines(keepends=True) if line.endswith(b"\n")]


async def submit(client: Client, folder: Path) -> None:
    """Submit as many groups as are trained. About half of what the tiny model says is right, so that rewards differ."""
    task = folder / "task"
    task.mkdir()
    (task / "instruction.md").write_text("Say anything.\n")
    (task / "task.toml").write_text('[metadata.evener]\ngrader = "answer"\nexpected = "ee|th|an"\nmatch = "regex"\n')
    packed, grader = pack(task), load(task).grader
    assert grader == GraderSpec(name="answer", options=grader.options)
    await client.put_blob(packed.data)
    for number in range(STEPS * GROUPS):
        options = TaskOptions(
            run_id="run",
            samples=SAMPLES,
            purpose=Purpose.TRAIN,
            harness=HarnessSpec(name="script"),
            sampling=Sampling(max_tokens=24),
            grader=grader,
        )
        await client.submit(options, task=packed.ref, task_id=f"run.{number}")


async def test_every_group_is_trained_once_and_in_order_whoever_is_killed(tmp_path: Path, unused_tcp_port: int) -> None:
    """Every step is told of, with its gap; the weights of each version are those that its step saved."""
    model = tmp_path / "model"
    subprocess.run((sys.executable, str(ROOT / "scripts/tiny_model.py"), str(model)), check=True)  # noqa: ASYNC221 (nothing else runs yet)
    async with vllm(tmp_path, model) as engine:
        options = {"engine": engine, "model": str(model), "log-level": "warning"}
        async with up(tmp_path / "state", unused_tcp_port, options) as running:
            await running.start(IN_PUBLISHING)
            await running.ready()
            async with Client(running.url, token(tmp_path)) as client:
                await submit(client, tmp_path)
                told = await killed_again_and_again(tmp_path, running, model)
                log = [(group.partition, group.offset, group.group_id) async for group in Groups(client, follow=False)]
                versions = (await client.policy("policy")).versions

    saved = [json.loads((checkpoint(tmp_path, number) / "step.json").read_text()) for number in range(1, STEPS + 1)]
    trained = [tuple(group[key] for key in ("partition", "offset", "group_id")) for step in saved for group in step["groups"]]
    assert len(trained) == STEPS * GROUPS == len(log)
    assert sorted(trained) == sorted(log)
    for partition in {one[0] for one in log}:
        assert [one for one in trained if one[0] == partition] == [one for one in log if one[0] == partition]
    assert {step["step"] for step in told} == set(range(1, STEPS + 1))
    updates = [step for step in told if step["tokens"]]  # in the others all rewards were alike
    assert {(one.version, one.state) for one in versions} == {(step["version"], "published") for step in updates}
    assert {one.version: Path(one.location).name for one in versions} == {step["version"]: f"step-{step['step']:04d}" for step in updates}
    assert all(step["gap"] <= TOLERANCE for step in updates)
    assert all(step["gap_sampled"] is None or step["gap_sampled"] <= TOLERANCE for step in updates)


async def killed_again_and_again(folder: Path, running: Up, model: Path) -> list[dict[str, Any]]:
    """Train to the end; return all that was told of the steps."""
    first = await trainer(folder, running.url, model)
    await until_saved(folder, 2)
    told = await kill(first)

    second = await trainer(folder, running.url, model)
    told += (again := await until_step(second, 2))
    assert again[0]["step"] == 2
    await running.struck(IN_PUBLISHING)
    told += await kill(second)
    died_at = max(number for number in range(STEPS) if checkpoint(folder, number).exists())
    assert died_at not in {step["step"] for step in told}
    await running.start()
    await running.ready()

    third = await trainer(folder, running.url, model)
    told += (again := await until_step(third, died_at + 1))
    assert again[0]["step"] == died_at
    await running.kill()
    await running.start()
    told += await until_step(third, STEPS)
    assert await third.wait() == 0
    return told


def checkpoint(folder: Path, number: int) -> Path:
    return folder / "out" / f"step-{number:04d}"


def token(folder: Path) -> str:
    return (folder / "state" / "operator-token").read_text().strip()
