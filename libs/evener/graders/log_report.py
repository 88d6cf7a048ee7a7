"""What a test runner printed says of the tests that count. Pure.

Our own parsers take time that grows with the length of the output and no faster. Of a line above `LOG_LINE_BYTES` only the beginning is
read.
"""

import json
import re
from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Final

import msgspec
from msgspec import Struct

from evener.graders.log_parsers import LogParser, parser_named
from evener.tasks.test_markers import END, START

LOG_LINE_BYTES: Final = 1 << 16
"""How much of a line is read. Names of tests are much shorter, also with their parameters."""
LOG_PIECE_BYTES: Final = 1 << 16
PASSED: Final = "passed"
FAILED: Final = "failed"
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")


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


class LogReport(Struct, frozen=True, kw_only=True):
    """The rewards, and the state of each test that counts as JSON."""

    rewards: dict[str, float]
    report: bytes


_expected: Final = msgspec.msgpack.Decoder(Expected)


def read_log(expected: bytes, output: bytes) -> bytes:
    """Return the LogReport of an output, nothing if it is not all there. `expected`: an Expected whose parser is known. As msgpack."""
    wanted = _expected.decode(expected)
    parser = parser_named(wanted.parser)
    if parser is None:
        raise LookupError(wanted.parser)
    states = parsed(output, parser)
    if states is None:
        return b""
    report = report_of(states, wanted)
    shares = {name: _share(tests) for name, tests in report.items() if tests}
    written = json.dumps(report, indent=2, ensure_ascii=False).encode()
    return msgspec.msgpack.encode(LogReport(rewards={"reward": float(is_solved(states, wanted)), **shares}, report=written))


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


def _lines(log: bytes) -> Iterator[str]:
    """Yield the lines without colours, of blank ones together one.

    They come from some lines at a time: millions of them would fill the memory.
    """
    file, blank = BytesIO(log), False
    while lines := file.readlines(LOG_PIECE_BYTES):
        for line in lines:
            if not line.isspace():
                yield from _COLOURS.sub("", line[:LOG_LINE_BYTES].decode(errors="replace")).splitlines()
            elif not blank:
                yield ""
            blank = line.isspace()


def _share(tests: Mapping[str, str]) -> float:
    return sum(state == PASSED for state in tests.values()) / len(tests)
