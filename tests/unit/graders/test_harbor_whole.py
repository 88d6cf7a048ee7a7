"""Tasks that use the rest of Harbor's format, from their directory to their reward: separate verifiers, steps, health checks."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest
from tests.support.grading import GradingBench, open_bench

from evener.graders.harbor import rewards_of_steps
from evener.graders.port import GraderError
from evener.graders.validation import Validator
from evener.sandboxes.bubblewrap import open_bubblewrap, works
from evener.sandboxes.config import BubblewrapConfig
from evener.sandboxes.local import open_local
from evener.sandboxes.port import Sandboxes
from evener.tasks.tables import RewardStrategy

SEPARATE = """\
artifacts = ["result", { source = "/data/kept", exclude = ["*.tmp", "cache"] }]
[verifier]
environment_mode = "separate"
[[verifier.collect]]
command = "cp answer.txt result/answer.txt"
"""
STEPS = """\
[[steps]]
name = "first"
min_reward = 0.5
[[steps]]
name = "second"
healthcheck = { command = "[ -e staged.txt ]", retries = 1 }
"""
STEP_FILES = {
    "task.toml": STEPS,
    "steps/first/instruction.md": "Write one.",
    "steps/first/tests/test.sh": '#!/bin/sh\n[ "$(cat one.txt)" = 1 ] && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n',
    "steps/first/solution/solve.sh": "#!/bin/sh\necho 1 > one.txt\n",
    "steps/second/instruction.md": "Write two.",
    "steps/second/workdir/setup.sh": "[ -e one.txt ] && touch staged.txt\n",
    "steps/second/tests/test.sh": '#!/bin/sh\n[ "$(cat one.txt two.txt)" = "$(printf "1\\n2")" ] && r=1 || r=0\n'
    "echo $r > /logs/verifier/reward.txt\n",
    "steps/second/solution/solve.sh": "#!/bin/sh\n[ -e staged.txt ] && echo 2 > two.txt\n",
}


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[GradingBench]:
    async with open_bench(tmp_path) as opened:
        yield opened


@pytest.fixture(params=["local", "bubblewrap"])
async def sandboxes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Sandboxes]:
    if request.param == "local":
        async with open_local(tmp_path / "sandboxes") as opened:
            yield opened
    else:
        assert await asyncio.to_thread(works)
        async with open_bubblewrap(tmp_path / "sandboxes", BubblewrapConfig()) as isolated:
            yield isolated


def written(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


async def test_separate_verifier_sees_artifacts_and_nothing_else_of_the_agent(bench: GradingBench) -> None:
    """Neither a file in its way nor what is excluded; hooks run before the artifacts are taken."""
    look = "find . ../data -type f 2>/dev/null | sort; cat result/answer.txt; echo 1 > /logs/verifier/reward.txt\n"
    files = {"instruction.md": "?", "task.toml": SEPARATE, "environment/given.txt": "given", "tests/test.sh": f"#!/bin/sh\n{look}"}
    changed = {
        "app/answer.txt": "42",
        "app/result/log.txt": "x",
        "app/sitecustomize.py": "raise SystemExit",
        "data/kept/a.txt": "a",
        "data/kept/a.tmp": "t",
        "data/kept/cache/b": "b",
        "data/other": "o",
    }
    grade = await bench.grade("harbor", files=files, changed=changed)

    assert grade.reward == 1.0
    assert bench.evidence["test-stdout.txt"].decode().splitlines() == [
        "../data/kept/a.txt",
        "./given.txt",
        "./result/answer.txt",
        "./result/log.txt",
        "42",
    ]


async def test_collect_hook_that_fails_gives_no_reward(bench: GradingBench) -> None:
    """The artifacts would not be what the task means."""
    files = {"instruction.md": "?", "task.toml": SEPARATE, "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n"}
    with pytest.raises(GraderError, match=r"collect hook 'cp answer\.txt result/answer\.txt' exited with 1"):
        await bench.grade("harbor", files=files)


async def test_tests_wait_for_their_health_check(bench: GradingBench) -> None:
    manifest = '[environment.healthcheck]\ncommand = "echo tried; false"\ninterval_sec = 0.01\nretries = 2\n'
    files = {"instruction.md": "?", "task.toml": manifest, "tests/test.sh": "echo 1 > /logs/verifier/reward.txt\n"}
    with pytest.raises(GraderError, match="health check 'echo tried; false' failed 2 times: exit code 1; tried"):
        await bench.grade("harbor", files=files)


async def test_separate_verifier_and_steps_are_valid_tasks_in_every_sandbox(tmp_path: Path, sandboxes: Sandboxes) -> None:
    """The oracle scores 1 and nothing done does not, through all steps and hand-overs."""
    written(tmp_path / "steps", STEP_FILES)
    check = '#!/bin/sh\n[ "$(cat result/answer.txt)" = 42 ] && [ ! -e answer.txt ] && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n'
    collect = SEPARATE.replace("cp answer.txt result/answer.txt", "mkdir -p result; cp answer.txt result/ || true")
    separate = {
        "instruction.md": "?",
        "task.toml": collect,
        "tests/test.sh": check,
        "solution/solve.sh": "#!/bin/sh\necho 42 > answer.txt\n",
    }
    written(tmp_path / "separate", separate)
    validator = Validator({"x": sandboxes})
    for number, name in enumerate(("separate", "steps")):
        verdict = await validator.validate(tmp_path / name, "x", number)
        assert (verdict.faults, [trial.reward for trial in verdict.oracle]) == ((), [1.0, 1.0]), verdict.detail


async def test_step_counts_only_if_the_one_before_has_its_least_reward(bench: GradingBench) -> None:
    """The first step is wrong; what the agent did in the second is not looked at."""
    grade = await bench.grade("harbor", files=STEP_FILES, steps={"first": {"app/one.txt": "0\n"}, "second": {"app/two.txt": "2\n"}})

    assert (grade.reward, grade.rewards) == (0.0, {"first.reward": 0.0, "reward": 0.0})


async def test_steps_that_were_reached_are_graded_with_what_was_there_after_each(bench: GradingBench) -> None:
    both = {"first": {"app/one.txt": "1\n"}, "second": {"app/one.txt": "1\n", "app/two.txt": "3\n"}}
    grade = await bench.grade("harbor", files=STEP_FILES, steps=both)
    first = await bench.grade("harbor", files=STEP_FILES, steps={"first": both["first"]})

    assert (grade.reward, grade.rewards) == (0.5, {"first.reward": 1.0, "second.reward": 0.0, "reward": 0.5})
    assert first.reward == 1.0
    assert {"steps/first/grading.json", "steps/second/grading.json"} <= bench.evidence.keys()


def test_rewards_of_steps_are_averaged_by_name_or_the_last_ones() -> None:
    """A name that a step lacks counts as 0 there."""
    steps = ({"a": 1.0, "b": 1.0}, {"a": 0.0})

    assert rewards_of_steps(steps, RewardStrategy.MEAN) == {"a": 0.5, "b": 0.5}
    assert rewards_of_steps(steps, RewardStrategy.FINAL) == {"a": 0.0}
