"""The trainer and `evener up` die by SIGKILL in the middle of a training on real vLLM: every group is trained once, in its order."""

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
from tests.chaos.up import Up, up

from evener.client.client import Client
from evener.client.groups import Groups
from evener.engines.vllm_server import VllmOptions, find_program, start_vllm
from evener.proto.spec import GraderSpec, HarnessSpec, Purpose, Sampling
from evener.proto.tasks import TaskOptions
from evener.tasks.directory import load
from evener.tasks.pack import pack

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
STEPS, GROUPS, SAMPLES = 8, 2, 3
SECONDS = 300.0


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


async def until_step(process: Process, number: int) -> dict[str, Any]:
    """Wait until it has told of a step; return what it told."""
    assert process.stdout is not None
    async with asyncio.timeout(SECONDS):
        while True:
            line = await process.stdout.readline()
            assert line, f"the trainer ended with {await process.wait()}"
            told: dict[str, Any] = json.loads(line)
            if told["step"] >= number:
                return told


async def submit(client: Client, folder: Path) -> None:
    """Submit as many groups as are trained, whose rewards differ."""
    task = folder / "task"
    task.mkdir()
    (task / "instruction.md").write_text("Say anything.\n")
    (task / "task.toml").write_text('[metadata.evener]\ngrader = "answer"\nexpected = "[aeiou]$"\nmatch = "regex"\n')
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
    """The trainer dies twice, `evener up` once; the weights of each version are those that its step saved."""
    model = tmp_path / "model"
    subprocess.run((sys.executable, str(ROOT / "scripts/tiny_model.py"), str(model)), check=True)  # noqa: ASYNC221 (nothing else runs yet)
    async with vllm(tmp_path, model) as engine:
        options = {"engine": engine, "model": str(model), "log-level": "warning"}
        async with up(tmp_path / "state", unused_tcp_port, options) as running:
            await running.start()
            await running.ready()
            async with Client(running.url, token(tmp_path)) as client:
                await submit(client, tmp_path)
                gaps = await killed_again_and_again(tmp_path, running, model)
                log = [(group.partition, group.offset, group.group_id) async for group in Groups(client, follow=False)]
                published = [version.version for version in (await client.policy("policy")).versions if version.state == "published"]

    trained = [tuple(group[key] for key in ("partition", "offset", "group_id")) for step in steps(tmp_path) for group in step["groups"]]
    assert len(trained) == STEPS * GROUPS == len(log)
    assert sorted(trained) == sorted(log)
    for partition in {one[0] for one in log}:
        assert [one for one in trained if one[0] == partition] == [one for one in log if one[0] == partition]
    assert sorted(published) == list(range(1, STEPS + 1))
    assert max(gaps) <= 1e-3


async def killed_again_and_again(folder: Path, running: Up, model: Path) -> list[float]:
    """Train to the end; return the logprob gaps that were told."""
    first = await trainer(folder, running.url, model)
    told = [await until_step(first, 2)]
    first.kill()
    await first.wait()

    second = await trainer(folder, running.url, model)
    told.append(await until_step(second, 4))
    await running.kill()
    await running.start()
    told.append(await until_step(second, 6))
    second.kill()
    await second.wait()

    third = await trainer(folder, running.url, model)
    told.append(await until_step(third, STEPS))
    assert await third.wait() == 0
    return [step["gap"] for step in told]


def steps(folder: Path) -> list[dict[str, Any]]:
    """Return what the checkpoints say, in their order."""
    return [json.loads(file.read_text()) for file in sorted((folder / "out").glob("step-*/step.json"))]


def token(folder: Path) -> str:
    return (folder / "state" / "operator-token").read_text().strip()
