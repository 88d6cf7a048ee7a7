"""Training arms and held-out evaluations on a running Evener."""

import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from running import own_process, submit_task
from tasks import make_task, payloads

from evener.client.client import Client
from evener.client.views import TaskView
from evener.proto.spec import Purpose

AHEAD: Final = 2
"""Steps whose tasks are submitted before the trainer asks for them: rollouts go on while it trains and publishes."""
TRAINER: Final = Path(__file__).parents[1] / "grpo_minimal" / "train.py"
LIBRARIES: Final = tuple(str(Path(__file__).parents[2] / name) for name in ("proto", "libs"))
SAMPLES: Final = 4
HELD_OUT_SAMPLES: Final = 4


class Arm(Struct, frozen=True, kw_only=True):
    """One training: what is run, and how the trainer is told."""

    name: str
    harness: str
    kinds: tuple[str, ...]
    steps: int
    groups: int
    """Of each kind, in a step."""
    samples: int = SAMPLES
    first_version: int = 1


class Bench(Struct, frozen=True, kw_only=True):
    """Where everything is."""

    client: Client
    out: Path
    start: Path
    python: Path
    """Has torch and transformers."""
    url: str
    held_out: int
    """Prompts of each kind that are evaluated."""


async def train(bench: Bench, arm: Arm) -> list[dict[str, Any]]:
    """Run the trainer and feed it with sessions; return what it told of each step."""
    rng = random.Random(arm.name)  # noqa: S311 - not for secrets
    options = {
        "url": bench.url,
        "token-file": bench.out / "state" / "operator-token",
        "model": bench.start,
        "out": bench.out / arm.name,
        "run-id": arm.name,
        "first-version": arm.first_version,
        "steps": arm.steps,
        "groups": arm.groups * len(arm.kinds),
    }
    command = [str(bench.python), "-u", str(TRAINER), *(f"--{name}={value}" for name, value in options.items())]
    environ = {"PYTHONPATH": ":".join(LIBRARIES), "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
    told: list[dict[str, Any]] = []
    async with own_process(*command, log=bench.out / f"{arm.name}.log", environ=environ) as next_line:
        for step in range(1, min(AHEAD, arm.steps) + 1):
            await _submit(bench, arm, step, rng)
        while len(told) < arm.steps:
            told.append(json.loads(await next_line()))
            _say(arm, told[-1])
            if len(told) + AHEAD <= arm.steps:
                await _submit(bench, arm, len(told) + AHEAD, rng)
    (bench.out / f"{arm.name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in told))
    return told


async def _submit(bench: Bench, arm: Arm, step: int, rng: random.Random) -> None:
    trained, _ = payloads()
    for kind in arm.kinds:
        for number in range(arm.groups):
            task_id = f"{arm.name}.{kind}.{step:03d}.{number}"
            task = make_task(bench.out / "tasks", f"{arm.name}-{kind}-{step}-{number}", kind, rng.choice(trained))
            await submit_task(bench.client, task, task_id, run_id=arm.name, harness=arm.harness, samples=arm.samples, purpose=Purpose.TRAIN)


async def evaluate(bench: Bench, name: str, harness: str, kind: str, *, policy: str = "policy") -> float:
    """Return the share of sampled held-out sessions that left exactly the right file."""
    began = time.monotonic()
    _, held_out = payloads()
    for number, payload in enumerate(held_out[: bench.held_out]):
        task = make_task(bench.out / "tasks", f"{kind}-held-out-{number}", kind, payload)
        await submit_task(
            bench.client,
            task,
            f"{name}.{number}",
            run_id=name,
            harness=harness,
            samples=HELD_OUT_SAMPLES,
            purpose=Purpose.EVAL,
            policy=policy,
        )
    views = await ended(bench.client, name, bench.held_out)
    rewards = [reward for view in views for reward in view.rewards]
    right = sum(reward == 1 for reward in rewards) / (bench.held_out * HELD_OUT_SAMPLES)
    print(f"{name}: {right:.3f} of {len(rewards)} held-out sessions exact, {time.monotonic() - began:.0f} s", flush=True)
    return right


async def ended(client: Client, run_id: str, count: int) -> Sequence[TaskView]:
    """Wait until the tasks of a run have ended; return them."""
    views: dict[str, TaskView] = {}
    async for view in client.watch(run_id):
        if view.outcome is not None:
            views[view.task_id] = view
        if len(views) == count:
            break
    return list(views.values())


def kind_of(group_id: str) -> str:
    """Return the kind of a group of an arm."""
    return group_id.split(".")[1]


def rewards_of(step: dict[str, Any], kind: str) -> list[float]:
    """Return the rewards of a step's sessions of one kind."""
    return [reward for group in step["groups"] if kind_of(group["group_id"]) == kind for reward in group["rewards"]]


def _say(arm: Arm, step: dict[str, Any]) -> None:
    rewards = {kind: rewards_of(step, kind) for kind in arm.kinds}
    means = ", ".join(f"{kind} {sum(each) / len(each):.2f}" for kind, each in rewards.items() if each)
    seconds = " ".join(f"{part} {took:.1f}" for part, took in step["seconds"].items())
    gap = max(step["gap"], step["gap_sampled"] or 0.0)
    print(
        f"{arm.name} step {step['step']}: reward {means}; logprob gap {gap:.1e}; lag {step['lag_mean']:.2f}; "
        f"{step['spanning']} answers span two versions; seconds: {seconds}",
        flush=True,
    )
