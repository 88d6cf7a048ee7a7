"""Parsers of test runners' output: our own, and those of the package `swebench` where it is installed."""

import re
from collections.abc import Callable, Mapping
from typing import Final

from evener.tasks.swebench_parsers import swebench_parsers

LogParser = Callable[[str], Mapping[str, bool]]
"""Returns test name to whether it passed."""

_PYTEST: Final = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\s+(\S.*)$")
_PYTEST_REASON: Final = re.compile(r"^([^\s\[]+(?:\[.*?\](?=\s-\s|$))?).*$")
"""Matches a name, which may have parameters with blanks, and the reason after it."""
_PYTEST_VERBOSE: Final = re.compile(r"^(\S+::\S.*?)\s+(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b")
_UNITTEST: Final = re.compile(r"^(.+?) \.\.\. (?:.*\s)?(ok|FAIL|ERROR|skipped|expected failure)\b")
_GOOD: Final = frozenset({"PASSED", "XFAIL", "ok"})


def parser_named(name: str) -> LogParser | None:
    """Return a parser. None: this process has none of that name. Blocks: it may import `swebench`."""
    if name in LOG_PARSERS:
        return LOG_PARSERS[name]
    theirs = swebench_parsers().get(name)
    return None if theirs is None else lambda log: {test: state in _GOOD for test, state in theirs(log, None).items()}


def parser_names() -> tuple[str, ...]:
    """Return the names of all parsers of this process. Blocks: it may import `swebench`."""
    return (*LOG_PARSERS, *swebench_parsers())


def _pytest(log: str) -> dict[str, bool]:
    """Read the lines of `pytest -rA` and `pytest -v`. A test that is named twice passed if it never failed."""
    states: dict[str, bool] = {}
    for line in log.splitlines():
        if found := _PYTEST.match(line):
            state, name = found.groups()
            if state not in {"PASSED", "SKIPPED"}:
                name = _PYTEST_REASON.sub(r"\1", name)
        elif found := _PYTEST_VERBOSE.match(line):
            name, state = found.groups()
        else:
            continue
        states[name] = states.get(name, True) and state in _GOOD
    return states


def _unittest(log: str) -> dict[str, bool]:
    """Read the lines of `python -m unittest -v` and of Django's runner."""
    states: dict[str, bool] = {}
    for line in log.splitlines():
        if found := _UNITTEST.match(line):
            name, state = found.groups()
            states[name] = states.get(name, True) and state in _GOOD
    return states


def _r2e(log: str) -> dict[str, bool]:
    """Read the summary of `pytest -rA` as R2E-Gym does: names are those within the file, joined by dots."""
    states: dict[str, bool] = {}
    for line in log.rpartition("short test summary info")[2].splitlines():
        if (found := _PYTEST.match(line)) and "::" in found[2]:
            name = ".".join(found[2].partition(" - ")[0].split("::")[1:])
            states[name] = states.get(name, True) and found[1] == "PASSED"
    return states


LOG_PARSERS: Final[dict[str, LogParser]] = {"pytest": _pytest, "unittest": _unittest, "r2e": _r2e}
"""The formats of test runners' output, by name."""
