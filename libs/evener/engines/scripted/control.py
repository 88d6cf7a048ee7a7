"""What is done to a running engine from outside: pauses, weight versions, gates, aborts."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Literal, Protocol
from zlib import crc32

from msgspec import Struct

Mode = Literal["keep", "abort", "wait"]
"""Of a pause, as vLLM has them: tokens are held; answers are ended; answers end by themselves. New calls wait in all three."""
MODES: Final[tuple[Mode, ...]] = ("abort", "wait", "keep")
DEFAULT: Final = "default"
"""The label of weights that nobody published."""


class Abortable(Protocol):
    """An answer that is being sampled."""

    @property
    def request_id(self) -> str:
        """What the client calls it."""
        ...

    def abort(self) -> None:
        """End it with the finish reason `abort`."""
        ...


class Gate(Struct):
    """Where steps of a script wait."""

    passes: int = 0
    """Waits that may end at once: given before anybody waited."""
    opened: bool = False
    """Nobody waits any more."""
    waiting: int = 0

    def take(self) -> bool:
        """Pass, if that is allowed now."""
        if not self.opened and not self.passes:
            return False
        self.passes -= not self.opened
        return True


class Control:
    """The state of an engine beside its answers. Whoever waits for a change of it uses `until`."""

    def __init__(self) -> None:
        self.label = DEFAULT
        self.weights = 0
        """A number that stands for them; 0: those of the start."""
        self.paused: Mode | None = None
        self.gates: Final[defaultdict[str, Gate]] = defaultdict(Gate)
        self._answers: Final[set[Abortable]] = set()
        self._changed = asyncio.Event()

    @property
    def holding(self) -> bool:
        """No token leaves now."""
        return self.paused == "keep"

    @property
    def sampling(self) -> bool:
        """Answers are open, and go on."""
        return bool(self._answers) and not self.holding

    def load(self, location: str, origin: str) -> None:
        """Exchange the weights: the distribution of every token sampled from now on. Those of `origin` are the ones of the start."""
        self.weights = 0 if location == origin else crc32(location.encode())

    def publish(self, label: str) -> None:
        """Sample under another label from the next token on, also in open answers."""
        self.label = label

    async def pause(self, mode: Mode) -> None:
        """Pause; with `wait`, return when no answer is open."""
        self.paused = mode
        if mode == "abort":
            self.abort(())
        if mode == "wait":
            await self.until(lambda: not self._answers)

    def resume(self) -> None:
        """Go on."""
        self.paused = None
        self.notify()

    async def enter(self, answers: Iterable[Abortable]) -> None:
        """Let answers begin; new ones wait for the end of a pause."""
        if self.paused is not None:
            await self.until(lambda: self.paused is None)
        self._answers.update(answers)

    def leave(self, answers: Iterable[Abortable]) -> None:
        """Take note that answers ended."""
        self._answers.difference_update(answers)
        if self.paused == "wait":
            self.notify()

    def abort(self, request_ids: tuple[str, ...]) -> int:
        """End open answers, all if none is named; return how many."""
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
        """Let waits at a gate pass: so many, or None: all from now on."""
        if times is None:
            self.gates[gate].opened = True
        else:
            self.gates[gate].passes += times
        self.notify()

    def notify(self) -> None:
        """Wake up whoever waits for a change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def until(self, ready: Callable[[], bool], *, seconds: float | None = None) -> None:
        """Wait until `ready`, or until the time is up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not ready():
                    await self._changed.wait()
