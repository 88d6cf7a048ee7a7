"""The example's trainer ends with the same weights, whatever befell it on its way."""

import asyncio
import json
import os
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest

from evener.engines.vllm_server import find_program

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
RUNS = 6
SECONDS = 300.0


async def test_a_trainer_killed_and_refused_again_and_again_makes_the_weights_of_one_that_never_was() -> None:
    """Every group is trained once, by weights and optimizer of the step before; every version names the weights of its step."""
    folders = (ROOT / "examples/grpo_minimal", ROOT / "proto", ROOT / "libs")
    environ = {**os.environ, "PYTHONPATH": ":".join(map(str, folders)), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = (str(find_program(None).with_name("python")), str(ROOT / "tests/examples/interruptions.py"), str(RUNS))
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE, env=environ)
    try:
        async with asyncio.timeout(SECONDS):
            told, complaints = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()

    assert process.returncode == 0, complaints[-2000:].decode()
    runs = [json.loads(line) for line in told.splitlines()]
    assert len(runs) == RUNS
    for run in runs:
        assert all(run[held] for held in run if held not in {"kills", "refused"}), run
    assert min(run["kills"] for run in runs) > 0
    assert sum(run["refused"] for run in runs) > RUNS
