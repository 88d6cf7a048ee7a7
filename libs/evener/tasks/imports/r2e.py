"""Imports rows of R2E-Gym: a repository in an image that also has the tests, and what each of them must print.

The agent works in the image without the tests. A separate verifier has them: it gets the agent's repository, puts the test files of its own
image over it, and runs them.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from evener.tasks.directory import INSTRUCTION, MANIFEST
from evener.tasks.imports.columns import ColumnMissing, plain, text_of, toml
from evener.tasks.imports.port import DataRow, ImportOptions, RefusedRow, TaskDraft
from evener.tasks.imports.read_rows import read_rows
from evener.tasks.test_markers import END, START

REPOSITORY: Final = "/testbed"
HIDDEN: Final = ("run_tests.sh", "r2e_tests")
"""The names of the tests, which lie in the repository, in `/` or in `/root`."""
KEPT: Final = (*HIDDEN, ".venv")
"""What the verifier takes from its own image."""
R2E_SECONDS: Final = 1800.0
AGENT_IMAGE: Final = """\
FROM {image}
RUN rm -rf {hidden}
WORKDIR /testbed
"""
VERIFIER_IMAGE: Final = """\
FROM {image}
RUN mkdir /r2e && for name in {kept}; do for at in /testbed / /root; do \\
    [ -e "/r2e/$name" ] || [ ! -e "$at/$name" ] || cp -a "$at/$name" /r2e/; done; done
COPY . /tests
WORKDIR /testbed
"""
R2E_SCRIPT: Final = """\
#!/bin/bash
cd /testbed || exit 1
for name in {kept}; do rm -rf -- "./$name"; done
cp -a /r2e/. /testbed/ || exit 1
echo '{start}'
bash ./run_tests.sh
echo '{end}'
"""
_states: Final = msgspec.json.Decoder(dict[str, str])


def import_r2e(source: str, options: ImportOptions) -> Iterator[TaskDraft | RefusedRow]:
    """Yield a task for each row. Raises SourceUnreadable."""
    for number, row in enumerate(read_rows(source, options.split)):
        name = plain("-".join(str(row[key])[:40] for key in ("repo_name", "commit_hash") if key in row)) or f"row-{number:05d}"
        try:
            yield TaskDraft(name=name, files=_files(row))
        except ColumnMissing as cause:
            yield RefusedRow(name=name, reason=str(cause))


def _files(row: DataRow) -> dict[str, bytes]:
    image = text_of(row, "docker_image")
    if not image.strip() or any(mark.isspace() for mark in image):
        msg = f"its docker_image is {image!r}"
        raise ColumnMissing(msg)
    hidden = " ".join(f"{at}/{name}" for at in ("", REPOSITORY, "/root") for name in HIDDEN)
    kept = " ".join(KEPT)
    tables: dict[str, dict[str, Any]] = {
        "verifier": {"timeout_sec": R2E_SECONDS, "environment_mode": "separate"},
        "environment": {"workdir": REPOSITORY},
        "metadata.evener": {"grader": "test_log", "expected": "expected.json"},
    }
    artifacts = f'artifacts = ["{REPOSITORY}"]\n'.encode()
    return {
        INSTRUCTION: text_of(row, "problem_statement").encode(errors="replace"),
        MANIFEST: artifacts + toml(tables),
        "environment/Dockerfile": AGENT_IMAGE.format(image=image, hidden=hidden).encode(),
        "tests/Dockerfile": VERIFIER_IMAGE.format(image=image, kept=kept).encode(),
        "tests/test.sh": R2E_SCRIPT.format(kept=kept, start=START, end=END).encode(),
        "tests/expected.json": msgspec.json.encode({"parser": "r2e", "exactly": _expected(row)}),
    }


def _expected(row: DataRow) -> dict[str, bool]:
    """Return which tests must pass. Raises ColumnMissing."""
    try:
        states = _states.decode(text_of(row, "expected_output_json"))
    except msgspec.DecodeError as cause:
        msg = f"its column 'expected_output_json' is no object of states: {cause}"
        raise ColumnMissing(msg) from cause
    if not states:
        msg = "its column 'expected_output_json' names no test"
        raise ColumnMissing(msg)
    return {name.partition(" - ")[0]: state == "PASSED" for name, state in states.items()}
