"""A fault point at which a test holds what passes."""

import asyncio
from types import ModuleType

import pytest


class Held:
    """Holds all that passes a point, until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str) -> None:
        """`module`: where `await point(name)` stands."""
        self._name = name
        self._reached = asyncio.Event()
        self._let_go = asyncio.Event()
        monkeypatch.setattr(module, "point", self._point)

    async def reached(self) -> None:
        """Wait until something stands at the point."""
        async with asyncio.timeout(60):
            await self._reached.wait()

    def let_go(self) -> None:
        """Let it pass, and all that follows."""
        self._let_go.set()

    async def _point(self, name: str) -> None:
        if name == self._name:
            self._reached.set()
            await self._let_go.wait()
