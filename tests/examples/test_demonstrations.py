"""What the small policy learns first, and its tasks."""

import json
import subprocess
from collections import Counter
from itertools import islice
from pathlib import Path

import pytest
from demonstrations import NOISE, Recorded, demonstrations
from tasks import NAMES, TOLD, make_task, payloads
from vocabulary import END_OF_TURN, SPECIAL, largest_that_copies, save, spelled_alike, train

from evener.graders.registry import GRADERS
from evener.tasks.directory import load
from evener.tasks.pack import pack
from evener.templates.config import PolicyConfig
from evener.templates.open import open_renderer

CALL = '<tool_call>\n{"name": "write", "arguments": {"path": "{file}", "content": "{written}"}}\n</tool_call><|im_end|>'
ASKED = "<|im_start|>user\nWrite {payload} into out.txt<|im_end|>\n<|im_start|>assistant\n"
TOLD_BACK = "\n<|im_start|>user\n<tool_response>\nwrote {length} to {file}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
RECORDED = [
    Recorded(
        harness="pi",
        kind="write",
        fed=(f"<|im_start|>system\n{{bundle}}/docs\n{{cwd}}<|im_end|>\n{ASKED}", TOLD_BACK),
        answers=(CALL, "Done.<|im_end|>"),
        cwd="/state/app",
        bundle="/harnesses/pi",
    )
]


def test_right_demonstrations_write_what_is_asked_and_spoilt_ones_mostly_something_else() -> None:
    """In the shares that are declared; all places are filled."""
    trained, _ = payloads()
    right = list(islice(demonstrations(RECORDED, trained, 1, noisy=False), 200))
    spoilt = list(islice(demonstrations(RECORDED, trained, 1, noisy=True), 2000))

    def is_right(text: str) -> bool:
        asked = text.partition("Write ")[2].partition(" into")[0]
        return f'"out.txt", "content": "{asked}"' in text and f"wrote {len(asked)} to out.txt" in text

    assert all(is_right(one.text) for one in right)
    assert sum(is_right(one.text) for one in spoilt) / len(spoilt) == pytest.approx(1 - sum(NOISE.values()), abs=0.04)
    for one in (*right, *spoilt):
        assert not any(place in one.text for place in ("{file}", "{written}", "{payload}", "{length}", "{cwd}", "{bundle}"))
        assert all(answered.endswith("<|im_end|>") for _, answered in one.turns)


def test_the_place_of_the_installation_is_drawn_again_in_most() -> None:
    """A policy that has seen one path alone fails at another."""
    trained, _ = payloads()
    places = Counter(one.text.splitlines()[2] for one in islice(demonstrations(RECORDED, trained, 1, noisy=False), 300))

    assert 0.25 < places["/state/app<|im_end|>"] / 300 < 0.45
    assert len(places) > 150


def test_what_is_held_out_is_never_demonstrated_or_sampled_for_training() -> None:
    trained, held_out = payloads()

    assert not set(trained) & set(held_out)
    assert {payload.name for payload in trained} == set(NAMES)
    assert payloads() == (trained, held_out)


def test_the_vocabulary_spells_a_payload_alike_wherever_it_stands(tmp_path: Path) -> None:
    """And a renderer takes it: no text of a harness can spell a special token."""
    trained, _ = payloads()
    texts = [one.text for one in islice(demonstrations(RECORDED, trained, 2, noisy=True), 300)]
    contexts = [TOLD["write"], "{payload}\n", CALL.replace("{written}", "{payload}").replace("{file}", "out.txt")]
    vocabulary = largest_that_copies(texts, contexts, [f"{name} 42" for name in NAMES])
    save(vocabulary, tmp_path)

    assert all(spelled_alike(vocabulary, contexts, f"{name} 42") for name in NAMES)
    assert vocabulary.token_to_id(SPECIAL[END_OF_TURN]) == END_OF_TURN
    assert open_renderer(PolicyConfig(name="policy", source=f"hf:{tmp_path}"))


def test_a_vocabulary_that_swallows_what_stands_around_a_payload_is_seen() -> None:
    """The fault that makes copying impossible, and no error."""
    texts = ["Write Ada 42 into out.txt"] * 50 + ["say Ada 42"] * 50
    assert not spelled_alike(train(texts, 2000), [TOLD["write"], "say {payload}"], "Ada 42")


@pytest.mark.parametrize(("found", "reward"), [("{payload}\n", 1.0), ("{payload}", 1.0), ("something else", 0.1), (None, 0.0)])
@pytest.mark.parametrize("kind", ["write", "copy"])
def test_tasks_are_graded_by_their_tests(tmp_path: Path, kind: str, found: str | None, reward: float) -> None:
    """By the script, as Harbor runs it; nothing of the directory's name tells what is asked."""
    payload = payloads()[1][0]
    task = load(make_task(tmp_path, "t-1", kind, payload))
    assert task.verification.has_script
    work = tmp_path / "work"
    work.mkdir()
    if found is not None:
        (work / "out.txt").write_text(found.format(payload=payload))
    script = (task.verification.tests[0] / "test.sh").read_text().replace("/logs/verifier", str(tmp_path / "logs"))
    subprocess.run(("sh", "-c", script), cwd=work, check=True)

    assert float((tmp_path / "logs" / "reward.txt").read_text()) == reward
    assert task.grader.name in GRADERS
    assert pack(task.path).ref.name == "learn/t-1"
    assert json.dumps(str(payload)) not in str(task.path)
