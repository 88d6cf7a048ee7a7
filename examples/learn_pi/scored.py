"""Score every sampled token again, by the weights that its version names: a wrong label, a late reload, a shifted logprob all show.

    python examples/learn_pi/scored.py TRAJECTORIES.msgpack VERSIONS.json        # needs torch and transformers

VERSIONS is {version: folder}. Prints a line of JSON: tokens, versions, and the largest difference from the engine's logprobs.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from safetensors.torch import load_file
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM

from evener.proto.arrays import float32s, int32s, length
from evener.proto.codec import decode
from evener.proto.trajectories import Row, TrajectoryBuilt

AT_ONCE: Final = 16
"""The number of rows in a batch."""


def rows_of(file: Path) -> Iterator[Row]:
    """Yield the rows of trajectories, each of which follows its length in four bytes."""
    frames = memoryview(file.read_bytes())
    while frames:
        size = int.from_bytes(frames[:4], "big")
        event = decode(bytes(frames[4 : 4 + size]))
        assert isinstance(event, TrajectoryBuilt)  # noqa: S101 - it was written so
        yield from event.rows
        frames = frames[4 + size :]


def gaps(model: Any, rows: Sequence[Row], version: int) -> torch.Tensor:
    """Return the absolute difference between each token's logprob and the engine's, for the tokens of this version in rows."""
    ids = pad_sequence([torch.tensor(int32s(row.ids), dtype=torch.long) for row in rows], batch_first=True)
    told = pad_sequence([torch.tensor(float32s(row.logprobs)) for row in rows], batch_first=True)[:, 1:]
    mine = pad_sequence([torch.tensor(int32s(row.versions) == version) for row in rows], batch_first=True)[:, 1:]
    logits = model.lm_head(model.model(ids[:, :-1]).last_hidden_state[mine])
    chosen = torch.log_softmax(logits.float(), dim=-1).gather(1, ids[:, 1:][mine][:, None])[:, 0]
    return (chosen - told[mine]).abs()


def score(rows: Sequence[Row], folders: dict[int, Path]) -> dict[str, Any]:
    """Return how many tokens of how many versions were scored, and the largest difference. NaN where a logprob is none."""
    by_version = defaultdict(list)
    for row in sorted(rows, key=lambda row: length(row.ids)):
        for version in np.unique(int32s(row.versions)[int32s(row.versions) >= 0]):
            by_version[int(version)].append(row)
    model = AutoModelForCausalLM.from_pretrained(next(iter(folders.values())), dtype=torch.float32)
    tokens, largest = 0, torch.zeros(1)
    with torch.inference_mode():
        for version, own in by_version.items():
            model.load_state_dict(load_file(folders[version] / "model.safetensors"))
            for at in range(0, len(own), AT_ONCE):
                found = gaps(model, own[at : at + AT_ONCE], version)
                tokens, largest = tokens + len(found), torch.maximum(largest, found.max())
    return {"tokens": tokens, "versions": len(by_version), "gap_max": largest.item()}


if __name__ == "__main__":
    trajectories, versions = map(Path, sys.argv[1:])
    folders = {int(version): Path(folder) for version, folder in json.loads(versions.read_text()).items()}
    print(json.dumps(score(list(rows_of(trajectories)), folders)))
