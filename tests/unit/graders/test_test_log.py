"""Rewards from what test runners print."""

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.grading import GradingBench, open_bench
from tests.support.waiting import eventually

from evener.graders.log_parsers import LOG_PARSERS, read_pytest, read_unittest
from evener.graders.log_report import LOG_LINE_BYTES, Expected, is_solved, parsed
from evener.graders.port import GraderError, GraderRefused
from evener.graders.task_tests import last_lines
from evener.graders.test_log import LOG_READING, read_output
from evener.tasks.swebench_parsers import swebench_parsers
from evener.tasks.test_markers import END, START

PYTEST = """
============ test session starts ============
tests/test_a.py::test_verbose PASSED [ 10%]
\x1b[32mPASSED\x1b[0m tests/test_a.py::test_one
PASSED tests/test_a.py::test_name[a - b]
FAILED tests/test_a.py::test_name[c - d] - [x] is y
FAILED tests/test_a.py::test_two - AssertionError: assert 1 == 2
ERROR tests/test_b.py::test_three - fixture 'x' not found
SKIPPED [1] tests/test_b.py:3: no reason
XFAIL tests/test_b.py::test_known
PASSED tests/test_a.py::test_twice
FAILED tests/test_a.py::test_twice - again
"""
UNITTEST = """
test_add (calc.tests.Adding) ... ok
test_sub (calc.tests.Adding) ... FAIL
test_div (calc.tests.Adding)
Division by zero is refused. ... ok
test_old (calc.tests.Adding) ... skipped 'old'
test_known (calc.tests.Adding) ... expected failure
"""


VERBOSE = re.compile(r"^(\S+::\S.*?)\s+(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b")
DOTTED = re.compile(r"^(.+?) \.\.\. (?:.*\s)?(ok|FAIL|ERROR|skipped|expected failure)\b")
WORDS = st.lists(st.sampled_from([*"a: \t.[", "::", "PASSED", "XFAIL", " ... ", "ok", "skipped", "expected failure"]), max_size=14)
CPU_SECONDS = 10.0
"""A bar for what takes a tenth of a second, and minutes if its time grows with the square of a line's length."""


LEFT_OPEN = "a ... Testing against Django installed in x"
SWEBENCH = r"""
import os, pathlib, re

def parse_log_django(log, spec):
    if told := re.search("^pid (.*)", log, re.MULTILINE):
        path = pathlib.Path(told[1])
        path.with_suffix(".new").write_text(str(os.getpid()))
        path.with_suffix(".new").rename(path)
    found = re.findall(r"^(.*?)\s\.\.\.\s(?:ok|Testing\ against\ Django\ installed\ in\ ((?s:.*?))\ silenced\)\.\nok)$", log, re.MULTILINE)
    return {name: "PASSED" for name, _ in found}

PARSER_REGISTRY = {"parse_log_django": parse_log_django}
"""


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[GradingBench]:
    async with open_bench(tmp_path) as opened:
        yield opened


def script(log: str) -> str:
    return f"#!/bin/sh\necho installing\necho '{START}'\ncat <<'EOT'\n{log}\nEOT\necho '{END}'\n"


def files(log: str, fail_to_pass: tuple[str, ...] = (), pass_to_pass: tuple[str, ...] = ()) -> dict[str, str]:
    wanted = {"parser": "pytest", "fail_to_pass": fail_to_pass, "pass_to_pass": pass_to_pass}
    return {"tests/test.sh": script(log), "tests/expected.json": json.dumps(wanted)}


def test_pytest_is_read() -> None:
    """Colours, parameters with dashes, two forms of lines; a test that failed once has failed."""
    assert parsed(script(PYTEST).encode(), LOG_PARSERS["pytest"]) == {
        "tests/test_a.py::test_verbose": True,
        "tests/test_a.py::test_one": True,
        "tests/test_a.py::test_name[a - b]": True,
        "tests/test_a.py::test_name[c - d]": False,
        "tests/test_a.py::test_two": False,
        "tests/test_b.py::test_three": False,
        "[1] tests/test_b.py:3: no reason": False,
        "tests/test_b.py::test_known": True,
        "tests/test_a.py::test_twice": False,
    }


def test_unittest_is_read() -> None:
    """Of a test with a description, the runner prints that on its last line."""
    assert parsed(script(UNITTEST).encode(), LOG_PARSERS["unittest"]) == {
        "test_add (calc.tests.Adding)": True,
        "test_sub (calc.tests.Adding)": False,
        "Division by zero is refused.": True,
        "test_old (calc.tests.Adding)": False,
        "test_known (calc.tests.Adding)": False,
    }


@given(WORDS.map("".join))
def test_lines_are_read_as_swe_bench_reads_them(line: str) -> None:
    """Its patterns say the same; they take time that grows with the square of a line's length."""
    verbose, dotted = VERBOSE.match(line), DOTTED.match(line)
    if not line.startswith(("PASSED", "XFAIL")):
        assert read_pytest(line) == (verbose and verbose.groups())
    assert read_unittest(line) == (dotted and dotted.groups())


@pytest.mark.parametrize("parser", LOG_PARSERS)
@pytest.mark.parametrize(
    "line", ["::" * 15_000, "a::b" + " " * 30_000, " ... " * 6_000, "a ... " + " " * 30_000, "FAILED a[" + "] " * 15_000]
)
def test_lines_that_an_agent_made_to_stop_us_take_no_longer_than_others(line: str, parser: str) -> None:
    """Eighty thousand colons took more than three minutes, in which no other thread ran."""
    before = time.thread_time()
    assert parsed(script("\n".join([line] * 40)).encode(), LOG_PARSERS[parser]) is not None
    assert time.thread_time() - before < CPU_SECONDS


def test_of_a_very_long_line_the_beginning_is_read() -> None:
    """And the next line is one again."""
    log = f"FAILED a::one - {'x' * 3 * LOG_LINE_BYTES}\nPASSED a::two\n{'y' * LOG_LINE_BYTES}PASSED a::three\n"
    assert parsed(script(log).encode(), LOG_PARSERS["pytest"]) == {"a::one": False, "a::two": True}


def test_last_lines_are_those_before_the_blank_ones() -> None:
    """Only the end of the output is read."""
    assert last_lines(b"a\n" * 8_000_000 + b"\n" * 100_000) == "its last lines: " + "\n".join("a" * 10)
    assert last_lines(b"\xff" * 100_000) == "its last lines: " + "\ufffd" * 1000
    assert last_lines(b" \n") == last_lines(None) == "it printed nothing"


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package `swebench` whose parser of Django takes time that grows with the square of the output, as the real one does."""
    package = tmp_path / "packages" / "swebench" / "harness" / "log_parsers"
    package.mkdir(parents=True)
    for folder in (package, package.parent, package.parent.parent):
        (folder / "__init__.py").touch()
    (package / "__init__.py").write_text(SWEBENCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    monkeypatch.syspath_prepend(tmp_path / "packages")
    swebench_parsers.cache_clear()
    LOG_READING.end_idle()
    yield
    LOG_READING.end_idle()
    swebench_parsers.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "swebench"]:
        del sys.modules[name]


def of_django(log: str) -> dict[str, str]:
    wanted = {"parser": "parse_log_django", "fail_to_pass": ["a"]}
    return files(log) | {"tests/expected.json": json.dumps(wanted)}


@pytest.mark.usefixtures("foreign")
async def test_parser_of_others_that_an_agent_stops_is_ended_and_gives_no_reward(bench: GradingBench) -> None:
    """In this process it would hold the interpreter's lock: one megabyte takes it three minutes, and sixteen twelve hours."""
    solved = await bench.grade("test_log", {"expected": "expected.json"}, files=of_django("a ... ok"))
    assert solved.reward == 1.0

    output = script(f"{LEFT_OPEN}\n" * 25_000).encode()
    with pytest.raises(GraderError, match=r"parser `parse_log_django` did not read the .* in 2 s"):
        await read_output(output, Expected(parser="parse_log_django", fail_to_pass=("a",)), seconds=2)


@pytest.mark.usefixtures("foreign")
async def test_parser_of_others_whose_grading_is_called_off_is_ended(bench: GradingBench, tmp_path: Path) -> None:
    """The evaluator's time limit cancels a grading."""
    told = tmp_path / "pid"
    log = f"pid {told}\n" + f"{LEFT_OPEN}\n" * 25_000
    task = asyncio.ensure_future(bench.grade("test_log", {"expected": "expected.json"}, files=of_django(log)))
    await eventually(told.exists)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)


async def test_all_tests_of_both_lists_must_pass(bench: GradingBench) -> None:
    """The state of each is evidence, and the shares are kept beside the reward."""
    both = files("PASSED a::one\nPASSED a::two", ("a::one",), ("a::two",))
    broken = files("PASSED a::one\nFAILED a::two - x", ("a::one",), ("a::two", "a::gone"))
    solved = await bench.grade("test_log", {"expected": "expected.json"}, files=both)
    unsolved = await bench.grade("test_log", {"expected": "expected.json"}, files=broken)

    assert solved.rewards == {"reward": 1.0, "fail_to_pass": 1.0, "pass_to_pass": 1.0}
    assert unsolved.rewards == {"reward": 0.0, "fail_to_pass": 1.0, "pass_to_pass": 0.0}
    assert json.loads(bench.evidence["tests.json"])["pass_to_pass"] == {"a::two": "failed", "a::gone": "missing"}


async def test_tests_that_did_not_run_give_no_reward(bench: GradingBench) -> None:
    """A patch that does not apply, a container without pytest: not the agent's fault."""
    broken = files("", ("a::one",)) | {"tests/test.sh": "#!/bin/sh\necho error: patch failed >&2\nexit 1\n"}
    with pytest.raises(GraderError, match=r"exited with 1 and did not print (?s:.*)patch failed"):
        await bench.grade("test_log", {"expected": "expected.json"}, files=broken)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"parser": "ruby", "fail_to_pass": ["a"]}, "unknown parser 'ruby'"),
        ({}, "names no test"),
        ({"fail_to_pass": "a"}, "Expected `array`"),
    ],
)
async def test_wrong_lists_are_refused(bench: GradingBench, wanted: dict[str, object], said: str) -> None:
    with pytest.raises(GraderRefused, match=said):
        await bench.grade("test_log", {"expected": "expected.json"}, files=files("") | {"tests/expected.json": json.dumps(wanted)})


R2E = """
FAILED tests/x.py::not_of_the_summary
=========================== short test summary info ============================
PASSED r2e_tests/test_1.py::TestCalc::test_add
PASSED r2e_tests/test_1.py::test_plain
FAILED r2e_tests/test_2.py::test_old - AssertionError: 1 - 2
"""


def test_output_of_r2e_gym_is_read_by_the_names_within_its_files() -> None:
    assert LOG_PARSERS["r2e"](R2E.splitlines()) == {"TestCalc.test_add": True, "test_plain": True, "test_old": False}


@pytest.mark.parametrize(
    ("expected", "states", "solved"),
    [
        (Expected(every=True), {"a": True, "b": True}, True),
        (Expected(every=True), {"a": True, "b": False}, False),
        (Expected(every=True), {}, False),
        (Expected(exactly={"a": True, "b": False}), {"a": True, "b": False}, True),
        (Expected(exactly={"a": True, "b": False}), {"a": True, "b": True}, False),
        (Expected(exactly={"a": True}), {"a": True, "b": True}, False),
        (Expected(exactly={"a": True, "b": False}), {"a": True}, False),
    ],
)
def test_all_tests_or_exactly_these_states(expected: Expected, states: dict[str, bool], solved: bool) -> None:  # noqa: FBT001 - a table
    assert is_solved(states, expected) is solved
