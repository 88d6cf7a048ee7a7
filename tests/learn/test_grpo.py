"""The arithmetic of the example's trainer, by the Python that has torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from evener.engines.vllm_server import find_program

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
GIVEN = """
import math, sys
import numpy as np, torch, train
from transformers import AutoModelForCausalLM
from evener.client.groups import Group, Row, Session

torch.manual_seed(0)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)

def row(length, sampled, seed):
    ids = np.random.default_rng(seed).integers(3, 500, length).astype(np.int32)
    mask = np.zeros(length, np.uint8)
    mask[length - sampled:] = 1
    told = np.full(length, np.nan, np.float32)
    full = torch.log_softmax(model(torch.tensor(ids, dtype=torch.long)[None]).logits[0], -1)
    for place in np.flatnonzero(mask):
        told[place] = full[place - 1, ids[place]].item()
    one = np.where(mask, 0, -1).astype(np.int32)
    return Row(ids=ids, mask=mask, logprobs=told, versions=one, call_of=one, event=None)

def group(*sessions):
    made = tuple(Session(session_id=str(n), reward=reward, rewards={}, rows=rows) for n, (reward, rows) in enumerate(sessions))
    return Group(group_id="g", task_id="g", run_id="r", policy="p", sessions=made, partition=0, offset=0, event=None)

one, two, three = row(20, 5, 1), row(12, 3, 2), row(17, 2, 3)
"""
FACTS = {
    "a session counts once, however many rows it has": """
apart = train.advantages(group((1.0, (one, two)), (0.0, (three,))))
assert [round(each, 3) for each in apart] == [1.0, -1.0], apart
batch = train.batch_of([group((1.0, (one, two)), (0.0, (three,)))])
assert np.allclose(batch["advantage"], [apart[0], apart[0], apart[1]])
""",
    "logprobs stand beside the ids that they are of": """
batch = train.batch_of([group((1.0, (one, two)), (0.0, (three,)))])
seen = train.logprobs_of(model, batch["ids"], batch["mask"])
assert torch.allclose(seen, batch["logprobs"][batch["mask"]], atol=1e-5)
told = train.canary_of(model, [three]).prompts[0]
assert told.logprobs[0] is None and np.allclose(told.logprobs[-2:], three.logprobs[-2:], atol=1e-5)
""",
    "the loss is the mean over tokens, and what has moved too far is clipped": """
batch = train.batch_of([group((1.0, (one,)), (0.0, (two,)))])
loss, _ = train.loss_of(model, batch, 0.2)
assert math.isclose(loss.item(), -(5 * 1.0 + 3 * -1.0) / 8, rel_tol=1e-3), loss
batch["logprobs"] = batch["logprobs"] - 1.0  # ratio e: above the clip
loss, _ = train.loss_of(model, batch, 0.2)
assert math.isclose(loss.item(), -(5 * 1.2 - 3 * math.e) / 8, rel_tol=1e-3), loss
""",
    "a group without differences changes nothing": """
assert train.advantages(group((0.1, (one,)), (0.1, (two,)))) == [0.0, 0.0]
""",
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    subprocess.run((sys.executable, str(ROOT / "scripts/tiny_model.py"), str(folder)), check=True)
    return folder


def test_the_trainers_arithmetic(model: Path) -> None:
    """All facts in one process: torch takes a while to import."""
    folders = (ROOT / "examples/grpo_minimal", ROOT / "proto", ROOT / "libs")
    environ = {**os.environ, "PYTHONPATH": ":".join(map(str, folders)), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    shown = "\n".join(f"print({fact!r}){code}" for fact, code in FACTS.items())
    command = (str(find_program(None).with_name("python")), "-c", GIVEN + shown, str(model))
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)

    assert done.returncode == 0, f"not so: {done.stdout.splitlines()[-1:]}\n{done.stderr[-2000:]}"
    assert done.stdout.splitlines() == list(FACTS)
