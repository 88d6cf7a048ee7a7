"""From what a run told to its figures."""

from statistics import mean
from typing import Any

Said = dict[str, Any]


def gap(step: Said) -> float:
    """Return the largest difference of a logprob between engine and trainer in a step: in the canary, and in what was sampled."""
    largest: float = max(step["gap"], step["gap_sampled"] or 0.0)
    return largest


def figures(said: Said) -> Said:
    """Return outputs/learn.json."""
    held_out, by_arm = said["held_out"], said["arms"]
    first, second, spans = by_arm["through-pi"], by_arm["through-script"], by_arm["spans"]
    minutes = sum(sum(step["seconds"].values()) for step in first) / 60
    tasks = {
        kind: {
            "before": held_out[f"before pi {kind}"],
            "after": held_out[f"after-pi pi {kind}"],
            "control": held_out[f"control pi {kind}"],
            "steps": len(first),
            "minutes": round(minutes, 2),
            "gap_max": max(map(gap, first)),
        }
        for kind in ("write", "copy")
    }
    names = {"start": "before", "pi": "after-pi", "script": "after-script"}
    cross = {
        f"trained in {trained}": {f"evaluated in {harness}": held_out[f"{when} {harness} write"] for harness in ("pi", "script")}
        for trained, when in names.items()
    }
    checked = said["checked"]
    return {
        "tasks": tasks,
        "second": {
            "harness": "script",
            "before": held_out["before script write"],
            "after": held_out["after-script script write"],
            "control": held_out["control script write"],
            "gap_max": max(map(gap, second)),
        },
        "cross": cross,
        "spanning_two_versions": sum(step["spanning"] for step in spans),
        "spanning_in_training": sum(step["spanning"] for step in first),
        "seconds_per_step": {part: round(mean(step["seconds"][part] for step in first), 3) for part in ("rollout", "train", "sync")},
        "sessions_run": said["sessions_run"],
        "sessions_in_groups": checked["sessions"],
        "sessions_delivered": checked["delivered"],
        "trained_once_and_in_order": in_order(said),
        "faults_found_by_the_checker": checked["faults"],
        "updates": sum(len(steps) for steps in by_arm.values()),
        "minutes_in_all": round(said["seconds"] / 60, 1),
        "minutes_of_the_start": round(said["start_seconds"] / 60, 1),
    }


def in_order(said: Said) -> bool:
    """Return whether each arm trained every group of its run once, each partition in the order of the log."""
    for name, steps in said["arms"].items():
        trained = [(group["partition"], group["offset"]) for step in steps for group in step["groups"]]
        there = [(partition, offset) for run_id, partition, offset in said["checked"]["groups"] if run_id == name]
        for partition in {partition for partition, _ in trained + there}:
            if [one for one in trained if one[0] == partition] != sorted(one for one in there if one[0] == partition):
                return False
    return True
