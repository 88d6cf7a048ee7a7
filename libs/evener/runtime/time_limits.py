"""Time limits that do not count everything."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stopped(limit: asyncio.Timeout) -> Iterator[None]:
    """Stop the time of a limit in this block."""
    loop, due = asyncio.get_running_loop(), limit.when()
    began = loop.time()
    limit.reschedule(None)
    yield
    if due is not None:
        limit.reschedule(due + loop.time() - began)
