"""`evener harness`: the list, and what a check finds wrong."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from evener.cli.harness_bundles import entries
from evener.cli.harness_checking import INSTRUCTION, script
from evener.cli.harness_figures import Figures
from evener.harnesses.port import Probe, bundle_of
from evener.harnesses.registry import harness
from evener.proto.ends import End, LeftOut
from evener.proto.spec import Streaming

GOOD = Figures(
    harness="codex",
    version="1",
    options={},
    streaming=Streaming.HOLD,
    exit_code=0,
    end=End.FINISHED,
    detail="",
    calls=5,
    roots={"first": 1},
    rows=1,
    sampled=100,
    delivered=90,
    left_out={LeftOut.SIDE_CALL: 10},
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
        ({"exit_code": None, "end": End.INFRASTRUCTURE}, "it ended as infrastructure with exit code None: no word"),
        ({"rows": 0, "fed": 0.0}, "it left no rows"),
        ({"left_out": {LeftOut.ORPHAN: 10}}, "10 of 100 sampled tokens are in no row: 10 orphan"),
        ({"fed": 0.75}, "25% of the rows were not fed to the engine as they are"),
        ({"written": False}, "it did not write all files"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(found: dict[str, Any], trouble: str | None) -> None:
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


def test_the_script_speaks_to_the_harness_it_checks() -> None:
    """Calls of its own tool, two at once among them; other conversations get something else."""
    (rule,) = script(Probe(tool="exec", arguments={"cmd": "{command}"})).rules

    assert rule.match == INSTRUCTION
    assert [len(step.tool_calls) for step in rule.steps] == [1, 1, 2, 1, 0]
    assert {call.name for step in rule.steps for call in step.tool_calls} == {"exec"}
