"""NeMo Gym: a row of `rollouts.jsonl`, and what an agent server answers to `/run` (NVIDIA-NeMo/Gym, nemo_gym/openai_utils.py).

A record is one session. An item of the output is a run of trained tokens, after all tokens that come before it: each prompt begins with the
prompts and generations before it, as NeMo-RL demands. Items have no text, because rows are tokens. The format has no versions.
"""

from typing import Any, Final

from evener.formats.neutral import NeutralRow
from evener.formats.trainable import TrainGroup, TrainSession
from evener.formats.trainer_format import TrainerFormat, trained_logprobs, trained_spans

NeMoGymRow = dict[str, Any]
"""`responses_create_params`, `response`, `reward`, `reward_components`, `agent_ref`, `_ng_task_index`, `_ng_rollout_index`."""


def records(group: TrainGroup) -> list[NeMoGymRow]:
    """Return a record for each session."""
    return [_result(group, session, row) for session, row in group.rows()]


def _result(group: TrainGroup, session: TrainSession, row: NeutralRow) -> NeMoGymRow:
    return {
        "responses_create_params": {"input": []},
        "response": {
            "id": f"resp-{session.session_id}",
            "created_at": group.merged_at,
            "model": group.policy,
            "object": "response",
            "output": _items(row),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "status": "incomplete" if row["truncated"] else "completed",
        },
        "reward": session.reward,
        "reward_components": session.rewards,
        "agent_ref": {"type": "responses_api_agents", "name": "evener"},
        "_ng_task_index": group.number,
        "_ng_rollout_index": session.index,
    }


def _items(row: NeutralRow) -> list[dict[str, Any]]:
    logprobs = trained_logprobs(row)
    return [
        {
            "type": "message",
            "id": f"msg-{number}",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "", "annotations": []}],
            "prompt_token_ids": row["ids"][:start].tolist(),
            "generation_token_ids": row["ids"][start:end].tolist(),
            "generation_log_probs": logprobs[start:end].tolist(),
        }
        for number, (start, end) in enumerate(trained_spans(row))
    ]


def trained(record: NeMoGymRow) -> int:
    """Return the number of trained tokens."""
    return sum(len(item["generation_token_ids"]) for item in record["response"]["output"])


FORMAT: Final = TrainerFormat(
    name="nemo_gym",
    trainer="NeMo Gym 0.4: a row of rollouts.jsonl",
    records=records,
    trained=trained,
    once="one row a session",
    several_rows=False,
    own_mean=True,
)
