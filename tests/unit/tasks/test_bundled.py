"""What the demo's tasks are worth, graded as the evaluator grades them: in a fresh local sandbox."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from evener.sandboxes.grading import Grading, GradingOutcome, grade
from evener.sandboxes.local import open_local
from evener.sandboxes.port import WORKDIR, Changes
from evener.tasks.directory import bundled, load


async def graded(folder: Path, name: str, answer: str | None) -> GradingOutcome:
    """Grade a bundled task with this in answer.txt. None: nothing was changed."""
    task = load(bundled() / name)
    assert task.verification.has_script
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        if answer is not None:
            info = tarfile.TarInfo(f"{WORKDIR.lstrip('/')}/answer.txt")
            info.size = len(answer.encode())
            tar.addfile(info, io.BytesIO(answer.encode()))
    changes = Changes(archive=buffer.getvalue())
    async with open_local(folder) as sandboxes:
        return await grade(sandboxes, Grading(name="g", files=task.environment, tests=task.verification.tests, changes=changes))


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        (None, 0.0),
        ("", 0.0),
        ("one two three four five six seven eight nine ten", 1.0),
        ("The sea is deep and blue.\n", 0.6),
        ("word " * 13, 0.7),
        ("word " * 40, 0.0),
    ],
)
async def test_ten_words_is_graded_by_its_distance(tmp_path: Path, answer: str | None, reward: float) -> None:
    result = await graded(tmp_path, "ten-words", answer)

    assert result.reward_text is not None
    assert float(result.reward_text) == pytest.approx(reward)


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        (None, 0.0),
        ("I recieve teh mail evry day.", 0.0),
        ("I receive the mail every day.", 1.0),
        ("Corrected: I recieve THE mail every day!\n", 2 / 3),
        ("Teh is wrong: I receive the mail every day.", 2 / 3),
        ("It's a lovely day.", 0.0),
    ],
)
async def test_letter_is_graded_by_its_three_words(tmp_path: Path, answer: str | None, reward: float) -> None:
    """The file as it was found is worth nothing: only what the agent changed counts."""
    result = await graded(tmp_path, "fix-the-letter", answer)

    assert result.reward_json is not None
    rewards = json.loads(result.reward_json)
    assert rewards["reward"] == pytest.approx(reward, abs=0.001)
    assert rewards["reward"] == pytest.approx((rewards["receive"] + rewards["the"] + rewards["every"]) / 3, abs=0.001)
