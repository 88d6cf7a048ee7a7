"""What really ran, what reached the trainer, and whether the engine sampled it so: from the log, the scheduler and the ledger."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from arms import LIBRARIES, LOST, Bench
from running import NotDone

from evener.client.client import Client
from evener.client.groups import Group, Groups, RowArrays
from evener.proto.arrays import int32s, uint8s
from evener.proto.codec import encode
from evener.proto.trajectories import GroupMerged, TrajectoryBuilt

CHECKER: Final = "evener.audit.engine_ledger"
SCORER: Final = Path(__file__).with_name("scored.py")
TRAJECTORIES: Final = "trajectories.msgpack"
AT_ONCE: Final = 8
"""The number of requests at a time."""


async def check(client: Client, run: Path, arms: Iterable[str]) -> dict[str, Any]:
    """Compare every row that was delivered with the ledger of the pass-through, by the program that knows nothing of Evener."""
    groups = [group async for group in Groups(client, follow=False)]
    trajectories = [one for group in groups for one in delivered(group.event)]
    with (run / TRAJECTORIES).open("wb") as file:
        for trajectory in trajectories:
            frame = encode(trajectory)
            file.write(len(frame).to_bytes(4, "big") + frame)
    command = (sys.executable, "-m", CHECKER, str(run / "ledger.jsonl"), str(run / TRAJECTORIES))
    checked = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    print(f"checker: {(checked.stdout + checked.stderr).strip()[-300:]}", flush=True)
    return {
        "groups": [told_of(group) for group in groups],
        "delivered": [session.session_id for group in groups for session in group.sessions],
        "ran": {arm: await sessions_run(client, arm) for arm in arms},
        **findings(checked.stdout, checked.returncode),
    }


async def score_again(bench: Bench) -> dict[str, Any]:
    """Score what `check` has written down by the weights of each version; see `scored.py`. Raises NotDone."""
    versions = (await bench.client.policy("policy")).versions
    folders = {0: str(bench.start)} | {one.version: one.location for one in versions if one.state == "published"}
    (bench.out / "versions.json").write_text(json.dumps(folders))
    command = (str(bench.python), str(SCORER), str(bench.out / TRAJECTORIES), str(bench.out / "versions.json"))
    environ = {**os.environ, "PYTHONPATH": ":".join(LIBRARIES), "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1"}
    scored = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False, env=environ)
    if scored.returncode:
        msg = f"the sampled tokens could not be scored again: {scored.stderr.strip()[-300:]}"
        raise NotDone(msg)
    print(f"scored again: {scored.stdout.strip()}", flush=True)
    found: dict[str, Any] = json.loads(scored.stdout)
    return found


def delivered(event: GroupMerged) -> list[TrajectoryBuilt]:
    """Return the trajectories of a group, with the rows that trainers get."""
    return [member.scored.trajectory for member in event.members if member.scored is not None]


def tokens(trajectory: TrajectoryBuilt) -> int:
    """Return how many of its tokens are to be trained."""
    return sum(int(uint8s(row.loss_mask).sum()) for row in trajectory.rows)


def sampled(trajectory: TrajectoryBuilt) -> int:
    """Return how many tokens in its rows the policy sampled."""
    return sum(int((int32s(row.versions) >= 0).sum()) for row in trajectory.rows)


def findings(said: str, status: int) -> dict[str, int]:
    """Return what the checker found: its last line counts trajectories and faults. -1 if it did not get so far."""
    words = (said.strip().splitlines() or [""])[-1].split()
    counted = len(words) == 4 and words[1::2] == ["trajectories,", "faults"]  # noqa: PLR2004 - "N trajectories, N faults"
    trajectories, faults = (int(words[0]), int(words[2])) if counted else (-1, -1)
    return {"trajectories": trajectories, "faults": faults, "exit": status}


def told_of(group: Group) -> dict[str, Any]:
    """Return where a group stands, who is in it, its tokens, those to train and all sampled ones, and its answers that span versions."""
    return {
        "run_id": group.run_id,
        "partition": group.partition,
        "offset": group.offset,
        "sessions": [member.session_id for member in group.event.members if member.attempt],
        "tokens": sum(map(tokens, delivered(group.event))),
        "sampled": sum(map(sampled, delivered(group.event))),
        "spanning": sum(map(spanning, group.rows)),
    }


def spanning(row: RowArrays) -> int:
    """Return how many answers of a row are to be trained, and were sampled by more than one version."""
    sampled = row.loss_mask == 1
    calls = {int(call) for call in row.call_of[sampled]}
    return sum(len(set(row.versions[(row.call_of == call) & sampled].tolist())) > 1 for call in calls)


async def sessions_run(client: Client, run_id: str) -> dict[str, list[str]]:
    """Return the sessions of a run that were started and ended, and those of them whose group failed: as the scheduler has seen them."""
    ran: dict[str, list[str]] = {"sessions": [], "of_failed_groups": []}
    at_once = asyncio.Semaphore(AT_ONCE)

    async def look(task_id: str) -> None:
        async with at_once:
            detail = await client.task(task_id)
        found = [session.session_id for session in detail.sessions if session.attempt and session.termination_reason is not None]
        ran["sessions"] += found
        if detail.task.outcome in LOST:
            ran["of_failed_groups"] += found

    await asyncio.gather(*(look(view.task_id) for view in await client.tasks(run_id)))
    return ran
