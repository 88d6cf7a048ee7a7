"""GRPO in one file: groups come from Evener, an update is made, the weights go back into the running engines.

    python examples/grpo_minimal/train.py --url URL --token-file FILE --model FOLDER --out FOLDER --steps 15

Needs torch and transformers, and `evener.client`, which needs neither. Each step is a folder OUT/step-N: the weights as Hugging Face
has them, the optimizer, and `step.json` with the position in the log. Killed anywhere and started again, it goes on after the last
whole folder, with the next group: none is trained twice, none is left out. A line of JSON is printed for each step.
"""

import argparse
import json
import math
import os
import shutil
import time
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM

from evener.client.groups import Group, Row
from evener.client.sync import SyncClient, SyncGroups, connect
from evener.proto.fleet import Canary, CanaryPrompt

CANARY_ROWS = 4
TOLERANCE = 1e-3


def arguments() -> argparse.Namespace:
    """Return what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="of the running Evener")
    parser.add_argument("--token-file", type=Path, required=True, help="with the operator's token")
    parser.add_argument("--model", type=Path, required=True, help="what the engines were started with; embeddings not tied")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--policy", default="policy")
    parser.add_argument("--run-id", help="train the groups of this run alone")
    parser.add_argument("--first-version", type=int, default=1, help="of the first update; numbers only rise")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--groups", type=int, default=8, help="in each step")
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--clip", type=float, default=0.2)
    return parser.parse_args()


def advantages(group: Group) -> list[float]:
    """Return an advantage for each session: its reward against its group's, in standard deviations.

    A session counts once, however many rows it has: all of them get its advantage.
    """
    rewards = [session.reward for session in group.sessions]
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    return [(reward - mean) / (deviation + 1e-6) for reward in rewards]


def batch_of(groups: list[Group]) -> dict[str, torch.Tensor]:
    """Return rows side by side, padded at their ends: all are [rows, tokens], but `advantage`, which is [rows]."""
    pairs = [
        (row, advantage)
        for group in groups
        for session, advantage in zip(group.sessions, advantages(group), strict=True)
        for row in session.rows
    ]

    def stacked(name: str, dtype: torch.dtype) -> torch.Tensor:
        return pad_sequence([torch.tensor(getattr(row, name), dtype=dtype) for row, _ in pairs], batch_first=True)

    return {
        "ids": stacked("ids", torch.long),
        "mask": stacked("mask", torch.bool),
        "logprobs": stacked("logprobs", torch.float32),
        "versions": stacked("versions", torch.long),
        "advantage": torch.tensor([advantage for _, advantage in pairs], dtype=torch.float32),
    }


def logprobs_of(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Return the logprobs of the masked tokens, in the order of the mask. Only their logits are computed."""
    before = mask[:, 1:]  # the token before each of them predicts it
    hidden = model.model(ids[:, :-1]).last_hidden_state[before]
    chosen = torch.log_softmax(model.lm_head(hidden).float(), dim=-1)
    return chosen.gather(1, ids[:, 1:][before][:, None])[:, 0]


def loss_of(model: Any, batch: dict[str, torch.Tensor], clip: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the clipped loss, its mean over all trained tokens of the batch, and the tokens' logprobs before the update."""
    mask = batch["mask"]
    new = logprobs_of(model, batch["ids"], mask)
    ratio = torch.exp(new - batch["logprobs"][mask])  # against the weights that sampled the token, whatever their version
    advantage = batch["advantage"][:, None].expand(mask.shape)[mask]
    gain = torch.minimum(ratio * advantage, torch.clamp(ratio, 1 - clip, 1 + clip) * advantage)
    return -gain.mean(), new.detach()


def canary_of(model: Any, rows: list[Row]) -> Canary:
    """Return rows with our logprobs of every id: the bridge refuses the update where an engine says other ones."""
    prompts = []
    with torch.no_grad():
        for row in rows:
            ids = torch.tensor(row.ids, dtype=torch.long)[None]
            told = logprobs_of(model, ids, torch.ones_like(ids, dtype=torch.bool))
            prompts.append(CanaryPrompt(ids=tuple(row.ids.tolist()), logprobs=(None, *told.tolist())))
    return Canary(prompts=tuple(prompts), tolerance=TOLERANCE)


def spanning(row: Row) -> int:
    """Return how many answers of a row are trained, and were sampled by more than one version."""
    calls = {int(call) for call in row.call_of[row.mask == 1]}
    return sum(len(set(row.versions[(row.call_of == call) & (row.mask == 1)].tolist())) > 1 for call in calls)


def save(folder: Path, model: Any, optimizer: torch.optim.Optimizer, told: dict[str, Any]) -> None:
    """Write a checkpoint: whole, or not at all."""
    half = folder.with_suffix(".half")
    shutil.rmtree(half, ignore_errors=True)
    model.save_pretrained(half)
    torch.save(optimizer.state_dict(), half / "optimizer.pt")
    (half / "step.json").write_text(json.dumps(told))
    half.rename(folder)
    os.sync()


def publish(evener: SyncClient, asked: argparse.Namespace, folder: Path, version: int, canary: Canary | None) -> float:
    """Load a checkpoint into the engines; return the largest difference of a logprob to ours. Published already: nothing happens."""
    answer = evener.publish(asked.policy, version, str(folder.absolute()), canary=canary)
    return answer.gap or 0.0


def main() -> None:
    """Train."""
    asked = arguments()
    torch.manual_seed(0)
    asked.out.mkdir(parents=True, exist_ok=True)
    steps = sorted(asked.out.glob("step-*[0-9]"))
    last: dict[str, Any] = json.loads((steps[-1] / "step.json").read_text()) if steps else {}
    model = AutoModelForCausalLM.from_pretrained(steps[-1] if steps else asked.model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=asked.learning_rate, weight_decay=0.0)
    if steps:
        optimizer.load_state_dict(torch.load(steps[-1] / "optimizer.pt"))
    with connect(asked.url, asked.token_file.read_text().strip()) as evener:
        if steps:
            publish(evener, asked, steps[-1], last["version"], None)  # if it died between saving and publishing
        groups = evener.groups(start=last.get("position"), run_id=asked.run_id)
        for number in range(last.get("step", 0) + 1, asked.steps + 1):
            train_step(evener, asked, model, optimizer, groups=groups, number=number)


def train_step(evener: SyncClient, asked: argparse.Namespace, model: Any, optimizer: Any, *, groups: SyncGroups, number: int) -> None:
    """Take groups, update, save, publish; print what happened."""
    version = asked.first_version + number - 1
    began = time.monotonic()
    taken = list(islice(groups, asked.groups))
    trained = time.monotonic()
    batch = batch_of(taken)
    loss, seen = loss_of(model, batch, asked.clip)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    rows = [row for group in taken for row in group.rows]
    canary = canary_of(model, rows[:CANARY_ROWS])
    saved = time.monotonic()
    mask = batch["mask"]
    gaps = (seen - batch["logprobs"][mask]).abs()
    lags = version - 1 - batch["versions"][mask]
    told = {
        "step": number,
        "version": version,
        "position": groups.position,
        "groups": [
            {
                "group_id": one.group_id,
                "partition": one.partition,
                "offset": one.offset,
                "rewards": [session.reward for session in one.sessions],
            }
            for one in taken
        ],
        "rows": len(rows),
        "tokens": int(mask.sum()),
        "spanning": sum(map(spanning, rows)),
        "gap_sampled": gaps[lags == 0].max().item() if (lags == 0).any() else None,  # older versions differ, and rightly
        "lag_mean": lags.float().mean().item(),
        "lag_max": lags.max().item(),
        "at": time.time(),
    }
    folder = asked.out / f"step-{number:04d}"
    save(folder, model, optimizer, told)
    gap = publish(evener, asked, folder, version, canary)
    seconds = {"rollout": trained - began, "train": saved - trained, "sync": time.monotonic() - saved}
    print(json.dumps(told | {"gap": gap, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main()
