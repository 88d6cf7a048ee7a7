"""How many files and connections a process may have open."""

import errno
import subprocess
import sys

import pytest

from evener.runtime.open_files import lacked_files

RAISED = """
import resource
from evener.runtime.open_files import allow_open_files
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (64, min(hard, 300)))
allow_open_files()
allow_open_files()
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_soft_limit_is_raised_to_the_hard_one() -> None:
    """The idle connections of one harness used up the usual 1,024."""
    said = subprocess.run([sys.executable, "-c", RAISED], capture_output=True, text=True, check=True)
    assert said.stdout == "(300, 300)\n"


def test_lack_of_files_is_found_behind_other_errors() -> None:
    """A sandbox names what it lost, and raises that from its cause."""
    lost = RuntimeError("the sandbox is lost")
    lost.__cause__ = OSError(errno.EMFILE, "Too many open files")
    assert lacked_files(lost)


@pytest.mark.parametrize("error", [OSError(errno.ENOENT, "no such file"), ValueError("a bug")])
def test_other_errors_are_no_lack_of_files(error: Exception) -> None:
    """They end the attempt."""
    assert not lacked_files(error)
