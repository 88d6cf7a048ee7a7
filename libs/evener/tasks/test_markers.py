"""The lines between which a task's `tests/test.sh` prints what its test runner prints, for the grader `test_log`."""

from typing import Final

START: Final = ">>>>> Start Test Output"
END: Final = ">>>>> End Test Output"
