"""Reads which tests passed from what a test runner printed, as SWE-bench does.

The task's `tests/test.sh` prints its runner's output between two lines, `START` and `END`. The option `expected` names a JSON file in the
task's `tests/`, see `Expected`. The reward is 1 if all tests of both lists passed, otherwise 0. The evidence `tests.json` has the state of
each. Without the two lines there is no reward: the tests did not run.

An agent can have its tests print anything. So the output is read in another process, with a time limit: what takes longer gives no reward.
"""

import asyncio
from typing import Final

import msgspec
from msgspec import structs

from evener.graders.log_parsers import parser_names
from evener.graders.log_report import Expected, LogReport, read_log
from evener.graders.port import Grade, GraderError, GraderRefused, GradingContext, graded
from evener.graders.task_tests import OUTPUT, ending, last_lines, tested
from evener.proto.names import unknown
from evener.runtime.children import Children, WorkTooLong
from evener.sandboxes.grading import Grading
from evener.tasks.directory import Task
from evener.tasks.test_markers import END, START

LOG_BYTES: Final = 16 << 20
"""How much of the output is read: its first and its last half. A large test suite prints some megabytes."""
LOG_READING_SECONDS: Final = 60.0
"""The limit of the reading, which takes a second for the largest output unless its lines were made to take longer."""
LOG_READING: Final = Children("test-log", 2)
REPORT: Final = "tests.json"

_expected: Final = msgspec.json.Decoder(Expected)
_reports: Final = msgspec.msgpack.Decoder(LogReport)


async def grade(context: GradingContext) -> Grade:
    """Grade as `test_log`."""
    file = context.trajectory.spec.grader.options.get("expected", "")
    left, expected = await tested(context, lambda task: read_expected(task, file), _with_long_log)
    names = await asyncio.to_thread(parser_names)
    if expected.parser not in names:
        raise GraderRefused(unknown("parser", expected.parser, names, f"in tests/{file}"))
    output = left.output or b""
    read = await read_output(output, expected)
    if read is None:
        msg = f"tests/test.sh {ending(left)} and did not print {START!r} and {END!r}; {last_lines(output)}"
        raise GraderError(msg)
    context.evidence[REPORT] = read.report
    context.evidence[OUTPUT] = output
    return graded(read.rewards)


async def read_output(output: bytes, expected: Expected, seconds: float = LOG_READING_SECONDS) -> LogReport | None:
    """Return what an output says. None: it is not all there. Raises GraderError if that takes longer than `seconds`."""
    try:
        found = await LOG_READING.run(read_log, msgspec.msgpack.encode(expected), output, seconds=seconds)
    except WorkTooLong as cause:
        msg = f"parser `{expected.parser}` did not read the output of {len(output)} bytes in {seconds:g} s; {last_lines(output)}"
        raise GraderError(msg) from cause
    return _reports.decode(found) if found else None


def read_expected(task: Task, file: str) -> Expected:
    """Return the tests that count. Raises GraderRefused."""
    tests = (task.path / "tests").resolve()
    path = (tests / file).resolve()
    try:
        if not path.is_relative_to(tests):
            msg = f"grader `test_log`: `expected` {file!r} is not in the task's tests/"
            raise GraderRefused(msg)
        expected = _expected.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as cause:  # a wrong value is a DecodeError too
        msg = f"grader `test_log`: tests/{file}: {getattr(cause, 'strerror', None) or cause}"
        raise GraderRefused(msg) from cause
    if not (expected.fail_to_pass or expected.pass_to_pass or expected.every or expected.exactly):
        msg = f"grader `test_log`: tests/{file} names no test"
        raise GraderRefused(msg)
    return expected


def _with_long_log(work: Grading) -> Grading:
    return structs.replace(work, log_bytes=LOG_BYTES)
