"""Temporary folders of code on the event loop."""

import ast
import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from evener.runtime.folders import temporary_folder

ROOT = Path(__file__).parents[3]


async def test_folder_is_removed_while_the_loop_continues(tmp_path: Path) -> None:
    """The removal of an ordinary task's 10,000 files stopped all sessions for a third of a second."""
    turns = count()

    async def turn() -> None:
        while True:
            next(turns)
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    async with temporary_folder("test-", tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        for number in range(1000):
            (folder / f"{number}").touch()
        before = next(turns)
    assert next(turns) > before + 1
    assert not any(tmp_path.iterdir())  # noqa: ASYNC240 - a test may
    turning.cancel()


async def test_folder_of_a_cancelled_block_is_removed(tmp_path: Path) -> None:
    """Whatever ends the block."""
    inside = asyncio.Event()

    async def work() -> None:
        async with temporary_folder("test-", tmp_path):
            inside.set()
            await asyncio.Event().wait()

    working = asyncio.create_task(work())
    await inside.wait()
    working.cancel()
    await asyncio.wait([working])

    assert working.cancelled()
    assert not any(tmp_path.iterdir())  # noqa: ASYNC240 - a test may


def test_no_coroutine_removes_a_folder_on_the_loop() -> None:
    """The standard library's temporary folder is for threads."""
    assert [str(path) for folder in ("libs", "services") for path in (ROOT / folder).rglob("*.py") if any(_on_the_loop(path))] == []


def _on_the_loop(path: Path) -> Iterator[str]:
    """Yield the coroutines of a module that use the standard library's temporary folder."""
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.AsyncFunctionDef):
            names = (node.attr for node in ast.walk(function) if isinstance(node, ast.Attribute))
            if {"TemporaryDirectory", "rmtree"} & set(names) and path.name != "folders.py":
                yield function.name
