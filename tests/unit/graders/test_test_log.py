"""Rewards from what test runners print."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.grading import GradingBench, open_bench

from evener.graders.log_parsers import LOG_PARSERS
from evener.graders.port import GraderError, GraderRefused
from evener.graders.test_log import Expected, is_solved, parsed
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
    assert LOG_PARSERS["r2e"](R2E) == {"TestCalc.test_add": True, "test_plain": True, "test_old": False}


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
