"""`evener harness`: the list, and what a check finds wrong."""

import os
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from tests.support.commands import Ended, run

from evener.cli.harness_bundles import entries
from evener.cli.harness_check import CHECK_INSTRUCTION, script
from evener.cli.harness_figures import Figures
from evener.harnesses.port import Probe, bundle_of
from evener.harnesses.registry import harness
from evener.proto.reasons import ExclusionReason, TerminationReason
from evener.proto.spec import Streaming

GOOD = Figures(
    harness="codex",
    version="1",
    options={},
    streaming=Streaming.BUFFERED,
    exit_code=0,
    termination_reason=TerminationReason.FINISHED,
    detail="",
    calls=5,
    roots={"first": 1},
    rows=1,
    sampled=100,
    delivered=90,
    excluded={ExclusionReason.SIDE_CALL: 10},
    fed=1.0,
    side_calls=1,
    failed_calls=0,
    retries=0,
    written=True,
    seconds=1.0,
)


@pytest.mark.parametrize(
    ("found", "trouble"),
    [
        ({}, None),
        ({"exit_code": 144, "detail": "no more calls"}, "it ended as finished with exit code 144: no more calls"),
        (
            {"exit_code": None, "termination_reason": TerminationReason.INFRASTRUCTURE},
            "it ended as infrastructure with exit code None: no detail",
        ),
        ({"rows": 0, "fed": 0.0}, "it left no rows"),
        ({"excluded": {ExclusionReason.ORPHAN: 10}}, "10 of 100 sampled tokens are in no row: 10 orphan"),
        ({"fed": 0.75}, "25% of the rows were not fed to the engine as they are"),
        ({"written": False}, "it did not write all files"),
    ],
)
def test_what_is_wrong_is_reported_in_a_line(found: dict[str, Any], trouble: str | None) -> None:
    """Tokens of side calls need no row."""
    assert structs.replace(GOOD, **found).trouble == trouble


def test_a_harness_is_installed_once_its_bundle_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes with Evener always is."""
    monkeypatch.setenv("EVENER_SANDBOX_RUNNER_HARNESS_CACHE", str(tmp_path))
    before = {entry.name: entry.installed for entry in entries()}
    bundle_of(harness("codex"), tmp_path).mkdir()
    after = {entry.name: entry.installed for entry in entries()}

    assert (before["script"], before["codex"]) == (True, False)
    assert after == before | {"codex": True}


def harness_command(folder: Path, *words: str) -> Ended:
    """Run `evener harness` where nothing is installed, npm fails, and Python 3.12 is missing."""
    for name, said in {"npm": "echo no network; exit 1", "node": "echo v99.0.0", "python3.12": "exit 1"}.items():
        (folder / name).write_text(f"#!/bin/sh\n{said}\n")
        (folder / name).chmod(0o755)
    folders = dict.fromkeys(("EVENER_SANDBOX_RUNNER_HARNESS_CACHE", "PYENV_ROOT", "UV_PYTHON_INSTALL_DIR"), str(folder / "empty"))
    environ = os.environ | folders | {"PATH": f"{folder}:/bin"}
    return run("harness", *words, environment=environ)


def test_installing_tells_what_it_does_and_continues_after_a_failure(tmp_path: Path) -> None:
    """One line on stderr for each that failed, and exit code 1."""
    ended = harness_command(tmp_path, "install", "codex", "gemini_cli", "script")

    assert ended.code == 1
    assert [line.split(": ")[:3] for line in ended.errors.splitlines()] == [
        ["evener", f"harness {name} cannot be installed", f"npm could not install {harness(name).package}".replace("npm:", "")]
        for name in ("codex", "gemini_cli")
    ]
    assert ended.out.splitlines() == [
        *(f"{name} {harness(name).version}: installing {harness(name).package}" for name in ("codex", "gemini_cli")),
        "script comes with Evener",
    ]


def test_all_harnesses_are_installed_by_one_word(tmp_path: Path) -> None:
    """All that do not come with Evener."""
    ended = harness_command(tmp_path, "install", "--all")

    assert ended.code == 1
    assert [line.split()[2] for line in ended.errors.splitlines()] == [entry.name for entry in entries() if entry.package]


def test_a_check_tells_of_an_installation_where_no_json_is_read(tmp_path: Path) -> None:
    """Its stdout is for figures."""
    ended = harness_command(tmp_path, "check", "codex", "--trust-local", "--json")

    assert (ended.code, ended.out) == (1, "")
    assert f"codex {harness('codex').version}: installing npm:@openai/codex@" in ended.errors


def test_the_script_speaks_to_the_harness_it_checks() -> None:
    """Calls of its own tool, two at once among them; other conversations get something else."""
    (rule,) = script(Probe(tool="exec", arguments={"cmd": "{command}"})).rules

    assert rule.match == CHECK_INSTRUCTION
    assert [len(step.tool_calls) for step in rule.steps] == [1, 1, 2, 1, 0]
    assert {call.name for step in rule.steps for call in step.tool_calls} == {"exec"}
