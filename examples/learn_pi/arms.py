"""Training arms on a running Evener: tasks are submitted ahead of the trainer, and it tells of its steps."""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from running import NotDone, own_process, submit_task
from tasks import make_task, payloads

from evener.client.client import Client
from evener.proto.spec import Purpose
from evener.proto.tasks import TaskOutcome

TRAINER: Final = Path(__file__).parents[1] / "grpo_minimal" / "train.py"
LIBRARIES: Final = tuple(str(Path(__file__).parents[2] / name) for name in ("proto", "libs"))
SAMPLES: Final = 4
LOOK_SECONDS: Final = 10.0
"""How long a step is waited for before each look whether groups have failed."""
STEP_SECONDS: Final = 300.0
"""The time limit of a step, in seconds."""
MAX_REPLACED: Final = 8
"""Groups of an arm that may fail."""
LOST: Final = frozenset({TaskOutcome.FAILED, TaskOutcome.CANCELLED})


class Arm(Struct, frozen=True, kw_only=True):
    """One training: its sessions, and the trainer's options."""

    name: str
    harness: str
    kinds: tuple[str, ...]
    steps: int
    groups: int
    """The number of groups of each kind in a step."""
    samples: int = SAMPLES
    again: int = 0
    """The number of times that the script harness repeats the prompt, for a session of many calls."""
    ahead: int = 2
    """Steps whose tasks are submitted before the trainer asks for them: rollouts continue while it trains and publishes."""
    learning_rate: float = 5e-4


class Bench(Struct, frozen=True, kw_only=True):
    """The client and the folders of a run."""

    client: Client
    out: Path
    start: Path
    python: Path
    """Has torch and transformers."""
    url: str
    held_out: int
    """Prompts of each kind that are evaluated."""


class Feed:
    """Submits the tasks of an arm; a task whose group failed is reported, and another takes its place."""

    def __init__(self, bench: Bench, arm: Arm) -> None:
        self._bench = bench
        self._arm = arm
        self._rng = random.Random(arm.name)  # noqa: S311 - not for secrets
        self._replaced: set[str] = set()

    async def submit(self, step: int) -> None:
        """Submit the tasks of a step."""
        for kind in self._arm.kinds:
            for number in range(self._arm.groups):
                await self._task(kind, f"{step:03d}.{number}")

    async def replace_failed(self) -> None:
        """Submit a task for each one that has failed since. Raises NotDone where too many have."""
        for view in await self._bench.client.tasks(self._arm.name):
            if view.outcome in LOST and view.task_id not in self._replaced:
                self._replaced.add(view.task_id)
                print(f"{view.task_id} {view.outcome}: {view.reason or view.cancelled}; another takes its place", flush=True)
                if len(self._replaced) > MAX_REPLACED:
                    msg = f"{self._arm.name}: more than {MAX_REPLACED} groups failed, the last one of: {view.reason or view.cancelled}"
                    raise NotDone(msg)
                await self._task(kind_of(view.task_id), f"again.{len(self._replaced)}")

    async def _task(self, kind: str, name: str) -> None:
        trained, _ = payloads()
        arm = self._arm
        task = make_task(self._bench.out / "tasks", f"{arm.name}-{kind}-{name.replace('.', '-')}", kind, self._rng.choice(trained))
        await submit_task(
            self._bench.client,
            task,
            f"{arm.name}.{kind}.{name}",
            run_id=arm.name,
            harness=arm.harness,
            samples=arm.samples,
            purpose=Purpose.TRAIN,
            again=arm.again,
        )


async def train(bench: Bench, arm: Arm) -> list[dict[str, Any]]:
    """Run the trainer and feed it with sessions; return its report on each step."""
    options = {
        "url": bench.url,
        "token-file": bench.out / "state" / "operator-token",
        "model": bench.start,
        "out": bench.out / arm.name,
        "run-id": arm.name,
        "steps": arm.steps,
        "groups": arm.groups * len(arm.kinds),
        "learning-rate": arm.learning_rate,
    }
    command = [str(bench.python), "-u", str(TRAINER), "--follow", *(f"--{name}={value}" for name, value in options.items())]
    environ = {"PYTHONPATH": ":".join(LIBRARIES), "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
    told: list[dict[str, Any]] = []
    feed = Feed(bench, arm)
    async with own_process(*command, log=bench.out / f"{arm.name}.log", environ=environ) as next_line:
        for step in range(1, min(arm.ahead, arm.steps) + 1):
            await feed.submit(step)
        while len(told) < arm.steps:
            told.append(json.loads(await waited(next_line, feed, f"{arm.name} step {len(told) + 1}")))
            _say(arm, told[-1])
            if len(told) + arm.ahead <= arm.steps:
                await feed.submit(len(told) + arm.ahead)
    (bench.out / f"{arm.name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in told))
    return told


async def waited(next_line: Callable[[], Awaitable[str]], feed: Feed, what: str, *, seconds: float = STEP_SECONDS) -> str:
    """Return the trainer's next line; where it is long in coming, replace what failed. Raises NotDone when it does not come."""
    line = asyncio.ensure_future(next_line())
    began = time.monotonic()
    try:
        while not (await asyncio.wait({line}, timeout=min(LOOK_SECONDS, seconds)))[0]:
            await feed.replace_failed()
            if time.monotonic() - began >= seconds:
                msg = f"{what} did not come in {seconds:.0f} s: the trainer waits for groups, or hangs; see its log and Evener's"
                raise NotDone(msg)
        return line.result()
    finally:
        line.cancel()


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
    gaps = " and ".join(f"{gap:.1e}" for gap in (step["gap"], step.get("gap_sampled")) if gap is not None)
    learnt = f"logprob gap {gaps or 'not compared'}; lag {step['lag_mean']:.2f}" if step["tokens"] else "nothing to learn"
    print(f"{arm.name} step {step['step']}: reward {means}; {learnt}; seconds: {seconds}", flush=True)
