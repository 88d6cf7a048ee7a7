"""verl's V1 trainer: what is put into TransferQueue (verl-project/verl, verl/trainer/ppo/v1/agent_loop_tq.py, `_agent_loop_postprocess`).

A record is one group: the arguments of `kv_batch_put`, with a key, fields and tags for each row. What only the trainer knows (the fields of
its data set, its own step as `global_steps`) is added by whoever puts the record.
"""

from typing import Any, Final, TypedDict

import numpy as np

from evener.formats.neutral import NeutralRow
from evener.formats.trainable import TrainGroup, TrainSession
from evener.formats.trainer_format import TrainerFormat, int64s, newest_version, oldest_version, trained_logprobs
from evener.formats.trainers.verl import ONCE, output_of


class BatchPut(TypedDict):
    """The rows of one group."""

    uid: str
    """The group, without the `_` at which verl splits keys."""
    partition_id: str
    keys: list[str]
    """`{uid}_{session}_{row}`, counted from 0."""
    fields: list[dict[str, Any]]
    tags: list[dict[str, Any]]


def records(group: TrainGroup) -> list[BatchPut]:
    """Return the one record of a group."""
    uid = uid_of(group.group_id)
    rows = [(session, number, row) for session in group.sessions for number, row in enumerate(session.rows)]
    return [
        BatchPut(
            uid=uid,
            partition_id="train",
            keys=[f"{uid}_{session.index}_{number}" for session, number, _ in rows],
            fields=[_fields(uid, session, row) for session, _, row in rows],
            tags=[_tags(row) for _, _, row in rows],
        )
    ]


def uid_of(group_id: str) -> str:
    """Return the id of a group without `_`. Different groups have different ones."""
    return group_id.replace("%", "%25").replace("_", "%5F")


def _fields(uid: str, session: TrainSession, row: NeutralRow) -> dict[str, Any]:
    """Return the arrays of a row as `AgentLoopOutput.as_dict` makes them: T tokens, R of them response."""
    at = row["prompt_len"]
    output = output_of(session, row)
    mask = int64s(row["loss_mask"][at:])
    scores = np.zeros(len(mask), np.float32)
    scores[-1] = session.reward
    return {
        "uid": uid,
        "prompts": int64s(row["ids"][:at]),
        "responses": int64s(row["ids"][at:]),
        "response_mask": mask,
        "loss_mask": mask,
        "rollout_log_probs": trained_logprobs(row)[at:],
        "rm_scores": scores,
        "input_ids": int64s(row["ids"]),
        "position_ids": np.arange(len(row["ids"]), dtype=np.int64),
        "multi_modal_inputs": {},
        "num_turns": output["num_turns"],
        "metrics": output["metrics"],
        "extra_fields": output["extra_fields"],
    }


def _tags(row: NeutralRow) -> dict[str, Any]:
    length, prompt, newest = len(row["ids"]), row["prompt_len"], newest_version(row)
    return {
        "status": "success",
        "prompt_len": prompt,
        "response_len": length - prompt,
        "seq_len": length,
        "global_steps": newest,
        "min_global_steps": oldest_version(row),
        "max_global_steps": newest,
    }


def trained(record: BatchPut) -> int:
    """Return the number of trained tokens."""
    return sum(int(fields["response_mask"].sum()) for fields in record["fields"])


FORMAT: Final = TrainerFormat(
    name="verl_transfer_queue",
    trainer="verl 0.9 V1 trainer: keys, fields and tags for TransferQueue",
    records=records,
    trained=trained,
    once=ONCE,
    own_mean=True,
)
