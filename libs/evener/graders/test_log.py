"""Reads which tests passed from what a test runner printed, as SWE-bench does.

The task's `tests/test.sh` prints its runner's output between two lines, `START` and `END`. The option `expected` names a JSON file in the
task's `tests/`, see `Expected`. The reward is 1 if all tests of both lists passed, otherwise 0. The evidence `tests.json` has the state of
each. Without the two lines there is no reward: the tests did not run.

An agent can have its tests print anything. So the output is read in time that grows with its length and no faster, some lines at a time in
a thread, and no further once the grading is called off. Of a line above `LOG_LINE_BYTES` only the beginning is read.
"""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Final

import msgspec
from msgspec import Struct, structs

from evener.graders.log_parsers import LogParser, parser_named, parser_names
from evener.graders.port import Grade, GraderError, GraderRefused, GradingContext, graded
from evener.graders.task_tests import OUTPUT, ending, last_lines, tested
from evener.proto.names import unknown
from evener.runtime.threads import Threads, check_wanted
from evener.sandboxes.grading import Grading
from evener.tasks.directory import Task
from evener.tasks.test_markers import END, START

LOG_BYTES: Final = 16 << 20
"""How much of the output is read: its first and its last half. A large test suite prints some megabytes."""
LOG_LINE_BYTES: Final = 1 << 16
"""How much of a line is read. Names of tests are much shorter, also with their parameters."""
LOG_PIECE_BYTES: Final = 1 << 16
LOG_READING: Final = Threads("test-log", 2)
REPORT: Final = "tests.json"
PASSED: Final = "passed"
FAILED: Final = "failed"


class Expected(Struct, frozen=True, kw_only=True):
    """The tests that count."""

    parser: str = "pytest"
    """The format of the runner's output: a name that `evener.graders.log_parsers` knows."""
    fail_to_pass: tuple[str, ...] = ()
    """The names of tests that fail before the task is solved."""
    pass_to_pass: tuple[str, ...] = ()
    """The names of tests that also pass before."""
    every: bool = False
    """Whether all tests that the output names must pass, of which there must be one."""
    exactly: dict[str, bool] = {}
    """Test name to whether it passes. The output must name these tests and no others, each with this state."""


_expected: Final = msgspec.json.Decoder(Expected)
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")


async def grade(context: GradingContext) -> Grade:
    """Grade as `test_log`."""
    file = context.trajectory.spec.grader.options.get("expected", "")
    left, expected = await tested(context, lambda task: read_expected(task, file), _with_long_log)
    parser = await asyncio.to_thread(parser_named, expected.parser)
    if parser is None:
        raise GraderRefused(unknown("parser", expected.parser, parser_names(), f"in tests/{file}"))
    found = await LOG_READING.run(_graded, left.output, parser, expected)
    if found is None:
        msg = f"tests/test.sh {ending(left)} and did not print {START!r} and {END!r}; {last_lines(left.output)}"
        raise GraderError(msg)
    rewards, context.evidence[REPORT] = found
    context.evidence[OUTPUT] = left.output or b""
    return graded(rewards)


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


def parsed(output: bytes | None, parser: LogParser) -> Mapping[str, bool] | None:
    """Return test name to whether it passed. None: the output is not all there."""
    _, begun, rest = (output or b"").partition(START.encode())
    log, ended, _ = rest.rpartition(END.encode())
    return parser(_lines(log)) if begun and ended else None


def report_of(states: Mapping[str, bool], expected: Expected) -> dict[str, dict[str, str]]:
    """Return the state of each test that counts: `passed`, `failed`, or `missing` if the output does not name it."""

    def state(name: str) -> str:
        return {True: PASSED, False: FAILED, None: "missing"}[states.get(name)]

    if expected.every or expected.exactly:
        return {"tests": {name: state(name) for name in {**states, **expected.exactly}}}
    return {
        "fail_to_pass": {name: state(name) for name in expected.fail_to_pass},
        "pass_to_pass": {name: state(name) for name in expected.pass_to_pass},
    }


def is_solved(states: Mapping[str, bool], expected: Expected) -> bool:
    """Return whether a task is solved whose tests ended so."""
    if expected.exactly:
        return dict(states) == expected.exactly
    if expected.every:
        return bool(states) and all(states.values())
    return all(states.get(name, False) for name in (*expected.fail_to_pass, *expected.pass_to_pass))


def _graded(output: bytes | None, parser: LogParser, expected: Expected) -> tuple[dict[str, float], bytes] | None:
    """Return the rewards and the report. None: the output is not all there."""
    states = parsed(output, parser)
    if states is None:
        return None
    report = report_of(states, expected)
    shares = {name: _share(tests) for name, tests in report.items() if tests}
    written = json.dumps(report, indent=2, ensure_ascii=False)  # in Python, so that other threads run
    return {"reward": float(is_solved(states, expected)), **shares}, written.encode()


def _lines(log: bytes) -> Iterator[str]:
    """Yield the lines without colours, of blank ones together one.

    They come from some lines at a time: millions of them would fill the memory.
    """
    file, blank = BytesIO(log), False
    while lines := file.readlines(LOG_PIECE_BYTES):
        check_wanted()
        for line in lines:
            if not line.isspace():
                yield from _COLOURS.sub("", line[:LOG_LINE_BYTES].decode(errors="replace")).splitlines()
            elif not blank:
                yield ""
            blank = line.isspace()


def _with_long_log(work: Grading) -> Grading:
    return structs.replace(work, log_bytes=LOG_BYTES)


def _share(tests: Mapping[str, str]) -> float:
    return sum(state == PASSED for state in tests.values()) / len(tests)
