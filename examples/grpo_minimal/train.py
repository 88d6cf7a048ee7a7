"""GRPO in one file: groups come from Evener, an update is made, the weights go back into the running engines.

    python examples/grpo_minimal/train.py --url URL --token-file FILE --model FOLDER --out FOLDER --steps 15

Needs torch and transformers, and `evener.client`, which needs neither. Each step is a folder OUT/step-N: weights as Hugging Face has
them, optimizer, canary, and `step.json` with the position in the log. Killed at any point and started again, it continues after the last
complete folder, with the next group: none is trained twice, none is left out. It prints a line of JSON for each step, and after a start the
last one's again. A version that is refused for good is put aside, and ends the program; started again, it trains those groups again.
"""

import argparse
import json
import os
import shutil
import sys
import time
from itertools import islice
from pathlib import Path
from statistics import mean, pstdev
from typing import Any

import msgspec
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM

from evener.client.errors import RequestRefused
from evener.client.groups import Group, RowArrays
from evener.client.sync import SyncClient, connect
from evener.proto.errors import EvenerError
from evener.proto.fleet import Canary, CanaryPrompt

CANARY_ROWS, CANARY_IDS = 4, 1024
COLUMNS = {"ids": torch.long, "loss_mask": torch.bool, "logprobs": torch.float32, "versions": torch.long}


def advantages(group: Group) -> list[tuple[RowArrays, float]]:
    """Return the rows, each with its session's advantage: its reward in standard deviations of the group's. A session counts once."""
    rewards = [session.reward for session in group.sessions]
    middle, deviation = mean(rewards), pstdev(rewards)
    return [(row, (session.reward - middle) / (deviation + 1e-6)) for session in group.sessions for row in session.rows]


def batch_of(groups: list[Group]) -> dict[str, torch.Tensor] | None:
    """Return rows, padded to [rows, tokens], `advantage` and `temperature` of [rows]. None: no advantage, and nothing to learn."""
    pairs = [pair for group in groups for pair in advantages(group)]
    if not any(advantage and row.loss_mask.any() for row, advantage in pairs):
        return None
    columns = {name: [torch.tensor(getattr(row, name), dtype=dtype) for row, _ in pairs] for name, dtype in COLUMNS.items()}
    batch = {name: pad_sequence(column, batch_first=True) for name, column in columns.items()}
    batch["advantage"] = torch.tensor([advantage for _, advantage in pairs])
    batch["temperature"] = torch.tensor([temperature_of(row) for row, _ in pairs])
    return batch


def temperature_of(row: RowArrays) -> float:
    """Return the temperature of a row.

    Ends the program if the row was not sampled from the whole distribution: `logprobs_of` has no filters.
    """
    how = row.event.sampling
    if how.temperature == 0 or how.top_p < 1 or how.top_k or how.min_p:
        sys.exit(f"only a temperature above 0 without top_p, top_k and min_p can be trained here, not {how}")
    return how.temperature


def logprobs_of(model: Any, ids: torch.Tensor, mask: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    """Return the logprobs of the masked tokens, in the order of the mask. Only their logits are computed."""
    before = mask[:, 1:]  # the token before each of them predicts it
    logits = model.lm_head(model.model(ids[:, :-1]).last_hidden_state[before]).float()
    chosen = torch.log_softmax(logits / temperature[:, None].expand(before.shape)[before][:, None], dim=-1)
    return chosen.gather(1, ids[:, 1:][before][:, None])[:, 0]


def loss_of(model: Any, batch: dict[str, torch.Tensor], clip: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the clipped loss, its mean over all trained tokens of the batch, and the tokens' logprobs before the update."""
    mask = batch["loss_mask"]
    new = logprobs_of(model, batch["ids"], mask, batch["temperature"])
    ratio = torch.exp(new - batch["logprobs"][mask])  # against the weights that sampled the token, whatever their version
    advantage = batch["advantage"][:, None].expand(mask.shape)[mask]
    gain = torch.minimum(ratio * advantage, torch.clamp(ratio, 1 - clip, 1 + clip) * advantage)
    return -gain.mean(), new.detach()


def update(model: Any, optimizer: Any, batch: dict[str, torch.Tensor], asked: argparse.Namespace, held: int) -> dict[str, Any]:
    """Make an update of version `held`; return its figures. Ends the program if the engine did not sample by these weights."""
    loss, seen = loss_of(model, batch, asked.clip)
    gaps, lags = (seen - batch["logprobs"][batch["loss_mask"]]).abs(), held - batch["versions"][batch["loss_mask"]]
    gap = gaps[lags == 0].max().item() if (lags == 0).any() else None  # older versions differ, and rightly
    if gap is not None and not gap <= asked.tolerance:
        sys.exit(f"a logprob that the engine told of version {held} is {gap:.1e} from ours: more than {asked.tolerance}")
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return {"tokens": len(gaps), "gap_sampled": gap, "lag_mean": lags.float().mean().item(), "lag_max": lags.max().item()}


def canary_of(model: Any, rows: list[RowArrays], tolerance: float) -> Canary:
    """Return rows' beginnings with our logprobs of every id: the bridge refuses the update where an engine says other ones."""
    prompts = []
    with torch.no_grad():
        for row in rows:
            length = max(2, min(len(row.ids) - 1, CANARY_IDS))  # an engine samples one more: they must not fill its context
            ids = torch.tensor(row.ids[:length], dtype=torch.long)[None]
            told = logprobs_of(model, ids, torch.ones_like(ids, dtype=torch.bool), torch.ones(1))
            prompts.append(CanaryPrompt(ids=tuple(ids[0].tolist()), logprobs=(None, *told.tolist())))
    return Canary(prompts=tuple(prompts), tolerance=tolerance)


def save(folder: Path, model: Any, optimizer: Any, canary: Canary | None, told: dict[str, Any]) -> None:
    """Write a checkpoint: whole, or not at all."""
    half = folder.with_suffix(".half")
    shutil.rmtree(half, ignore_errors=True)
    model.save_pretrained(half)
    torch.save(optimizer.state_dict(), half / "optimizer.pt")
    (half / "canary.json").write_bytes(msgspec.json.encode(canary))
    (half / "step.json").write_text(json.dumps(told))
    for file in half.iterdir():
        with file.open("rb") as written:
            os.fsync(written.fileno())
    half.rename(folder)


def publish(evener: SyncClient, policy: str, folder: Path, since: float) -> None:
    """Load a checkpoint into the engines, proven by its canary, and tell of its step. Published already: it is only told."""
    told = json.loads((folder / "step.json").read_text())
    canary = msgspec.json.decode((folder / "canary.json").read_bytes(), type=Canary | None)  # None: nothing was learnt
    try:
        told["gap"] = canary and evener.publish(policy, told["version"], str(folder.absolute()), canary=canary).gap
    except RequestRefused as refused:
        if refused.field in {"canary", "version"}:  # rolled back, or somebody else has published this number or a higher one
            folder.rename(folder.with_name(f"aside-{told['version']}"))
        raise
    told["seconds"]["sync"] = time.monotonic() - since
    print(json.dumps(told), flush=True)


def begin(evener: SyncClient, asked: argparse.Namespace) -> tuple[Any, Any, dict[str, Any], int]:
    """Return model, optimizer, the last step and the highest version."""
    views = [view for view in evener.wait(evener.client.policies()) if view.policy == asked.policy]
    last: dict[str, Any] = {"step": 0, "version": max((view.newest or 0 for view in views), default=0), "position": None}
    folders = sorted(asked.out.glob("step-*[0-9]"), key=lambda folder: int(folder.name[len("step-") :]))
    model = AutoModelForCausalLM.from_pretrained(folders[-1] if folders else asked.model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=asked.learning_rate, weight_decay=0.0)
    if folders:
        last = json.loads((folders[-1] / "step.json").read_text())
        optimizer.load_state_dict(torch.load(folders[-1] / "optimizer.pt"))
        publish(evener, asked.policy, folders[-1], time.monotonic())  # in case it died before
    return model, optimizer, last, max([last["version"], *(one.version for view in views for one in view.versions)])


def train(evener: SyncClient, asked: argparse.Namespace) -> None:
    """Take groups, update, save, publish, step by step."""
    model, optimizer, last, highest = begin(evener, asked)
    groups = evener.groups(start=last["position"], run_id=asked.run_id, policy=asked.policy, follow=asked.follow or None)
    held = last["version"]
    for number in range(last["step"] + 1, asked.steps + 1):
        began = time.monotonic()
        if not (taken := list(islice(groups, asked.groups))):
            sys.exit(f"run {asked.run_id} is over after {number - 1} of {asked.steps} steps: {groups.failed} of its groups failed")
        trained = time.monotonic()
        told = {"step": number, "position": groups.position, "groups": [said_of(group) for group in taken], "tokens": 0}
        canary, batch = None, batch_of(taken)
        if batch is not None:
            told |= update(model, optimizer, batch, asked, held)
            canary = canary_of(model, [row for group in taken for row in group.rows][:CANARY_ROWS], asked.tolerance)
            held = highest = highest + 1
        saved = time.monotonic()
        folder = asked.out / f"step-{number:04d}"
        save(folder, model, optimizer, canary, told | {"version": held, "seconds": {"rollout": trained - began, "train": saved - trained}})
        publish(evener, asked.policy, folder, saved)


def said_of(group: Group) -> dict[str, Any]:
    """Return the position of a group in the log, and its rewards."""
    rewards = [session.reward for session in group.sessions]
    return {"group_id": group.group_id, "partition": group.partition, "offset": group.offset, "rewards": rewards}


def main() -> None:
    """Train as asked for. Where Evener refuses, one line says why."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="of the running Evener")
    parser.add_argument("--token-file", type=Path, required=True, help="with the operator's token")
    parser.add_argument("--model", type=Path, required=True, help="the weights that the engines were started with; embeddings not tied")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--policy", default="policy")
    parser.add_argument("--run-id", help="train the groups of this run alone, until it is over")
    parser.add_argument("--follow", action="store_true", help="do not end with the run: more of its tasks will be submitted")
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--groups", type=int, default=8, help="in each step")
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--clip", type=float, default=0.2)
    parser.add_argument("--tolerance", type=float, default=1e-3, help="by how much an engine's logprob may differ from ours")
    asked = parser.parse_args()
    try:
        with connect(asked.url, asked.token_file.read_text().strip()) as evener:
            train(evener, asked)
    except EvenerError as refused:
        sys.exit(str(refused))


if __name__ == "__main__":
    main()
