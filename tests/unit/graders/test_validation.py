"""Validation finds planted faults, and none in sound tasks. Real graders in real sandboxes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from tests.support.planted_tasks import EXPECTED, plant

from evener.graders.validation import Fault, Trial, Validator, Verdict, faults_of
from evener.sandboxes.bubblewrap import open_bubblewrap
from evener.sandboxes.config import BubblewrapConfig, DockerConfig
from evener.sandboxes.docker import open_docker_sandboxes
from evener.sandboxes.local import open_local
from evener.tasks.directory import bundled, find


@pytest.fixture
async def validator(tmp_path: Path) -> AsyncIterator[Validator]:
    async with open_local(tmp_path / "sandboxes") as sandboxes:
        yield Validator({"local": sandboxes})


async def verdicts(validator: Validator, folder: Path) -> dict[str, Verdict]:
    """Validate all tasks of a folder at once."""
    paths = await asyncio.to_thread(find, folder)
    found = await asyncio.gather(*(validator.validate(path, "local", number) for number, path in enumerate(paths)))
    return {Path(verdict.path).name: verdict for verdict in found}


async def test_every_planted_fault_is_found_and_no_other(tmp_path: Path, validator: Validator) -> None:
    """Wrong oracles, flaky tests, tests that pass without work, tests that give no reward."""
    found = await verdicts(validator, plant(tmp_path / "tasks"))

    assert {name: frozenset(verdict.faults) for name, verdict in found.items()} == EXPECTED
    assert found["oracle-crashes"].detail.startswith("the oracle scored 0: solution/solve.sh exited with 127; its last lines:")
    assert "wrote neither" in found["no-reward"].detail
    assert found["leaks-its-tests"].detail == "in the sandbox, /app has the changes of tests/checks.patch already"
    assert found["leaks-its-tests"].leaks == ("/app has the changes of tests/checks.patch already",)
    assert found["passes-on-no-op"].detail == "an agent that does nothing scored 1: it printed nothing"


async def test_tasks_of_the_demo_are_sound(validator: Validator) -> None:
    """Those with an oracle score 1, and nobody scores without work."""
    found = await verdicts(validator, bundled())

    assert {name: verdict.faults for name, verdict in found.items()} == dict.fromkeys(found, ())
    assert [trial.reward for trial in found["capital-of-france"].oracle] == [1.0, 1.0]


async def test_each_stand_in_is_tried_as_often_as_asked_from_the_beginning(tmp_path: Path) -> None:
    """No trial sees the files of an earlier one."""
    folder = plant(tmp_path / "tasks")
    (folder / "sound-script/solution/solve.sh").write_text("[ -e answer.txt ] || echo 42 > answer.txt\n")
    async with open_local(tmp_path / "sandboxes") as sandboxes:
        verdict = await Validator({"local": sandboxes}, times=3).validate(folder / "sound-script", "local")

    assert [[trial.reward for trial in trials] for trials in (verdict.oracle, verdict.no_op)] == [[1.0] * 3, [0.0] * 3]


async def test_sandbox_that_is_not_here_is_a_fault(validator: Validator) -> None:
    """A task that nobody could try is not sound."""
    verdict = await validator.validate(find(bundled())[0], "docker")

    assert (verdict.faults, verdict.detail) == ((Fault.UNREADABLE,), "this machine has no `docker` sandboxes")


@pytest.mark.parametrize(
    ("oracle", "no_op", "faults"),
    [
        ((1.0, 1.0), (0.0, 0.0), ()),
        ((), (0.5, 0.5), ()),
        ((1.0, 1.0), (1.0, 1.0), (Fault.PASSES_WITHOUT_WORK,)),
        ((0.9, 0.9), (0.0, 0.0), (Fault.ORACLE_FAILS,)),
        ((1.0, None), (0.0, 0.0), (Fault.FLAKY, Fault.NO_REWARD)),
        ((1.0, 1.0), (0.0, 0.1), (Fault.FLAKY,)),
        ((2.0, 2.0), (0.0, 0.0), (Fault.ORACLE_FAILS,)),
    ],
)
def test_faults_of_trials(oracle: tuple[float | None, ...], no_op: tuple[float | None, ...], faults: tuple[Fault, ...]) -> None:
    """A reward above 1 is wrong too: groups are compared with each other."""
    assert faults_of(tuple(Trial(reward=x) for x in oracle), tuple(Trial(reward=x) for x in no_op)) == faults


RUNS: Final = """said=$(%s sh ./answer.sh)
if [ "$said" = 42 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
"""
DROPPED: Final = "python3 -c 'import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534); os.execvp(sys.argv[1], sys.argv[1:])'"
"""Becomes somebody else, as `setpriv` does, which the image of the tests lacks."""


def running_task(folder: Path, *, drops: bool) -> Path:
    """Write a task whose tests run the program that its oracle leaves."""
    files = {
        "instruction.md": "Write answer.sh, which says 42.",
        "task.toml": "[metadata.evener]\ntests_drop_rights = true\n" if drops else "",
        "tests/test.sh": RUNS % (DROPPED if drops else ""),
        "solution/solve.sh": "printf '#!/bin/sh\\necho 42\\n' > answer.sh\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


async def test_task_whose_tests_run_the_agents_program_as_themselves_is_told_as_forgeable(tmp_path: Path) -> None:
    """Its oracle is right and it is no fault: most tasks are like that."""
    async with open_bubblewrap(tmp_path / "sandboxes", BubblewrapConfig()) as sandboxes:
        verdict = await Validator({"bubblewrap": sandboxes}, times=1).validate(running_task(tmp_path / "task", drops=False), "bubblewrap")

    assert (verdict.faults, verdict.forgeable) == ((), True), verdict.detail


@pytest.mark.docker
async def test_task_whose_tests_drop_their_rights_is_not_forgeable(tmp_path: Path, docker_host: str) -> None:
    config = DockerConfig(host=docker_host, image="evener-base")
    async with open_docker_sandboxes(tmp_path / "sandboxes", config) as sandboxes:
        verdict = await Validator({"docker": sandboxes}, times=1).validate(running_task(tmp_path / "task", drops=True), "docker")

    assert (verdict.faults, verdict.forgeable) == ((), False), verdict.detail
