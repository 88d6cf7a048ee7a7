"""`evener eval` and `evener regrade` at a running Evener with a scripted engine."""

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from tests.support.commands import asked
from tests.support.engines import smollm
from tests.support.together import together

from evener.client.client import Client
from evener.engines.scripted import Rule, Script, scripted_engine
from evener.proto.spec import Purpose
from evener.proto.topics import Topic
from evener.service.state_folder import TOKEN_FILE


def task(folder: Path, name: str, expected: str) -> Path:
    path = folder / name
    path.mkdir(parents=True)
    (path / "instruction.md").write_text("How many?")
    (path / "task.toml").write_text(f'[metadata.evener]\nexpected = "{expected}"\nmatch = "number"\n')
    return path


def lines(out: str) -> list[Any]:
    return [json.loads(line) for line in out.splitlines()]


async def test_evaluation_is_told_resumed_and_never_trained(tmp_path: Path) -> None:
    """Then one task turns out to be wrong, and its sessions are graded again with a corrected one."""
    sums = tmp_path / "sums"
    task(sums, "right", "7")
    task(sums, "wrong", "8")
    async with (
        scripted_engine(Script(default=Rule(say="It is 7.")), smollm()) as engine,
        together(tmp_path / "state", engine) as context,
        Client(context.address, token := (tmp_path / "state" / TOKEN_FILE).read_text().strip()) as client,
    ):
        words = ("eval", str(sums), "--harness", "script", "--samples", "2", "--run-id", "e", "--sampling.max-tokens", "32")
        code, out, errors = await asked(context.address, token, *words, "--out", str(tmp_path / "out"))
        assert code == 0, errors
        *_, report = lines(out)
        again = await asked(context.address, token, *words)

        (result,) = report["results"]
        assert (result["harness"], result["task_set"], result["tasks"], result["graded"]) == ("script", "sums", 2, 4)
        assert {k: found["value"] for k, found in result["pass_at"].items()} == {"1": 0.5, "2": 0.5}
        assert lines(again[1])[-1] == report
        assert json.loads((tmp_path / "out/evaluation.json").read_text()) == report
        assert ET.fromstring((tmp_path / "out/evaluation.svg").read_text()).tag.endswith("svg")  # noqa: S314 - our own

        bus = context.bus
        counted = {topic: sum([await bus.end(topic, number) for number in range(bus.partitions_of(topic))]) for topic in Topic}
        assert (counted[Topic.MERGED], counted[Topic.KEPT]) == (0, 2)
        assert [group.purpose async for group in client.groups(purpose=Purpose.TRAIN)] == []

        corrected = task(tmp_path / "corrected", "wrong", "7")
        sessions = ("e.script.sums.wrong.0", "e.script.sums.wrong.1")
        code, out, errors = await asked(context.address, token, "regrade", *sessions, "--task", str(corrected))
        assert (code, errors) == (0, "")
        found = sorted((one["session_id"], one["before"], one["reward"]) for one in lines(out))
        assert found == [("e.script.sums.wrong.0", 0.0, 1.0), ("e.script.sums.wrong.1", 0.0, 1.0)]
        (tmp_path / "corrected.jsonl").write_text('{"session_id":"e.script.sums.wrong.0","before":0,"reward":null,"grader":"x"}\n' + out)
        exporting = ("groups", "export", "--run-id", "e.script.sums", "--purpose", "eval", "--rewards", str(tmp_path / "corrected.jsonl"))
        code, _, errors = await asked(context.address, token, *exporting, "--out", str(tmp_path / "rows.jsonl"))
        assert code == 0, errors
        exported = {(one["rollout_id"], one["reward"], one["regrade"]) for one in lines((tmp_path / "rows.jsonl").read_text())}
        assert {("e.script.sums.wrong.0", 1.0, "corrected"), ("e.script.sums.wrong.1", 1.0, "corrected")} <= exported
        assert {regrade for session, _, regrade in exported if ".wrong." not in session} == {""}
        code, out, _ = await asked(context.address, token, "regrade", "--run-id", "e.script.sums", "--grader", "none")
        (tmp_path / "none.jsonl").write_text(out)
        without = (*exporting[:-1], str(tmp_path / "none.jsonl"))
        assert (await asked(context.address, token, *without, "--out", str(tmp_path / "rows.jsonl")))[0] == 0
        assert (tmp_path / "rows.jsonl").read_text() == ""
        assert (code, {one["ungraded"] for one in lines(out)}) == (1, {"no grader"})
        score = (await client.score("e.script.sums.wrong.0")).score
        assert score is not None
        assert score.reward == 0.0
        assert "inputs.json" in {artifact.name for artifact in score.evidence}


@pytest.mark.parametrize("words", [("--k", "3"), ("--k", "0"), ("--run-id", "x" * 60)])
async def test_wrong_usage_is_told_before_anything_starts(tmp_path: Path, words: tuple[str, ...]) -> None:
    sums = tmp_path / "sums"
    task(sums, "one", "7")
    code, _, errors = await asked("http://127.0.0.1:9", "t", "eval", str(sums), "--harness", "script", "--samples", "2", *words)

    assert code == 2 or "--help" in errors
    assert "Traceback" not in errors
