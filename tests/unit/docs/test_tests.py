"""The tests themselves: they wait for events, and they change nothing of ours behind its back."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.conftest import LONGEST

TESTS: Final = Path(__file__).parents[2]
FILES: Final = sorted(path for path in TESTS.rglob("*.py") if path != Path(__file__))
SLEEPS: Final = {
    "support/waiting.py": "the pause between two looks",
    "support/frames_gateway.py": "a gateway that takes its time",
    "support/other_services.py": "the interval of a heartbeat",
    "integration/test_backpressure.py": "the interval of a heartbeat",
    "contract/test_bus.py": "a caller gives up at another moment each time",
    "contract/test_engines.py": "vLLM tells nobody that it samples: its counter is read twice",
    "contract/test_groups.py": "longer than an endpoint waits",
    "integration/test_budgets.py": "time alone ends the patience",
    "integration/test_live.py": "so long an answer could leave",
    "integration/test_outage.py": "the outage itself",
    "integration/test_unseen.py": "the fault itself",
    "proofs/chaos/test_links.py": "nothing tells that nothing comes through",
    "unit/blobs/test_waited.py": "time alone makes a failure old",
    "unit/engines/test_event_stream.py": "a server that sends part by part",
    "unit/engines/test_silence.py": "the silence itself",
    "unit/provider_gateway/test_inflight.py": "a slow listener",
    "unit/runtime/test_retry.py": "an outage of some length",
    "unit/service/test_loop_watch.py": "the stop that is measured",
    "unit/templates/test_special.py": "the ticks that are counted while another thread works",
}
"""Files that let time pass, and for what."""
PATCHES: Final = {
    "proofs/chaos/test_ours.py": "the planted faults: a defence is switched off",
    "unit/tokens/test_planted.py": "the planted faults: a rule is broken",
    "support/engines.py": "files in packages are read once a worker, for time and memory alone",
}
"""Files that patch modules of ours, and for what."""


def sleeps(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that let time pass."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name("asyncio" | "time" | "anyio"), attr="sleep"), args=[duration]):
                if not (isinstance(duration, ast.Constant) and duration.value == 0):
                    yield node.lineno


def patches(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that patch anything but a module of somebody else's."""
    foreign = set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                foreign |= {(name.asname or name.name).partition(".")[0] for name in names if not name.name.startswith("evener")}
            case ast.ImportFrom(module=str(module), names=names) if not module.startswith("evener"):
                foreign |= {name.asname or name.name for name in names}
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="setattr"), args=[target, *_]) if root(target) not in foreign:
                yield node.lineno


def root(target: ast.expr) -> str:
    """Return the name with which an expression begins; empty: it begins with none."""
    while not isinstance(target, ast.Name):
        match target:
            case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Call(func=inner):
                target = inner
            case _:
                return ""
    return target.id


@pytest.mark.parametrize(("source", "found"), [("await asyncio.sleep(0)", 0), ("time.sleep(1)", 1), ("await asyncio.sleep(LONG)", 1)])
def test_sleeps_are_found(source: str, found: int) -> None:
    assert len(list(sleeps(ast.parse(source)))) == found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import sys\nmonkeypatch.setattr(sys, 'stderr', sink)", 0),
        ("import asyncio\nmonkeypatch.setattr(asyncio.get_running_loop(), 'time', now)", 0),
        ("monkeypatch.setattr('evener.tokens.place.place', fail)", 1),
        ("from evener.tokens import place\nmonkeypatch.setattr(place, 'place', fail)", 1),
        ("from evener.harnesses.registry import harness\nmonkeypatch.setattr(type(harness('pi')), 'launch', fail)", 1),
    ],
)
def test_patches_are_found(source: str, found: int) -> None:
    assert len(list(patches(ast.parse(source)))) == found


@pytest.mark.parametrize(("find", "excepted"), [(sleeps, SLEEPS), (patches, PATCHES)], ids=["sleeps", "patches"])
def test_only_what_has_a_reason_is_done(find: object, excepted: dict[str, str]) -> None:
    """A test waits with `tests/support/waiting.py`, and gives what it changes as an argument."""
    assert callable(find)
    found = {str(path.relative_to(TESTS)): list(find(ast.parse(path.read_text()))) for path in FILES}
    assert {path: lines for path, lines in found.items() if lines and path not in excepted} == {}
    assert [path for path in excepted if not found.get(path)] == []


def test_files_that_begin_first_are_there() -> None:
    assert [file for file in LONGEST if not (TESTS / file).is_file()] == []
