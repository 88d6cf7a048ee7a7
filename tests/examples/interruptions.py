"""The example's trainer, killed between any two things that it does, and refused now and then, beside one that nothing befell.

    python tests/examples/interruptions.py RUNS

Prints a line of JSON for each run. Needs torch, and examples/grpo_minimal in the path. The log and the bridge are as the client shows them.
"""

import argparse
import contextlib
import importlib
import io
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from evener.client.errors import RequestRefused
from evener.client.groups import Group, RowArrays, Session
from evener.proto.spec import Sampling

train = importlib.import_module("train")  # an example: mypy does not know where it is

STEPS, GROUPS_IN_STEP, GROUPS, PARTITIONS, VOCABULARY = 6, 2, 40, 3, 64
KILL_LINE, KILL_BRIDGE, REFUSE, TAKE_UP, OTHERS = 0.02, 0.1, 0.3, 0.5, 0.3
"""How probable: death before a line that is struck, and at a moment of publishing; a roll-back; that a bridge takes up what is
staged before the trainer starts again; that somebody else publishes a higher number meanwhile."""
STRUCK = {"begin", "train", "save", "publish"}
"""Functions of the trainer that leave something behind; the others compute."""
SAMPLED: Any = SimpleNamespace(sampling=Sampling())
"""What a trainer reads of a row's event."""


class Killed(BaseException):
    """Nothing in a trainer catches it."""


class Fate:
    """What befalls a trainer. Without a seed: nothing."""

    def __init__(self, seed: int | None) -> None:
        self._drawn = random.Random(seed)  # noqa: S311 - not for secrets
        self._quiet = seed is None
        self.kills = 0

    def has(self, probability: float) -> bool:
        """Return whether something happens."""
        return not self._quiet and self._drawn.random() < probability

    def strike(self, probability: float) -> None:
        """Kill, perhaps."""
        if self.has(probability):
            self.kills += 1
            raise Killed

    @contextlib.contextmanager
    def over_lines(self) -> Iterator[None]:
        """Strike before the lines of the functions named in STRUCK."""

        def trace(frame: FrameType, event: str, _: Any) -> Any:
            if frame.f_code.co_filename != train.__file__ or frame.f_code.co_name not in STRUCK:
                return None
            if event == "line":
                self.strike(KILL_LINE)
            return trace

        sys.settrace(trace)
        try:
            yield
        finally:
            sys.settrace(None)


class Stream:
    """Groups from a position on. The lowest partition that has more comes first, so that the order is always the same."""

    def __init__(self, log: list[Group], start: Mapping[str, int] | None) -> None:
        self.position = dict(start or {})
        self._log = log

    def __iter__(self) -> Iterator[Group]:
        return self

    def __next__(self) -> Group:
        ready = [group for group in self._log if group.offset == self.position.get(str(group.partition), 0)]
        group = min(ready, key=lambda group: group.partition)
        self.position[str(group.partition)] = group.offset + 1
        return group


class Evener:
    """What a trainer sees: a log, and a policy with versions, each of which names its weights for ever."""

    def __init__(self, log: list[Group], fate: Fate) -> None:
        self.states: dict[int, str] = {}
        self.weights: dict[int, bytes] = {}
        self.refused = 0
        self.client = SimpleNamespace(policies=self._policies)
        self._log = log
        self._fate = fate

    def wait(self, answer: Any) -> Any:
        return answer

    def groups(self, *, start: Mapping[str, int] | None, run_id: str | None, policy: str, follow: bool | None) -> Stream:
        assert (run_id, policy, follow) == (None, "policy", None)
        return Stream(self._log, start)

    def publish(self, policy: str, version: int, path: str, *, canary: Any) -> Any:
        """Stage, load, publish. Refuses as `evener.trainer_bridge.policies` does."""
        assert policy == "policy"
        assert len(canary.prompts) == train.CANARY_ROWS
        weights = (Path(path) / "model.safetensors").read_bytes()
        self._fate.strike(KILL_BRIDGE)
        state = self.states.get(version)
        passed = state is None and version < max(self.states, default=0)
        if passed or state == "retired" or self.weights.get(version, weights) != weights:
            self._refuse("version")
        if state != "published":
            self.states[version], self.weights[version] = "staged", weights
            self._fate.strike(KILL_BRIDGE)
            self._load(version)
        self._fate.strike(KILL_BRIDGE)
        return SimpleNamespace(gap=1e-6)

    def goes_on(self) -> None:
        """Let happen what happens while no trainer runs."""
        for version in [version for version, state in self.states.items() if state == "staged"]:
            if self._fate.has(TAKE_UP):
                with contextlib.suppress(RequestRefused):
                    self._load(version)
        if self._fate.has(OTHERS):
            theirs = max(self.states, default=0) + 2
            self.states[theirs], self.weights[theirs] = "published", b"theirs"

    def _load(self, version: int) -> None:
        if self._fate.has(REFUSE):
            self.states[version] = "retired"
            self._refuse("canary")
        self.states[version] = "published"

    def _refuse(self, field: str) -> NoReturn:
        self.refused += 1
        msg = f"the {field} is wrong"
        raise RequestRefused(msg, status=422, field=field)

    def _policies(self) -> Any:
        versions = [SimpleNamespace(version=version) for version in self.states]
        newest = max((version for version, state in self.states.items() if state == "published"), default=None)
        return [SimpleNamespace(policy="policy", versions=versions, newest=newest)]


def trained(model: Path, out: Path, log: list[Group], fate: Fate) -> tuple[Evener, dict[str, Any]]:
    """Start the trainer again and again until it has made all steps; return what was published, and its end as the folders tell."""
    evener = Evener(log, fate)
    asked = argparse.Namespace(policy="policy", run_id=None, follow=False, model=model, out=out, steps=STEPS, groups=GROUPS_IN_STEP)
    vars(asked).update(learning_rate=5e-3, clip=0.2, tolerance=1e9)
    told = io.StringIO()
    done = False
    while not done:
        with contextlib.suppress(Killed, RequestRefused), contextlib.redirect_stdout(told), fate.over_lines():
            train.train(evener, asked)
            done = True
        evener.goes_on()
    folders = [out / f"step-{number:04d}" for number in range(1, STEPS + 1)]
    steps = [json.loads((folder / "step.json").read_text()) for folder in folders]
    weights = [(folder / "model.safetensors").read_bytes() for folder in folders]
    return evener, {
        "groups": [group["group_id"] for step in steps for group in step["groups"]],
        "weights": weights,
        "published": {step["version"]: data for step, data in zip(steps, weights, strict=True) if step["tokens"]},
        "told": {json.loads(line)["step"] for line in told.getvalue().splitlines()},
    }


def run(folder: Path, model: Path, seed: int) -> dict[str, Any]:
    """Return what befell a trainer, and whether everything came out as if nothing had."""
    log = groups_of(seed)
    _, quiet = trained(model, folder / "quiet", log, Fate(None))
    fate = Fate(seed)
    evener, end = trained(model, folder / "struck", log, fate)
    published = {version: evener.weights[version] for version, state in evener.states.items() if state == "published"}
    return {
        "kills": fate.kills,
        "refused": evener.refused,
        "same groups": end["groups"] == quiet["groups"],
        "same weights": end["weights"] == quiet["weights"],
        "each version is its step": end["published"] == {name: data for name, data in published.items() if data != b"theirs"},
        "each step is told": end["told"] == set(range(1, STEPS + 1)),
    }


def groups_of(seed: int) -> list[Group]:
    """Return a log. In three of ten groups all rewards are alike."""
    drawn = np.random.default_rng(seed)
    found: list[Group] = []
    for number in range(GROUPS):
        rewards = (0.1, 0.1, 0.1) if drawn.random() < 0.3 else (1.0, 0.0, float(drawn.random() < 0.5))
        sessions = tuple(
            Session(session_id=f"g{number}.{index}", reward=reward, rewards={}, rows=(_row(drawn),)) for index, reward in enumerate(rewards)
        )
        partition = int(drawn.integers(PARTITIONS))
        offset = sum(group.partition == partition for group in found)
        known: dict[str, Any] = {"task_id": "t", "run_id": "r", "policy": "policy", "event": None}
        found.append(Group(group_id=f"g{number}", sessions=sessions, partition=partition, offset=offset, **known))
    return found


def _row(drawn: np.random.Generator) -> RowArrays:
    length, sampled = int(drawn.integers(6, 14)), int(drawn.integers(1, 5))
    mask = (np.arange(length) >= length - sampled).astype(np.uint8)
    zero = np.where(mask, 0, -1).astype(np.int32)
    logprobs = np.where(mask, -drawn.exponential(3.0, length), np.nan).astype(np.float32)
    ids = drawn.integers(3, VOCABULARY, length).astype(np.int32)
    return RowArrays(ids=ids, loss_mask=mask, logprobs=logprobs, versions=zero, call_of=zero, event=SAMPLED)


def make_model(folder: Path) -> Path:
    """Save a model that is trained in no time."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, tie_word_embeddings=False, **sizes)).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as made:
        model = make_model(Path(made) / "model")
        for seed in range(int(sys.argv[1])):
            print(json.dumps(run(Path(made) / str(seed), model, seed)), flush=True)  # noqa: T201 - for the test
