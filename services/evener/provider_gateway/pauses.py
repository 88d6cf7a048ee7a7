"""Waits that are not the agent's time, told to relays as they pass: pauses of an engine, as for new weights, and slow commits."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Final, Protocol

from evener.engines.port import EngineError, WeightControl
from evener.engines.vllm_weights import WeightsOutOfReach
from evener.proto.relay import Waiting

LOOK_SECONDS: Final = 0.5
"""An engine from which nothing came for so long is asked whether it is paused, so often."""


class Listener(Protocol):
    """Whom a pause keeps waiting."""

    def put(self, step: Waiting, /) -> None: ...


@asynccontextmanager
async def waits_told(call: Listener) -> AsyncIterator[None]:
    """Tell a call, as it passes, of the time that this block takes beyond a moment: of a log or a blob store that cannot be written."""
    telling = asyncio.create_task(_tell_for_ever(call))
    try:
        yield
    finally:
        telling.cancel()


async def _tell_for_ever(call: Listener) -> None:
    loop = asyncio.get_running_loop()
    told = loop.time()
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        now = loop.time()
        call.put(Waiting(seconds=now - told))
        told = now


class Pauses:
    """Of one engine. A pause counts from the last token before it to the first one after it.

    An engine without a control of its weights is never paused by Evener; whether somebody else pauses it cannot be known.
    """

    def __init__(self, control: WeightControl | None) -> None:
        self._control = control
        self._calls: dict[Listener, float] = {}
        """Those that sample now, and when they began; by the loop's clock."""
        self._known_until = 0.0
        """Up to here the engine sampled, or its calls were told that it did not."""
        self._paused = False
        self._watching: asyncio.Task[None] | None = None

    def heard(self) -> None:
        """Note that a token came."""
        now = asyncio.get_running_loop().time()
        if self._paused:
            self._tell(now)
        self._paused, self._known_until = False, now

    @contextmanager
    def told_to(self, call: Listener) -> Iterator[None]:
        """Tell a call of pauses while it samples."""
        if self._control is not None and self._watching is None:
            self._watching = asyncio.create_task(self._watch(self._control))
        self._calls[call] = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            del self._calls[call]

    async def are_on(self) -> bool:
        """Return whether the engine is paused now, as far as it says."""
        if self._control is None:
            return False
        with suppress(EngineError):
            return await self._control.paused()
        return False

    async def aclose(self) -> None:
        """Look no more."""
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
        for call, began in self._calls.items():
            call.put(Waiting(seconds=now - max(began, self._known_until)))
