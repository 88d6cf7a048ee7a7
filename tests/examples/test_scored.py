"""Scoring every sampled token again finds what the figures of a run would hide; by the Python that has torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evener.engines.vllm_server import find_program

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
GIVEN = """
import sys
from pathlib import Path
from types import SimpleNamespace
import numpy as np, torch
from scored import score
from transformers import AutoModelForCausalLM
from evener.proto.arrays import pack_float32, pack_int32

folders = {0: Path(sys.argv[1]), 1: Path(sys.argv[2])}
models = {version: AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32) for version, folder in folders.items()}

def row(length, versions, seed, *, heat=1.0, shift=0, labels=None):
    ids = np.random.default_rng(seed).integers(3, 500, length).astype(np.int32)
    first, told = length - len(versions), np.full(length, np.nan, np.float32)
    for place, version in enumerate(versions, start=first):
        logits = models[version](torch.tensor(ids, dtype=torch.long)[None]).logits[0, place - 1]
        told[place] = torch.log_softmax(logits / heat, -1)[ids[place]].item()
    told[first:] = np.roll(told[first:], shift)
    named = np.array([-1] * first + list(labels or versions), np.int32)
    return SimpleNamespace(ids=pack_int32(ids), logprobs=pack_float32(told), versions=pack_int32(named))

right = [row(20, [0] * 5, 1), row(12, [0, 0, 1], 2), row(9, [1] * 4, 3)]
found = score(right, folders)
assert (found["tokens"], found["versions"]) == (12, 2) and found["gap_max"] < 1e-5, found
wrong = {
    "a version's name": row(12, [0, 0, 1], 2, labels=[0, 1, 1]),
    "weights that were not reloaded": row(9, [0] * 4, 3, labels=[1] * 4),
    "a temperature": row(20, [0] * 5, 1, heat=1.2),
    "a place": row(20, [0] * 5, 1, shift=1),
}
for what, one in wrong.items():
    assert score([*right, one], folders)["gap_max"] > 1e-3, what
lost = row(9, [1] * 4, 3)
lost.logprobs = pack_float32(np.full(9, np.nan, np.float32))
assert not score([*right, lost], folders)["gap_max"] <= 1e-3
print("so it is")
"""


def test_each_wrong_token_among_right_ones_is_found(tmp_path: Path) -> None:
    """A wrong label, stale weights, another temperature, an off-by-one, and a logprob that is none."""
    folders = [tmp_path / "a", tmp_path / "b"]
    for seed, folder in enumerate(folders):
        subprocess.run((sys.executable, str(ROOT / "scripts/tiny_model.py"), str(folder), "--seed", str(seed)), check=True)
    paths = (ROOT / "examples/learn_pi", ROOT / "proto", ROOT / "libs")
    environ = {**os.environ, "PYTHONPATH": ":".join(map(str, paths)), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = (str(find_program(None).with_name("python")), "-c", GIVEN, *map(str, folders))
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)

    assert done.stdout.strip() == "so it is", done.stderr[-2000:]
