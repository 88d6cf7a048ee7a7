"""Parsers of test runners' output: our own, and those of the package `swebench` where it is installed."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from evener.tasks.swebench_parsers import swebench_parsers

LogParser = Callable[[Iterable[str]], Mapping[str, bool]]
"""Given the lines of the output: returns test name to whether it passed. One that is named twice passed if it never failed."""
Line = tuple[str, str] | None
"""The name of a test and its state, as the runner spells it. None: the line has none."""

FOREIGN_CHARACTERS: Final = 2000
"""How much of a line the parsers of `swebench` are given: time may grow with the square of a line's length there."""
DOTS: Final = " ... "

_PYTEST: Final = re.compile(r"(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\s+(\S.*)")
_PYTEST_REASON: Final = re.compile(r"^([^\s\[]+(?:\[.*?\](?=\s-\s|$))?).*$")
"""Matches a name, which may have parameters with blanks, and the reason after it."""
_PYTEST_STATE: Final = re.compile(r"\s(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b")
_UNITTEST_STATE: Final = re.compile(r"\s(ok|FAIL|ERROR|skipped|expected failure)\b")
_GOOD: Final = frozenset({"PASSED", "XFAIL", "ok"})


def parser_named(name: str) -> LogParser | None:
    """Return a parser. None: this process has none of that name. Blocks: it may import `swebench`."""
    if name in LOG_PARSERS:
        return LOG_PARSERS[name]
    theirs = swebench_parsers().get(name)
    if theirs is None:
        return None
    return lambda lines: {test: state in _GOOD for test, state in theirs(_cut(lines), None).items()}


def parser_names() -> tuple[str, ...]:
    """Return the names of all parsers of this process. Blocks: it may import `swebench`."""
    return (*LOG_PARSERS, *swebench_parsers())


def read_pytest(line: str) -> Line:
    """Read a line of `pytest -rA` or `pytest -v`, in time that grows with its length and no faster."""
    if found := _PYTEST.match(line):
        state, name = found.groups()
        return name if state in {"PASSED", "SKIPPED"} else _PYTEST_REASON.sub(r"\1", name), state
    word = line.split(maxsplit=1)[0] if line.strip() else ""
    if "::" not in word[1:-1] or not line.startswith(word):
        return None
    said = _PYTEST_STATE.search(line)
    return None if said is None else (line[: said.start()].rstrip(), said[1])


def read_unittest(line: str) -> Line:
    """Read a line of `python -m unittest -v` or of Django's runner, likewise. A test may print before its state."""
    dots = line.find(DOTS, 1)
    said = list(_UNITTEST_STATE.finditer(line, dots + len(DOTS) - 1)) if dots > 0 else []
    return (line[:dots], said[-1][1]) if said else None


def _of_lines(read: Callable[[str], Line]) -> LogParser:
    def states_in(lines: Iterable[str]) -> dict[str, bool]:
        states: dict[str, bool] = {}
        for line in lines:
            if found := read(line):
                name, state = found
                states[name] = states.get(name, True) and state in _GOOD
        return states

    return states_in


def _r2e(lines: Iterable[str]) -> dict[str, bool]:
    """Read the last summary of `pytest -rA` as R2E-Gym does: names are those within the file, joined by dots."""
    states: dict[str, bool] = {}
    for line in lines:
        if "short test summary info" in line:
            states.clear()
        elif (found := _PYTEST.match(line)) and "::" in found[2]:
            name = ".".join(found[2].partition(" - ")[0].split("::")[1:])
            states[name] = states.get(name, True) and found[1] == "PASSED"
    return states


def _cut(lines: Iterable[str]) -> str:
    return "\n".join([line[:FOREIGN_CHARACTERS] for line in lines])


LOG_PARSERS: Final[dict[str, LogParser]] = {"pytest": _of_lines(read_pytest), "unittest": _of_lines(read_unittest), "r2e": _r2e}
"""The formats of test runners' output, by name."""
