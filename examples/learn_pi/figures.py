"""Computes a run's figures from its reports."""

from collections.abc import Sequence
from statistics import mean
from typing import Any

Said = dict[str, Any]


def trained(steps: Sequence[Said]) -> list[Said]:
    """Return the steps that made an update; in the others all rewards of each group were alike."""
    return [step for step in steps if step["tokens"]]


def gap(step: Said) -> float | None:
    """Return the largest difference of a logprob between engine and trainer in an update: in the canary, and in what was sampled.

    None: no engine was compared with the trainer.
    """
    if step["gap"] is None:
        return None
    sampled = step["gap_sampled"]  # None: all of it by older weights
    return float(step["gap"] if sampled is None else max(step["gap"], sampled))


def gap_max(steps: Sequence[Said]) -> float | None:
    """Return the largest difference of all updates. None: there was none, or one was not compared."""
    gaps = [gap(step) for step in trained(steps)]
    known = [each for each in gaps if each is not None]
    return max(known) if known and len(known) == len(gaps) else None


def figures(said: Said) -> Said:
    """Return outputs/learn.json."""
    by_arm, checked = said["arms"], said["checked"]
    right = {name: found["right"] for name, found in said["held_out"].items()}
    first, second = by_arm["through-pi"], by_arm["through-script"]
    minutes = sum(sum(step["seconds"].values()) for step in first) / 60
    tasks = {
        kind: {
            "before": right[f"before pi {kind}"],
            "after": right[f"after-pi pi {kind}"],
            "control": right[f"control pi {kind}"],
            "steps": len(first),
            "minutes": round(minutes, 2),
            "gap_max": gap_max(first),
        }
        for kind in ("write", "copy")
    }
    names = {"start": "before", "pi": "after-pi", "script": "after-script"}
    cross = {
        f"trained in {name}": {f"evaluated in {harness}": right[f"{when} {harness} write"] for harness in ("pi", "script")}
        for name, when in names.items()
    }
    return {
        "tasks": tasks,
        "second": {
            "harness": "script",
            "before": right["before script write"],
            "after": right["after-script script write"],
            "control": right["control script write"],
            "steps": len(second),
            "gap_max": gap_max(second),
        },
        "cross": cross,
        "spanning_two_versions": in_updates(said, "spans", "spanning"),
        "spanning_in_training": in_updates(said, "through-pi", "spanning"),
        "seconds_per_step": {part: round(mean(step["seconds"][part] for step in first), 3) for part in ("rollout", "train", "sync")},
        "gap_max": gap_max([step for steps in by_arm.values() for step in steps]),
        "sessions_run": len(ran(said)),
        "sessions_in_groups": len(in_groups(said)),
        "sessions_delivered": len(checked["delivered"]),
        "sessions_of_failed_groups": sum(len(run["of_failed_groups"]) for run in checked["ran"].values()),
        "every_session_that_ran_in_one_group": every_session_in_one_group(said),
        "trained_once_and_in_order": in_order(said),
        "tokens_trained": sum(step["tokens"] for steps in by_arm.values() for step in steps),
        "tokens_checked": sum(in_updates(said, arm, "tokens") for arm in by_arm),
        "tokens_sampled": sum(group["sampled"] for group in checked["groups"]),
        "tokens_scored_again": said["scored"]["tokens"],
        "versions_scored_again": said["scored"]["versions"],
        "gap_of_every_token": said["scored"]["gap_max"],
        "held_out_sessions": min(found["sessions"] for found in said["held_out"].values()),
        "trajectories_checked": checked["trajectories"],
        "faults_found_by_the_checker": checked["faults"],
        "status_of_the_checker": checked["exit"],
        "held_out_not_graded": sum(found["ungraded"] for found in said["held_out"].values()),
        "updates": sum(len(trained(steps)) for steps in by_arm.values()),
        "steps": sum(len(steps) for steps in by_arm.values()),
        "minutes_in_all": round(said["seconds"] / 60, 1),
        "minutes_of_the_start": round(said["start_seconds"] / 60, 1),
    }


def ran(said: Said) -> list[str]:
    """Return the sessions that were started for the arms, by id."""
    return [session for run in said["checked"]["ran"].values() for session in run["sessions"]]


def in_groups(said: Said) -> list[str]:
    """Return the sessions in groups that trainers get, of whatever run, by id."""
    return [session for group in said["checked"]["groups"] for session in group["sessions"]]


def every_session_in_one_group(said: Said) -> bool:
    """Return whether each session that ran for training is in one group, but for those of failed groups, and no other session is."""
    lost = {session for run in said["checked"]["ran"].values() for session in run["of_failed_groups"]}
    return sorted(in_groups(said)) == sorted(set(ran(said)) - lost)


def in_updates(said: Said, arm: str, what: str) -> int:
    """Return how many tokens, or answers that span two versions, the log holds in the groups of an arm's updates."""
    updates = {(group["partition"], group["offset"]) for step in trained(said["arms"][arm]) for group in step["groups"]}
    return sum(group[what] for group in said["checked"]["groups"] if (group["partition"], group["offset"]) in updates)


def in_order(said: Said) -> bool:
    """Return whether each arm trained every group of its run once, each partition in the order of the log."""
    for name, steps in said["arms"].items():
        taken = [(group["partition"], group["offset"]) for step in steps for group in step["groups"]]
        there = [(group["partition"], group["offset"]) for group in said["checked"]["groups"] if group["run_id"] == name]
        for partition in {partition for partition, _ in taken + there}:
            if [one for one in taken if one[0] == partition] != sorted(one for one in there if one[0] == partition):
                return False
    return True
