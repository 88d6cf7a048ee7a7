"""A small repository with a history, and rows in the shapes of SWE-bench and its kin that ask for its bug to be fixed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BUGGY = "def add(a, b):\n    return a - b\n\n\ndef double(a):\n    return 2 * a\n"
FIXED = BUGGY.replace("a - b", "a + b")
TESTS = "import calc\n\n\ndef test_double():\n    assert calc.double(2) == 4\n"
NEW_TESTS = TESTS + "\n\ndef test_add():\n    assert calc.add(2, 3) == 5\n"
COMMAND = f"{sys.executable} -m pytest -rA -p no:cacheprovider"


def git(folder: Path, *words: str) -> str:
    """Run git; return what it prints."""
    identity = ("-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main")
    return subprocess.run(("git", "-C", str(folder), *identity, *words), check=True, capture_output=True, text=True).stdout


def repository(folder: Path) -> str:
    """Make the clone `folder/people__calc`; return its base commit. A later commit, which no agent should see, has the fix."""
    clone = folder / "people__calc"
    clone.mkdir(parents=True)
    git(clone, "init", "-q")
    for name, text in {"calc.py": BUGGY, "tests/test_calc.py": TESTS, "conftest.py": ""}.items():
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_text(text)
    git(clone, "add", "-A")
    git(clone, "commit", "-qm", "Buggy")
    base = git(clone, "rev-parse", "HEAD").strip()
    (clone / "calc.py").write_text(FIXED)
    (clone / "tests/test_calc.py").write_text(NEW_TESTS)
    git(clone, "commit", "-qam", "Fixed")
    return base


def row(folder: Path, base: str, **given: Any) -> dict[str, Any]:
    """Return a row of SWE-bench for the repository that `repository` made."""
    clone = folder / "people__calc"
    return {
        "repo": "people/calc",
        "instance_id": "people__calc-1",
        "base_commit": base,
        "patch": git(clone, "diff", base, "HEAD", "--", "calc.py"),
        "test_patch": git(clone, "diff", base, "HEAD", "--", "tests"),
        "problem_statement": "add() subtracts.",
        "environment_setup_commit": base,
        "version": "1.0",
        "FAIL_TO_PASS": json.dumps(["tests/test_calc.py::test_add"]),
        "PASS_TO_PASS": json.dumps(["tests/test_calc.py::test_double"]),
        **given,
    }


def rebench(folder: Path, base: str, **given: Any) -> dict[str, Any]:
    """Return the row as SWE-rebench has it, with a command that runs here."""
    config = json.dumps({"test_cmd": COMMAND, "log_parser": "parse_log_pytest"})
    lists = {"FAIL_TO_PASS": ["tests/test_calc.py::test_add"], "PASS_TO_PASS": ["tests/test_calc.py::test_double"]}
    return row(folder, base, install_config=config, **lists | given)


def written(path: Path, *rows: dict[str, Any]) -> Path:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path
