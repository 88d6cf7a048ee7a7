"""Parsers of test runners' output: our own, and those of the package `swebench` where it is installed."""

import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Final

LogParser = Callable[[str], Mapping[str, bool]]
"""Returns test name to whether it passed."""

_PYTEST: Final = re.compile(r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\s+(\S.*)$")
_PYTEST_REASON: Final = re.compile(r"^([^\s\[]+(?:\[.*?\](?=\s-\s|$))?).*$")
"""Matches a name, which may have parameters with blanks, and the reason after it."""
_PYTEST_VERBOSE: Final = re.compile(r"^(\S+::\S.*?)\s+(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b")
_UNITTEST: Final = re.compile(r"^(.+?) \.\.\. (?:.*\s)?(ok|FAIL|ERROR|skipped|expected failure)\b")
_GOOD: Final = frozenset({"PASSED", "XFAIL", "ok"})
_SWEBENCH: Final = "swebench.harness.log_parsers"
_PREFIX: Final = "parse_log_"


def parser_named(name: str) -> LogParser | None:
    """Return a parser. None: this process has none of that name."""
    if name in LOG_PARSERS:
        return LOG_PARSERS[name]
    module = _swebench()
    function = getattr(module, name, None) if name.startswith(_PREFIX) else None
    return _of_swebench(function) if callable(function) else None


def parser_names() -> tuple[str, ...]:
    """Return the names of all parsers of this process."""
    module = _swebench()
    theirs = () if module is None else [name for name in dir(module) if name.startswith(_PREFIX) and callable(getattr(module, name))]
    return (*LOG_PARSERS, *theirs)


def _swebench() -> ModuleType | None:
    return None if importlib.util.find_spec("swebench") is None else importlib.import_module(_SWEBENCH)


def _of_swebench(function: Callable[..., Mapping[str, str]]) -> LogParser:
    """Return a parser of theirs, whose second argument says of which row the output is; most of them ignore it."""

    def parse(log: str) -> dict[str, bool]:
        return {name: state in _GOOD for name, state in function(log, None).items()}

    return parse


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


LOG_PARSERS: Final[dict[str, LogParser]] = {"pytest": _pytest, "unittest": _unittest}
"""The formats of test runners' output, by name."""
