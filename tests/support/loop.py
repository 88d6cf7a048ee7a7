"""The event loop as a test steers it: its turns are counted, and its clock stands until it is turned."""

import asyncio

import pytest


async def turns() -> None:
    """Let the loop run until every task that can continue has done so, including data sent over loopback within this process."""
    for _ in range(100):
        await asyncio.sleep(0)


async def forever() -> None:
    """Wait for what never comes, until cancelled."""
    await asyncio.Event().wait()


class Time:
    """A clock that passes only when the test says so, for what takes its clock as a function."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class LoopTime:
    """The time of the running loop, which passes only when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)

    async def pass_by(self, seconds: float) -> None:
        """Let so much time pass, after everything that can go on without it."""
        await turns()
        self.now += seconds
        await turns()
