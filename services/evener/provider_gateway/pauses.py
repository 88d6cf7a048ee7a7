"""Tracks the pauses of an engine, such as for new weights. They are not the agent's time, and relays are told of them as they pass."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from evener.engines.port import EngineError, WeightControl
from evener.engines.vllm_weights import WeightsOutOfReach
from evener.proto.relay import Waiting

LOOK_SECONDS: Final = 0.5
"""An engine that sends nothing for this long is asked whether it is paused, at this interval."""


Tell = Callable[[Waiting], None]
"""Tells a call that a pause keeps it waiting."""


class Pauses:
    """The pauses of one engine. A pause counts from the last token before it to the first token after it.

    Evener never pauses an engine whose weights it does not control; whether somebody else does cannot be known.
    """

    def __init__(self, control: WeightControl | None) -> None:
        self._control = control
        self._calls: dict[Tell, float] = {}
        """The calls that sample now, and when they began, by the loop's clock."""
        self._known_until = 0.0
        """Up to this time the engine sampled, or its calls were told that it did not."""
        self._paused = False
        self._watching: asyncio.Task[None] | None = None

    def heard(self) -> None:
        """Note that a token arrived."""
        now = asyncio.get_running_loop().time()
        if self._paused:
            self._tell(now)
        self._paused, self._known_until = False, now

    @contextmanager
    def told_to(self, tell: Tell) -> Iterator[None]:
        """Tell a call of pauses while it samples."""
        if self._control is not None and self._watching is None:
            self._watching = asyncio.create_task(self._watch(self._control))
        self._calls[tell] = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            del self._calls[tell]

    async def are_on(self) -> bool:
        """Return whether the engine is paused now, according to itself."""
        if self._control is None:
            return False
        with suppress(EngineError):
            return await self._control.paused()
        return False

    async def aclose(self) -> None:
        """Stop checking."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait({self._watching})
        if self._control is not None:
            await self._control.aclose()

    async def _watch(self, control: WeightControl) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if not self._calls or loop.time() - self._known_until < LOOK_SECONDS:
                continue
            asked = loop.time()
            try:
                paused = await control.paused()
            except WeightsOutOfReach:
                return
            except EngineError:  # its calls will hear of that by themselves
                continue
            if self._known_until <= asked:  # no token came meanwhile
                now = loop.time()
                if paused:
                    self._tell(now)
                self._paused, self._known_until = paused, now

    def _tell(self, now: float) -> None:
        for tell, began in self._calls.items():
            tell(Waiting(seconds=now - max(began, self._known_until)))
