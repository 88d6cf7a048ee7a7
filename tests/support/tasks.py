"""Which tasks of the event loop run code of a package: what a call costs the loop, of our own making."""

import asyncio
from collections.abc import Iterator
from typing import Any


def tasks_of(*packages: str) -> int:
    """Return how many tasks run code of these packages of `evener` now, in what they await too."""
    parts = [f"/evener/{package}/" for package in packages]
    return sum(any(part in file for file in _files(task.get_coro()) for part in parts) for task in asyncio.all_tasks())


def _files(awaited: Any) -> Iterator[str]:
    """Yield the files of a coroutine and of the coroutines that it awaits."""
    while (code := getattr(awaited, "cr_code", None)) is not None:
        yield code.co_filename
        awaited = awaited.cr_await
