"""Evaluations on prompts that are never trained on: purpose `eval`, so that no trainer ever gets them."""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

from arms import Bench
from msgspec import Struct
from running import NotDone, submit_task
from tasks import make_task, payloads

from evener.client.client import Client
from evener.client.views import TaskView
from evener.proto.spec import Purpose

SAMPLES: Final = 4
END_SECONDS: Final = 900.0
"""The time limit of an evaluation's sessions, in seconds."""


class HeldOut(Struct, frozen=True, kw_only=True):
    """An evaluation."""

    right: float
    """Share of the graded sessions that left exactly the right file. 0 where none was graded."""
    sessions: int
    ungraded: int
    """The number of these sessions that have no reward, or whose task failed."""


def judged(rewards: Sequence[float | None], sessions: int) -> HeldOut:
    """Return what so many sessions came to; those without a reward are neither right nor wrong."""
    graded = [reward for reward in rewards if reward is not None]
    right = sum(reward == 1 for reward in graded) / max(1, len(graded))
    return HeldOut(right=right, sessions=sessions, ungraded=sessions - len(graded))


async def evaluate(bench: Bench, name: str, harness: str, kind: str, *, policy: str = "policy") -> HeldOut:
    """Sample held-out sessions, and return how many were right."""
    began = time.monotonic()
    await submit(bench, name, harness, kind, policy=policy)
    views = await ended(bench.client, name, bench.held_out)
    found = judged([reward for view in views for reward in view.rewards], bench.held_out * SAMPLES)
    ungraded = f" ({found.ungraded} not graded)" if found.ungraded else ""
    print(f"{name}: {found.right:.3f} of {found.sessions} held-out sessions exact{ungraded}, {time.monotonic() - began:.0f} s", flush=True)
    return found


async def submit(bench: Bench, name: str, harness: str, kind: str, *, policy: str = "policy") -> None:
    """Submit the tasks of an evaluation; `name` is their run."""
    _, held_out = payloads()
    for number, payload in enumerate(held_out[: bench.held_out]):
        task = make_task(bench.out / "tasks", f"{kind}-held-out-{number}", kind, payload)
        await submit_task(
            bench.client,
            task,
            f"{name}.{number}",
            run_id=name,
            harness=harness,
            samples=SAMPLES,
            purpose=Purpose.EVAL,
            policy=policy,
        )


async def ended(client: Client, run_id: str, count: int, *, seconds: float = END_SECONDS) -> Sequence[TaskView]:
    """Wait until the tasks of a run have ended; return them. Raises NotDone where they do not."""
    views: dict[str, TaskView] = {}
    try:
        async with asyncio.timeout(seconds):
            async for view in client.watch(run_id):
                if view.outcome is not None:
                    views[view.task_id] = view
                if len(views) == count:
                    break
    except TimeoutError:
        msg = f"{run_id}: {count - len(views)} of {count} tasks have not ended in {seconds:.0f} s"
        raise NotDone(msg) from None
    return list(views.values())
