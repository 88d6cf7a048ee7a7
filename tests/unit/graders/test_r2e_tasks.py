"""A row in the shape of R2E-Gym, from its import to its reward, in images of a real Docker daemon: the tests lie in the image."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest
from tests.support.swe_rows import BUGGY, written

from evener.graders.validation import Validator
from evener.sandboxes.config import DockerConfig
from evener.sandboxes.docker import open_docker_sandboxes
from evener.tasks.directory import Task
from evener.tasks.imports.port import ImportOptions
from evener.tasks.imports.registry import importer_for
from evener.tasks.imports.writing import import_into

IMAGE = "r2e-shaped:1"
FILES = {
    "Dockerfile": "FROM evener-base\nCOPY testbed /testbed\nCOPY r2e_tests /r2e_tests\nWORKDIR /testbed\n",
    "testbed/calc.py": BUGGY,
    "testbed/run_tests.sh": "echo '=== short test summary info ==='\nPYTHONPATH=. python3 r2e_tests/test_1.py\n",
    "r2e_tests/test_1.py": """\
import calc
for name, passed in (("test_add", calc.add(2, 3) == 5), ("test_double", calc.double(2) == 4), ("test_old", False)):
    print("PASSED" if passed else "FAILED", f"r2e_tests/test_1.py::{name}")
""",
}
SOLVE = """\
#!/bin/bash
for seen in /r2e_tests /testbed/run_tests.sh /testbed/r2e_tests; do [ -e "$seen" ] && exit 1; done
sed -i 's/a - b/a + b/' calc.py
echo "print('PASSED r2e_tests/test_1.py::test_add')" > r2e_tests
"""
"""Fixes the bug where no test can be seen, and leaves something in their way."""


def built(folder: Path, docker_host: str) -> None:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run(("docker", "--host", docker_host, "build", "--quiet", "--tag", IMAGE, str(folder)), check=True, capture_output=True)


@pytest.mark.docker
async def test_verifiers_image_alone_has_the_tests(tmp_path: Path, docker_host: str) -> None:
    """The fix is worth 1 and nothing done 0: the repository comes over, the tests do not."""
    await asyncio.to_thread(built, tmp_path / "image", docker_host)
    expected = {"test_add": "PASSED", "test_double": "PASSED", "test_old": "FAILED"}
    row = {
        "repo_name": "calc",
        "commit_hash": "abc",
        "docker_image": IMAGE,
        "problem_statement": "add() subtracts.",
        "expected_output_json": json.dumps(expected),
    }
    source = written(tmp_path / "rows.jsonl", row)
    (task,) = import_into(tmp_path / "out", importer_for("r2e-gym"), str(source), ImportOptions())
    assert isinstance(task, Task)
    (task.path / "solution").mkdir()
    (task.path / "solution/solve.sh").write_text(SOLVE)
    async with open_docker_sandboxes(
        tmp_path / "sandboxes", DockerConfig(host=docker_host, image="evener-base", build_network="none")
    ) as sandboxes:
        verdict = await Validator({"docker": sandboxes}).validate(task.path, "docker")

    assert verdict.faults == (), verdict.detail
    assert [[trial.reward for trial in trials] for trials in (verdict.oracle, verdict.no_op)] == [[1.0, 1.0], [0.0, 0.0]]
