"""Controls a running engine from outside: pauses, weight versions, gates, aborts."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Literal, Protocol
from zlib import crc32

from msgspec import Struct

Mode = Literal["keep", "abort", "wait"]
"""The modes of a pause, as in vLLM: hold tokens, end answers, or wait for them to end. New calls wait in all three."""
MODES: Final[tuple[Mode, ...]] = ("abort", "wait", "keep")
DEFAULT: Final = "default"
"""The label of weights that were not published."""


class Abortable(Protocol):
    """An answer that is being sampled."""

    @property
    def request_id(self) -> str:
        """The request id that the client sent."""
        ...

    def abort(self) -> None:
        """End the answer with the finish reason `abort`."""
        ...


class Gate(Struct):
    """A place where steps of a script wait."""

    passes: int = 0
    """The number of waits that may end at once, granted before they began."""
    opened: bool = False
    """Whether all waits end at once."""
    waiting: int = 0

    def take(self) -> bool:
        """Pass, if that is allowed now."""
        if not self.opened and not self.passes:
            return False
        self.passes -= not self.opened
        return True


class Control:
    """The state of an engine apart from its answers. `until` waits for a change of it."""

    def __init__(self) -> None:
        self.label = DEFAULT
        """The label of the next token, also in open answers."""
        self.weights = 0
        """A number that identifies the weights. 0: those of the start."""
        self.paused: Mode | None = None
        self.gates: Final[defaultdict[str, Gate]] = defaultdict(Gate)
        self._answers: Final[set[Abortable]] = set()
        self._changed = asyncio.Event()

    @property
    def holding(self) -> bool:
        """Whether tokens are held back now."""
        return self.paused == "keep"

    @property
    def sampling(self) -> bool:
        """Whether there are open answers that make progress."""
        return bool(self._answers) and not self.holding

    def load(self, location: str, origin: str) -> None:
        """Exchange the weights: the distribution of every token sampled from now on. Those at `origin` are the ones of the start."""
        self.weights = 0 if location == origin else crc32(location.encode())

    async def pause(self, mode: Mode) -> None:
        """Pause. With `wait`, return when no answer is open."""
        self.paused = mode
        if mode == "abort":
            self.abort(())
        if mode == "wait":
            await self.until(lambda: not self._answers)

    def resume(self) -> None:
        """Resume sampling."""
        self.paused = None
        self.notify()

    async def enter(self, answers: Iterable[Abortable]) -> None:
        """Register answers. New ones wait for the end of a pause."""
        if self.paused is not None:
            await self.until(lambda: self.paused is None)
        self._answers.update(answers)

    def leave(self, answers: Iterable[Abortable]) -> None:
        """Unregister answers that ended."""
        self._answers.difference_update(answers)
        if self.paused == "wait":
            self.notify()

    def abort(self, request_ids: tuple[str, ...]) -> int:
        """End open answers, all if none is named; return their number."""
        ended = [answer for answer in self._answers if not request_ids or answer.request_id in request_ids]
        for answer in ended:
            answer.abort()
        self.notify()
        return len(ended)

    async def at(self, name: str, given_up: Callable[[], bool]) -> None:
        """Wait at a gate."""
        gate = self.gates[name]
        gate.waiting += 1
        self.notify()
        try:
            await self.until(lambda: given_up() or gate.take())
        finally:
            gate.waiting -= 1

    def go(self, gate: str, times: int | None) -> None:
        """Let this many waits at a gate pass. None: all from now on."""
        if times is None:
            self.gates[gate].opened = True
        else:
            self.gates[gate].passes += times
        self.notify()

    def notify(self) -> None:
        """Wake up every waiter."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def until(self, ready: Callable[[], bool], *, seconds: float | None = None) -> None:
        """Wait until `ready`, or until the time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not ready():
                    await self._changed.wait()
