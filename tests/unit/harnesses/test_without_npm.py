"""Tests of real CLIs on a machine without npm: they are not passed over in silence."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NEEDS_NPM = """
import pytest

@pytest.mark.usefixtures("npm")
def test_with_a_real_cli() -> None:
    pass
"""


@pytest.mark.parametrize(("said", "exit_code", "told"), [("", 1, "npm is missing"), ("1", 0, "1 skipped")])
def test_tests_with_real_clis_fail_unless_they_are_excluded_by_name(tmp_path: Path, said: str, exit_code: int, told: str) -> None:
    """WITHOUT_NPM=1 says so."""
    (tmp_path / "test_it.py").write_text(NEEDS_NPM)
    words = ("-m", "pytest", "-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), str(tmp_path))
    run = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={"PATH": str(tmp_path), "PYTHONPATH": str(ROOT), "WITHOUT_NPM": said},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == exit_code, run.stdout
    assert told in run.stdout
