"""ATIF 1.8, Harbor's format of trajectories (harbor/models/trajectories).

A record is one session: its first row, and its other rows as `subagent_trajectories`. A step is a run of trained tokens, with the ids of
its whole prompt. Steps have no text, because rows are tokens. What is not trained is in no step of its own, so nothing needs the mark
`is_copied_context`.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from evener.formats.neutral import NeutralRow
from evener.formats.trainable import TrainGroup, TrainSession
from evener.formats.trainer_format import TrainerFormat, trained_logprobs, trained_spans

ATIF_VERSION: Final = "ATIF-v1.8"
Trajectory = dict[str, Any]
"""`schema_version`, `session_id`, `trajectory_id`, `agent`, `steps`, `final_metrics`, `extra`, `subagent_trajectories`."""


def records(group: TrainGroup) -> list[Trajectory]:
    """Return a record for each session that has a row."""
    return [_session(group, session) for session in group.sessions if session.rows]


def _session(group: TrainGroup, session: TrainSession) -> Trajectory:
    main, *others = (_trajectory(group, session, row, number) for number, row in enumerate(session.rows))
    told = {"reward": session.reward, "rewards": session.rewards, "advantage": session.advantage, "trained_tokens": session.tokens}
    main["final_metrics"]["extra"] = told
    return main | ({"subagent_trajectories": others} if others else {})


def _trajectory(group: TrainGroup, session: TrainSession, row: NeutralRow, number: int) -> Trajectory:
    steps = _steps(row)
    return {
        "schema_version": ATIF_VERSION,
        "session_id": session.session_id,
        "trajectory_id": f"{session.session_id}.{number}",
        "agent": {"name": row["harness"], "version": "unknown", "model_name": group.policy},
        "steps": steps,
        "final_metrics": {"total_completion_tokens": trained_tokens(steps), "total_steps": len(steps)},
        "extra": {"group_id": group.group_id, "task_id": group.task_id, "kind": row["kind"], "status": row["status"]},
    }


def _steps(row: NeutralRow) -> list[dict[str, Any]]:
    logprobs = trained_logprobs(row)
    return [
        {
            "step_id": number,
            "source": "agent",
            "message": "",
            "metrics": {
                "prompt_tokens": start,
                "completion_tokens": end - start,
                "prompt_token_ids": row["ids"][:start].tolist(),
                "completion_token_ids": row["ids"][start:end].tolist(),
                "logprobs": logprobs[start:end].tolist(),
                "extra": {"versions": np.unique(row["versions"][start:end]).tolist()},
            },
        }
        for number, (start, end) in enumerate(trained_spans(row), 1)
    ]


def trained_tokens(steps: Sequence[dict[str, Any]]) -> int:
    """Return the number of trained tokens of steps."""
    return sum(len(step["metrics"]["completion_token_ids"]) for step in steps)


def trained(record: Trajectory) -> int:
    """Return the number of trained tokens, sub-agents' included."""
    return sum(trained_tokens(one["steps"]) for one in (record, *record.get("subagent_trajectories", ())))


FORMAT: Final = TrainerFormat(
    name="atif",
    trainer="ATIF 1.8 (Harbor 0.25): a trajectory for each session",
    records=records,
    trained=trained,
    once="a record is a session",
)
