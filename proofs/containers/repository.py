"""A repository task in the shape of SWE-bench: an image with a small history, tests that fail and tests that pass before the fix."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct
from proofs.runner_packages import copy_runner
from scripts.dockerd import IMAGE
from tests.support.swe_rows import FIXED, TESTS, rebench, repository, written

from evener.engines.scripted import ToolCall
from evener.harnesses.registry import harness
from evener.tasks.directory import find
from evener.tasks.imports.port import ImportOptions
from evener.tasks.imports.registry import importer_for
from evener.tasks.imports.writing import import_into

REPOSITORY_IMAGE: Final = "people-calc"
DOCKERFILE: Final = f"""\
FROM {IMAGE}
COPY site /opt/miniconda3/site
COPY activate /opt/miniconda3/bin/activate
COPY people__calc /testbed
RUN git config --system --add safe.directory /testbed && git -C /testbed reset -q --hard BASE
WORKDIR /testbed
"""
ACTIVATE: Final = "export PYTHONPATH=/opt/miniconda3/site\n"
TEST_COMMAND: Final = '{"test_cmd": "python3 -m pytest -rA -p no:cacheprovider", "log_parser": "parse_log_pytest"}'
CHEATED: Final = TESTS.replace("== 4", "> 0") + "\n\ndef test_add():\n    pass\n"


class Policy(Struct, frozen=True, kw_only=True):
    """A policy that writes files and is done."""

    name: str
    files: dict[str, str]
    rewards: dict[str, float]
    """What its work is worth, in all numbers of the grader."""


POLICIES: Final = (
    Policy(
        name="solves",
        files={"plan.txt": "add adds", "calc.py": FIXED},
        rewards={"reward": 1.0, "fail_to_pass": 1.0, "pass_to_pass": 1.0},
    ),
    Policy(
        name="breaks another test",
        files={"plan.txt": "add adds", "calc.py": FIXED.replace("2 * a", "3 * a")},
        rewards={"reward": 0.0, "fail_to_pass": 1.0, "pass_to_pass": 0.0},
    ),
    Policy(
        name="rewrites the tests",
        files={"plan.txt": "no bug", "tests/test_calc.py": CHEATED},
        rewards={"reward": 0.0, "fail_to_pass": 0.0, "pass_to_pass": 1.0},
    ),
)


def repository_task(folder: Path, docker_host: str) -> Path:
    """Build the image, import the row; return the task. Blocks."""
    base = repository(folder)
    (folder / "Dockerfile").write_text(DOCKERFILE.replace("BASE", base))
    (folder / "activate").write_text(ACTIVATE)
    copy_runner(folder / "site")
    build = ["docker", "--host", docker_host, "build", "--quiet", "--network", "none", "--tag", REPOSITORY_IMAGE, str(folder)]
    subprocess.run(build, check=True, stdout=subprocess.DEVNULL, env={"DOCKER_BUILDKIT": "0", "PATH": "/usr/bin:/bin:/usr/sbin"})
    source = written(folder / "rows.jsonl", rebench(folder, base) | {"install_config": TEST_COMMAND})
    options = ImportOptions(image=REPOSITORY_IMAGE)
    list(import_into(folder / "tasks", importer_for("swe-rebench"), str(source), options))
    return find(folder / "tasks")[0]


def calls_of(name: str, files: dict[str, str]) -> Sequence[ToolCall]:
    """Return the tool calls by which a harness writes files."""
    probe = harness(name).probe
    assert probe is not None
    return [ToolCall(name=probe.tool, arguments=probe.filled(path, content)) for path, content in files.items()]
