"""How the arguments of `evener run` become a submission."""

from pathlib import Path
from typing import Any

import pytest

from evener.cli.errors import Usage
from evener.cli.submission import RunRequest, model_map, plan, read
from evener.proto.errors import ConfigError
from evener.proto.spec import GroupOptions, HarnessSpec, Purpose, Target

TASK = """
[metadata]
name = "one"

[verifier]
"""


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A task directory."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test.sh").write_text("exit 0\n")
    (tmp_path / "task.toml").write_text(TASK)
    (tmp_path / "instruction.md").write_text("Do it.\n")
    return tmp_path


def asked(**given: Any) -> RunRequest:
    fields: dict[str, Any] = {"run_id": "run", "harness": HarnessSpec(name="script"), "samples": 4, "purpose": Purpose.TRAIN}
    return RunRequest(**fields | given)


def test_priority_of_a_run_is_that_of_its_tasks(task: Path) -> None:
    """1 unless the run says otherwise."""
    assert [each.options.priority for given in ({}, {"priority": 3}) for each in plan(task, asked(**given))] == [1, 3]


def test_group_options_and_models_reach_every_task_of_a_run(task: Path) -> None:
    given = {"deliver-early-at": "3", "min-usable": "2", "max-staleness": "1", "drop-zero-variance": "true"}
    options = read(GroupOptions, given, "group")
    models = model_map(["*=policy", "claude-3.5-haiku=frozen:small", "gpt-5=refuse:too dear: ask"], "mine")
    (planned,) = plan(task, asked(group=options, models=models, policy="mine"))

    assert planned.options.group == GroupOptions(deliver_early_at=3, min_usable=2, max_staleness=1, drop_zero_variance=True)
    assert planned.options.models == {
        "*": Target(policy="mine"),
        "claude-3.5-haiku": Target(frozen="small"),
        "gpt-5": Target(refuse="too dear: ask"),
    }


@pytest.mark.parametrize(
    ("group", "changes", "says"),
    [
        (GroupOptions(deliver_early_at=5), {}, "--group.deliver-early-at: 5 sessions are to be usable, and a group has only 4"),
        (
            GroupOptions(deliver_early_at=2, min_usable=3),
            {},
            "--group.min-usable: 3 sessions are to be usable, and a group is",
        ),
        (GroupOptions(drop_zero_variance=True), {"purpose": Purpose.EVAL}, "--group.drop-zero-variance: groups of purpose `eval`"),
        (GroupOptions(drop_zero_variance=True), {"samples": 1}, "--group.drop-zero-variance: a group of one session has no variance"),
    ],
)
def test_group_options_that_contradict_the_run_are_refused_before_anything_is_started(
    task: Path, group: GroupOptions, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(Usage) as refused:
        plan(task, asked(group=group, **changes))

    assert str(refused.value.args[0]).startswith(says)


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("min-usable", "0", "--group.min-usable"),
        ("max-staleness", "-1", "--group.max-staleness"),
        ("drop-zero-variance", "perhaps", "--group.drop-zero-variance"),
        ("drop-zero-variants", "true", "did you mean 'drop_zero_variance'"),
    ],
)
def test_bad_group_option_is_named(key: str, value: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(GroupOptions, {key: value}, "group")


@pytest.mark.parametrize("given", ["gpt-5", "gpt-5=", "=policy", "gpt-5=frozen", "gpt-5=frozen:", "gpt-5=policy:other", "gpt-5=other:x"])
def test_model_map_that_says_nothing_is_refused_with_what_can_be_said(given: str) -> None:
    with pytest.raises(Usage, match="not one of NAME=policy, NAME=frozen:ENGINE and NAME=refuse:REASON"):
        model_map([given], "policy")
