"""What a run of the example tells, made up: two steps in each arm, and everything that must hold holds."""

from typing import Any

ARMS = ("through-pi", "through-script", "spans")
LOOKED = (
    *(f"{when} {harness} {kind}" for when in ("before", "control", "after-pi") for harness, kind in (("pi", "write"), ("pi", "copy"))),
    *(f"{when} script write" for when in ("before", "control", "after-pi", "after-script")),
    "after-script pi write",
)
RIGHT = {"before": 0.25, "control": 0.3125, "after-pi": 0.875, "after-script": 0.75}


def step(arm: str, number: int) -> dict[str, Any]:
    """What the trainer tells of a step: two groups of each kind, of two sessions each."""
    kinds = ("write", "copy") if arm == "through-pi" else ("write",)
    groups = [
        {"group_id": f"{arm}.{kind}.{number}.{each}", "partition": each, "offset": 2 * number + at, "rewards": [0.0, 1.0]}
        for at, kind in enumerate(kinds)
        for each in range(2)
    ]
    told = {"step": number, "version": number, "position": {}, "groups": groups, "tokens": 10 * len(groups)}
    told |= {"seconds": {"rollout": 2.0, "train": 0.25, "sync": 0.125}, "lag_mean": 0.5, "lag_max": 1}
    return told | {"gap": 1e-6 * number, "gap_sampled": None if number == 2 else 2e-6}


def run() -> dict[str, Any]:
    """A run."""
    arms = {name: [step(name, 1), step(name, 2)] for name in ARMS}
    for at, steps in enumerate(arms.values()):
        for group in (group for one in steps for group in one["groups"]):
            group["offset"] += 100 * at
    groups = [in_log(name, group) for name, steps in arms.items() for one in steps for group in one["groups"]]
    ran = {name: [session for group in groups if group["run_id"] == name for session in group["sessions"]] for name in arms}
    checked = {
        "groups": groups,
        "delivered": [session for sessions in ran.values() for session in sessions],
        "ran": {name: {"sessions": sessions, "of_failed_groups": []} for name, sessions in ran.items()},
        "trajectories": sum(map(len, ran.values())),
        "faults": 0,
        "exit": 0,
    }
    held_out = {name: {"right": RIGHT[name.split()[0]], "sessions": 64, "ungraded": 0} for name in LOOKED}
    scored = {"tokens": sum(group["sampled"] for group in groups), "versions": 6, "gap_max": 3e-6}
    return {"held_out": held_out, "arms": arms, "checked": checked, "scored": scored, "seconds": 60.0, "start_seconds": 6.0}


def in_log(run_id: str, group: dict[str, Any], *, spanning: int = 15) -> dict[str, Any]:
    """What is read of a group in the log."""
    sessions = [f"{group['group_id']}.{index}" for index in range(2)]
    place = {"partition": group["partition"], "offset": group["offset"]}
    return {"run_id": run_id, **place, "sessions": sessions, "tokens": 10, "sampled": 12, "spanning": spanning}
