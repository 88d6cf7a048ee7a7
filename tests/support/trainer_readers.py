"""How each trainer reads its records, after the trainer's own source, and what it would then train. Knows nothing of `evener.formats`.

`faults` compares that with the group's event: the oracle of the formats' tests.
"""

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, pstdev
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct

from evener.proto.trajectories import GroupMerged, TrajectoryScored


class ReadRow(Struct, kw_only=True):
    """A sequence as the trainer's loss sees it: tokens in order, and for each whether it is trained."""

    ids: list[int]
    mask: list[int]
    logprobs: list[float]
    reward: float | None = None
    """The reward of the row, where the trainer computes advantages."""
    advantage: float | None = None
    """The advantage of the row, where the trainer is given it."""
    versions: list[int] | None = None
    """The versions that the trainer is told, sorted. None: it knows none."""


class ReadGroup(Struct, kw_only=True):
    """A group as the trainer sees it."""

    rows: list[ReadRow]
    counted: list[float] | None = None
    """The rewards that the trainer averages, sorted. None: it is given advantages."""


WITHOUT_VERSIONS: Final = frozenset({"nemo_gym", "nemo_rl", "openrlhf", "prime_rl", "skyrl", "tinker"})
"""The trainers whose records have no place for versions."""
Reader = Callable[[list[Any]], ReadGroup]


def faults(read: ReadGroup, event: GroupMerged) -> list[str]:
    """Return what the trainer would train otherwise than it was sampled and graded. Empty: nothing."""
    sessions = [member.scored for member in event.members if member.scored is not None and member.excluded is None]
    wanted = [(scored, row) for scored in sessions for row in scored.trajectory.rows]
    found = list[str]()
    if len(read.rows) != len(wanted):
        found.append(f"{len(read.rows)} rows, not {len(wanted)}")
    if read.counted is not None and not _equal(read.counted, sorted(_reward(scored) for scored in sessions)):
        found.append(f"the rewards {read.counted} count")
    advantages = _advantages(sessions)
    for number, (row, (scored, told)) in enumerate(zip(read.rows, wanted, strict=False)):
        found += [f"row {number}: {fault}" for fault in _row_faults(row, told, scored, advantages[scored.trajectory.session_id])]
    return found


def _row_faults(row: ReadRow, told: Any, scored: TrajectoryScored, advantage: float) -> Iterator[str]:
    ids, mask = np.frombuffer(told.ids, np.int32), np.frombuffer(told.loss_mask, np.uint8)
    logprobs, versions = np.frombuffer(told.logprobs, np.float32), np.frombuffer(told.versions, np.int32)
    trained = np.flatnonzero(mask)
    end = int(trained[-1]) + 1
    if row.ids[:end] != ids[:end].tolist() or len(row.ids) > len(ids):
        yield "another context"
    if np.flatnonzero(row.mask).tolist() != trained.tolist():
        yield f"trains {np.flatnonzero(row.mask).tolist()}, not {trained.tolist()}"
    elif not np.array_equal(np.array(row.logprobs, np.float32)[trained], logprobs[trained]):
        yield "other logprobs"
    if any(value for value, one in zip(row.logprobs, row.mask, strict=True) if not one):
        yield "logprobs of what is not trained"
    if row.reward is not None and not _equal(row.reward, _reward(scored)):
        yield f"reward {row.reward}, not {scored.reward}"
    if row.advantage is not None and not np.isclose(row.advantage, advantage, rtol=1e-5, atol=1e-7):
        yield f"advantage {row.advantage}, not {advantage}"
    if row.reward is None and row.advantage is None:
        yield "neither reward nor advantage"
    if row.versions is not None and not _versions_fit(row.versions, versions[trained]):
        yield f"versions {row.versions}"


def _versions_fit(told: Sequence[int], sampled: Any) -> bool:
    """Whether a trainer is told the oldest version, the oldest and the newest, each once, or each token's."""
    oldest, newest = int(sampled.min()), int(sampled.max())
    return list(told) in ([oldest], [oldest, newest], sorted(set(sampled.tolist())), sorted(sampled.tolist()))


def _equal(told: object, wanted: object) -> bool:
    """Whether numbers are equal to a trainer, which has them as float32."""
    return np.array_equal(np.array(told, np.float32), np.array(wanted, np.float32))


def _reward(scored: TrajectoryScored) -> float:
    assert scored.reward is not None
    return scored.reward


def _advantages(sessions: list[TrajectoryScored]) -> dict[str, float]:
    rewards = [_reward(scored) for scored in sessions]
    middle, deviation = fmean(rewards), pstdev(rewards)
    return {scored.trajectory.session_id: (_reward(scored) - middle) / (deviation + 1e-6) for scored in sessions}


def _trl(records: list[Any]) -> ReadGroup:
    """As `_generate` and `_generate_and_score_completions`: prompts and completions joined; a reward for each completion."""
    (one,) = records
    rows = [
        ReadRow(
            ids=prompt + completion,
            mask=[0] * len(prompt) + mask,
            logprobs=[0.0] * len(prompt) + logprobs,
            reward=reward,
            versions=[version],
        )
        for prompt, completion, mask, logprobs, reward, version in zip(
            one["prompt_ids"],
            one["completion_ids"],
            one["env_mask"],
            one["logprobs"],
            one["evener_reward"],
            one["evener_version"],
            strict=True,
        )
    ]
    return ReadGroup(rows=rows, counted=sorted(one["evener_reward"]))


def _trl_async(records: list[Any]) -> ReadGroup:
    """As `compute_loss`: mask, logprobs and advantages less the first position beside the logits less the last."""
    rows = [
        ReadRow(
            ids=one["input_ids"].tolist(),
            mask=[0, *one["completion_mask"][1:].tolist()],
            logprobs=[0.0, *one["old_log_probs"][1:].tolist()],
            advantage=one["advantage"],
            versions=[one["model_version"]],
        )
        for one in records
    ]
    assert len({one["group_id"] for one in records}) == 1
    return ReadGroup(rows=rows)


def _verl(records: list[Any]) -> ReadGroup:
    """As `_agent_loop_postprocess` and `compute_advantage_for_multi_trajectories`: a session's last output has its score."""
    rows = [
        ReadRow(
            ids=one["prompt_ids"] + one["response_ids"],
            mask=[0] * len(one["prompt_ids"]) + one["response_mask"],
            logprobs=[0.0] * len(one["prompt_ids"]) + one["response_logprobs"],
            reward=outputs[-1]["reward_score"],
            versions=[one["extra_fields"]["min_global_steps"], one["extra_fields"]["max_global_steps"]],
        )
        for outputs in records
        for one in outputs
    ]
    assert all("reward_extra_info" in one["extra_fields"] for outputs in records for one in outputs)
    return ReadGroup(rows=rows, counted=sorted(outputs[-1]["reward_score"] for outputs in records))


def _verl_transfer_queue(records: list[Any]) -> ReadGroup:
    """As `ReplayBufferAsync` and `_compute_advantage`: a key's parts are group, session and row."""
    (put,) = records
    last: dict[str, float] = {}
    found = []
    for key, fields, tags in zip(put["keys"], put["fields"], put["tags"], strict=True):
        uid, session, _ = key.split("_")
        assert uid == put["uid"] == fields["uid"]
        prompts, responses = fields["prompts"].tolist(), fields["responses"].tolist()
        assert fields["input_ids"].tolist() == prompts + responses
        assert (tags["prompt_len"], tags["response_len"], tags["seq_len"]) == (len(prompts), len(responses), len(prompts + responses))
        last[session] = float(fields["rm_scores"].sum())
        row = ReadRow(
            ids=fields["input_ids"].tolist(),
            mask=[0] * len(prompts) + fields["response_mask"].tolist(),
            logprobs=[0.0] * len(prompts) + fields["rollout_log_probs"].tolist(),
            versions=[tags["min_global_steps"], tags["max_global_steps"]],
        )
        found.append((session, row))
    for session, row in found:
        row.reward = last[session]
    return ReadGroup(rows=[row for _, row in found], counted=sorted(last.values()))


PRIME_RL_FIELDS: Final = (
    *("token_ids", "mask", "logprobs", "temperatures", "env_name", "ref_logprobs", "mm_kwargs", "routed_experts"),
    *("mm_token_type_ids", "rl_weights", "ce_weights", "ref_kl_weights", "advantages"),
)
"""In the order of 0.8.0: its struct is an array."""


def _prime_rl(records: list[Any]) -> ReadGroup:
    """As `prepare_batch` and `compute_loss`: everything aligned with the tokens."""
    read = [dict(zip(PRIME_RL_FIELDS, msgspec.to_builtins(record), strict=True)) for record in records]
    rows = [
        ReadRow(ids=one["token_ids"], mask=one["mask"], logprobs=one["logprobs"], advantage=_only(one["advantages"], one["mask"]))
        for one in read
    ]
    assert all(len(one["temperatures"]) == len(one["token_ids"]) for one in read)
    return ReadGroup(rows=rows)


def _only(values: Sequence[float], mask: Sequence[int]) -> float:
    """Return the one value of the trained tokens; others have none."""
    assert not any(value for value, one in zip(values, mask, strict=True) if not one)
    (value,) = {value for value, one in zip(values, mask, strict=True) if one}
    return value


def _slime(records: list[Any]) -> ReadGroup:
    """As `_convert_samples_to_train_data`, with the advantages of a custom post-processing."""
    rows = []
    for one in records:
        at = len(one["tokens"]) - one["response_length"]
        assert len(one["loss_mask"]) == len(one["rollout_log_probs"]) == one["response_length"]
        rows.append(
            ReadRow(
                ids=one["tokens"],
                mask=[0] * at + one["loss_mask"],
                logprobs=[0.0] * at + one["rollout_log_probs"],
                reward=one["reward"],
                advantage=one["metadata"]["evener_advantage"],
                versions=sorted(map(int, one["weight_versions"])),
            )
        )
    assert len({one["index"] for one in records}) == len(records)
    return ReadGroup(rows=rows)


def _nemo_gym(records: list[Any]) -> ReadGroup:
    """As NeMo-RL's `_postprocess_nemo_gym_to_nemo_rl_result`, which asserts that each prompt begins with all that was seen."""
    logs = []
    for one in records:
        seen: list[int] = []
        log = []
        for item in one["response"]["output"]:
            prompt = item["prompt_token_ids"]
            assert prompt[: len(seen)] == seen, "Non-contiguous messages found!"
            log.append({"role": "user", "token_ids": np.array(prompt[len(seen) :])})
            generated = {"token_ids": np.array(item["generation_token_ids"]), "generation_logprobs": np.array(item["generation_log_probs"])}
            log.append({"role": "assistant", **generated})
            seen = prompt + item["generation_token_ids"]
        logs.append({"message_log": log, "length": len(seen), "total_reward": one["reward"]})
    return _nemo_rl(logs)


def _nemo_rl(records: list[Any]) -> ReadGroup:
    """As `add_grpo_token_loss_masks_and_generation_logprobs` and the flat message log."""
    rows = []
    for one in records:
        row = ReadRow(ids=[], mask=[], logprobs=[], reward=one["total_reward"])
        for message in one["message_log"]:
            tokens = message["token_ids"].tolist()
            trains = message["role"] == "assistant" and "generation_logprobs" in message
            row.ids += tokens
            row.mask += [int(trains)] * len(tokens)
            row.logprobs += message["generation_logprobs"].tolist() if trains else [0.0] * len(tokens)
        assert len(row.ids) == one["length"]
        rows.append(row)
    return ReadGroup(rows=rows, counted=sorted(one["total_reward"] for one in records))


def _areal(records: list[Any]) -> ReadGroup:
    """As `PPOActor._compute_advantages`: mask and logprobs rolled by one, the reward on the last position but one."""
    rows = []
    for one in records:
        (ids,), (mask,), (logprobs,), (versions,) = (one[name] for name in ("input_ids", "loss_mask", "logprobs", "versions"))
        rolled = np.roll(mask, -1)
        rewarded = rolled[one["attention_mask"].sum() - 2] == 1
        rows.append(
            ReadRow(
                ids=ids.tolist(),
                mask=[0, *rolled[:-1].tolist()],
                logprobs=[0.0, *np.roll(logprobs, -1)[:-1].tolist()],
                advantage=float(one["rewards"][0]) if rewarded else 0.0,
                versions=sorted(versions[mask == 1].tolist()),
            )
        )
    return ReadGroup(rows=rows)


def _openrlhf(records: list[Any]) -> ReadGroup:
    """As `_process_response_into_experience`: mask and logprobs less their first position."""
    rows = []
    for one in records:
        mask = [0] * len(one["observation_tokens"])
        for start, end in one["action_ranges"]:
            mask[start:end] = [1] * (end - start)
        action_mask, logprobs = mask[1:], one["rollout_log_probs"][1:]
        rows.append(ReadRow(ids=one["observation_tokens"], mask=[0, *action_mask], logprobs=[0.0, *logprobs], reward=one["reward"]))
    return ReadGroup(rows=rows, counted=sorted(one["scores"] for one in records))


def _skyrl(records: list[Any]) -> ReadGroup:
    """As `compute_advantages_and_returns` with step-wise trajectories: a trajectory ends where `is_last_step` is true."""
    (one,) = records
    rows, counted, waiting = [], [], list[ReadRow]()
    for number, last in enumerate(one["is_last_step"]):
        prompt = one["prompt_token_ids"][number]
        row = ReadRow(
            ids=prompt + one["response_ids"][number],
            mask=[0] * len(prompt) + one["loss_masks"][number],
            logprobs=[0.0] * len(prompt) + one["rollout_logprobs"][number],
        )
        waiting.append(row)
        rows.append(row)
        if last:
            for step in waiting:
                step.reward = one["rewards"][number]
            waiting = []
            counted.append(one["rewards"][number])
    assert not waiting
    assert len({(each["instance_id"], each["repetition_id"]) for each in one["trajectory_ids"]}) <= len(counted)
    return ReadGroup(rows=rows, counted=sorted(counted))


def _tinker(records: list[Any]) -> ReadGroup:
    """As the loss: at each position a target, its logprob and its advantage."""
    rows = []
    for one in records:
        (chunk,) = one["model_input"]["chunks"]
        values = {name: tensor["data"].tolist() for name, tensor in one["loss_fn_inputs"].items()}
        assert {len(each) for each in values.values()} == {len(chunk["tokens"])}
        assert values["target_tokens"][:-1] == chunk["tokens"][1:]
        assert [tensor["dtype"] for tensor in one["loss_fn_inputs"].values()] == ["int64", "float32", "float32", "float32"]
        mask = [int(one) for one in values["mask"]]
        rows.append(
            ReadRow(
                ids=[*chunk["tokens"], values["target_tokens"][-1]],
                mask=[0, *mask],
                logprobs=[0.0, *values["logprobs"]],
                advantage=_only(values["advantages"], mask),
            )
        )
    return ReadGroup(rows=rows)


def _atif(records: list[Any]) -> ReadGroup:
    """As one who trains the steps of agents that are no copied context."""
    rows = []
    for one in records:
        told = one["final_metrics"]["extra"]
        for trajectory in (one, *one.get("subagent_trajectories", ())):
            row = ReadRow(ids=[], mask=[], logprobs=[], reward=told["reward"], advantage=told["advantage"], versions=[])
            for number, step in enumerate(trajectory["steps"], 1):
                metrics = step["metrics"]
                assert (step["step_id"], step["source"], "is_copied_context" in step) == (number, "agent", False)
                assert metrics["prompt_token_ids"][: len(row.ids)] == row.ids
                given = len(metrics["prompt_token_ids"]) - len(row.ids)
                row.ids = metrics["prompt_token_ids"] + metrics["completion_token_ids"]
                row.mask += [0] * given + [1] * len(metrics["completion_token_ids"])
                row.logprobs += [0.0] * given + metrics["logprobs"]
                row.versions = sorted({*(row.versions or []), *metrics["extra"]["versions"]})
            rows.append(row)
    return ReadGroup(rows=rows)


READERS: Final[dict[str, Reader]] = {
    "areal": _areal,
    "atif": _atif,
    "miles": _slime,
    "nemo_gym": _nemo_gym,
    "nemo_rl": _nemo_rl,
    "openrlhf": _openrlhf,
    "prime_rl": _prime_rl,
    "skyrl": _skyrl,
    "slime": _slime,
    "tinker": _tinker,
    "trl": _trl,
    "trl_async": _trl_async,
    "verl": _verl,
    "verl_transfer_queue": _verl_transfer_queue,
}
