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
import argparse, math, sys
from types import SimpleNamespace
import msgspec, numpy as np, torch, train
from transformers import AutoModelForCausalLM
from evener.client.groups import Group, RowArrays, Session
from evener.proto.fleet import Canary
from evener.proto.spec import Sampling

torch.manual_seed(0)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)

def row(length, sampled, seed, **sampling):
    how = Sampling(**sampling)
    ids = np.random.default_rng(seed).integers(3, 500, length).astype(np.int32)
    mask = np.zeros(length, np.uint8)
    mask[length - sampled:] = 1
    told = np.full(length, np.nan, np.float32)
    logits = model(torch.tensor(ids, dtype=torch.long)[None]).logits[0]
    full = torch.log_softmax(logits / (how.temperature or 1), -1)
    for place in np.flatnonzero(mask):
        told[place] = full[place - 1, ids[place]].item()
    one = np.where(mask, 0, -1).astype(np.int32)
    return RowArrays(ids=ids, loss_mask=mask, logprobs=told, versions=one, call_of=one, event=SimpleNamespace(sampling=how))

def group(*sessions):
    made = tuple(Session(session_id=str(n), reward=reward, rewards={}, rows=rows) for n, (reward, rows) in enumerate(sessions))
    return Group(group_id="g", task_id="g", run_id="r", policy="p", sessions=made, partition=0, offset=0, event=None)

def ends(call, *given):
    try:
        call(*given)
    except SystemExit as end:
        return str(end)

one, two, three = row(20, 5, 1), row(12, 3, 2), row(17, 2, 3)
"""
FACTS = {
    "a session counts once, however many rows it has": """
apart = [round(advantage, 3) for _, advantage in train.advantages(group((1.0, (one, two)), (0.0, (three,))))]
assert apart == [1.0, 1.0, -1.0], apart
batch = train.batch_of([group((1.0, (one, two)), (0.0, (three,)))])
assert np.allclose(batch["advantage"], apart)
""",
    "logprobs stand beside the ids that they are of": """
batch = train.batch_of([group((1.0, (one, two)), (0.0, (three,)))])
seen = train.logprobs_of(model, batch["ids"], batch["loss_mask"], batch["temperature"])
assert torch.allclose(seen, batch["logprobs"][batch["loss_mask"]], atol=1e-5)
told = train.canary_of(model, [three], 1e-3).prompts[0]
assert told.logprobs[0] is None and math.isclose(told.logprobs[-1], three.logprobs[-2], abs_tol=1e-5)
""",
    "logprobs are those of the temperature that a row was sampled at, the canary's always those of 1": """
warm = row(17, 2, 3, temperature=1.7)
batch = train.batch_of([group((1.0, (one, warm)), (0.0, (two,)))])
seen = train.logprobs_of(model, batch["ids"], batch["loss_mask"], batch["temperature"])
assert torch.allclose(seen, batch["logprobs"][batch["loss_mask"]], atol=1e-5)
assert train.canary_of(model, [warm], 1e-3) == train.canary_of(model, [three], 1e-3)
""",
    "what was sampled greedily or through a filter is refused": """
for how in ({"temperature": 0.0}, {"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.1}):
    told = ends(train.batch_of, [group((1.0, (one,)), (0.0, (row(12, 3, 2, **how),)))])
    assert told and next(iter(how)) in told, told
""",
    "the canary of a long row is its beginning": """
long = row(6000, 4, 7)
told = train.canary_of(model, [long], 1e-3)
assert msgspec.convert(msgspec.to_builtins(told), Canary) == told
assert told.prompts[0].ids == tuple(long.ids[:train.CANARY_IDS].tolist())
""",
    "a canary leaves room for the token that an engine samples after it, where a row fills the context": """
for full, length in ((row(train.CANARY_IDS, 4, 7), train.CANARY_IDS - 1), (three, 16), (row(2, 1, 7), 2)):
    told = train.canary_of(model, [full], 1e-3)
    assert told.prompts[0].ids == tuple(full.ids[:length].tolist())
    assert msgspec.convert(msgspec.to_builtins(told), Canary) == told
""",
    "the loss is the mean over tokens, and what has moved too far is clipped": """
batch = train.batch_of([group((1.0, (one,)), (0.0, (two,)))])
loss, _ = train.loss_of(model, batch, 0.2)
assert math.isclose(loss.item(), -(5 * 1.0 + 3 * -1.0) / 8, rel_tol=1e-3), loss
batch["logprobs"] = batch["logprobs"] - 1.0  # ratio e: above the clip
loss, _ = train.loss_of(model, batch, 0.2)
assert math.isclose(loss.item(), -(5 * 1.2 - 3 * math.e) / 8, rel_tol=1e-3), loss
""",
    "without a difference of rewards, a row or a trainable token there is nothing to learn": """
assert train.batch_of([group((0.1, (one,)), (0.1, (two,)), (0.1, (three,)))]) is None
assert train.batch_of([group((1.0, ()), (0.0, ()))]) is None
assert train.batch_of([group((1.0, (row(12, 0, 2),)), (0.0, (row(9, 0, 2),)))]) is None
""",
    "weights that the engine did not sample by are not trained": """
asked = argparse.Namespace(clip=0.2, tolerance=1e-3)
before = [each.clone() for each in model.parameters()]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
batch = train.batch_of([group((1.0, (one,)), (0.0, (two,)))])
for wrong in (batch["logprobs"] + 2e-3, batch["logprobs"] * math.nan):
    told = ends(train.update, model, optimizer, batch | {"logprobs": wrong}, asked, 0)
    assert told and "version 0" in told, told
assert all(torch.equal(old, new) for old, new in zip(before, model.parameters()))
old = train.update(model, optimizer, batch | {"logprobs": batch["logprobs"] + 2e-3}, asked, 3)
assert (old["gap_sampled"], old["lag_mean"], old["lag_max"], old["tokens"]) == (None, 3.0, 3, 8), old
assert not all(torch.equal(old, new) for old, new in zip(before, model.parameters()))
""",
    "one wrong token among many is enough": """
asked = argparse.Namespace(clip=0.2, tolerance=1e-3)
batch = train.batch_of([group((1.0, (row(300, 250, 4),)), (0.0, (row(300, 250, 5),)))])
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
assert train.update(model, optimizer, batch, asked, 0)["gap_sampled"] <= 1e-4
batch["logprobs"][1, 200] += 2e-3
told = ends(train.update, model, optimizer, batch, asked, 0)
assert told and "2.0e-03 from ours" in told, told
""",
    "an update is as long as its clipped gradient, and is made of its own alone": """
asked = argparse.Namespace(clip=0.2, tolerance=math.inf)
optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
batch = train.batch_of([group((1.0, (row(20, 5, 1),)), (0.0, (row(12, 3, 2),)))])
def length_of_update(factor):
    before = [each.detach().clone() for each in model.parameters()]
    train.update(model, optimizer, batch | {"advantage": factor * batch["advantage"]}, asked, 0)
    return math.sqrt(sum((new - old).square().sum().item() for old, new in zip(before, model.parameters())))
long, none = length_of_update(1000.0), length_of_update(0.0)
assert math.isclose(long, 0.125, rel_tol=1e-2) and none == 0.0, (long, none)
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
