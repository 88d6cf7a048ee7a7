"""Predicts what a closed load gets from several gateways on one machine: processes of one thread each, which share its cores.

A call passes client, relay, gateway, engine, gateway and broker, one after the other; each is busy for the CPU that was measured with one
gateway. Busy processes share the cores equally, as a fair operating system lets them.
"""

import random
from collections import deque
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

SEED: Final = 3
BROKER_THREADS: Final = 4
SPREAD: Final = (0.5, 1.5)
"""The range of single pieces of work, as multiples of their mean."""
ROUNDING: Final = 1e-9


class Machine(Struct, frozen=True, kw_only=True):
    """The measurements of one gateway's run. CPU is in milliseconds a call."""

    cores: int
    client_ms: float
    relay_ms: float
    gateway_ms: float
    engine_ms: float
    broker_ms: float
    behind_ms: float
    """The CPU of reconstructors, which work beside the calls."""
    waits_ms: float
    """The time that a call waits without using CPU: disks and timers of a commit."""


class Process:
    """A process, or a thread of one: it does one piece of work at a time, in order."""

    def __init__(self) -> None:
        self.queue: deque[tuple[float, Call | None]] = deque()
        """Milliseconds of work, and the call that goes on after it."""
        self.left = 0.0
        """The rest of the first piece."""


class Call:
    """A call on its way."""

    def __init__(self, stages: Sequence[tuple[Process | None, float]]) -> None:
        """`stages`: by whom and for how many milliseconds; None: it only waits."""
        self.stages = deque(stages)


def predict(machine: Machine, shares: Sequence[float], *, at_once: int, calls: int) -> float:
    """Return calls a second of so many clients, each of which asks again at once. `shares`: each gateway's share of the sessions."""
    return Simulation(machine, shares).run(at_once=at_once, calls=calls)


class Simulation:
    """The processes, the calls on their way, and the time in milliseconds."""

    def __init__(self, machine: Machine, shares: Sequence[float]) -> None:
        self._machine = machine
        self._shares = shares
        self._drawn = random.Random(SEED)  # noqa: S311 - a seeded model
        self._client, self._relay, self._engine = Process(), Process(), Process()
        self._gateways = [Process() for _ in shares]
        self._behind = [Process() for _ in shares]
        self._broker = [Process() for _ in range(BROKER_THREADS)]
        self._processes = [self._client, self._relay, self._engine, *self._gateways, *self._behind, *self._broker]
        self._waiting: list[tuple[float, Call]] = []
        self._now = 0.0
        self._done = 0

    def run(self, *, at_once: int, calls: int) -> float:
        """Return calls a second."""
        for _ in range(at_once):
            self._begin()
        while self._done < calls:
            for call in self._step():
                self._go_on(call)
        return self._done / self._now * 1000

    def _begin(self) -> None:
        machine, number = self._machine, self._drawn.choices(range(len(self._shares)), self._shares)[0]
        gateway = self._gateways[number]
        self._behind[number].queue.append((machine.behind_ms, None))
        stages = [
            (self._client, machine.client_ms / 2),
            (self._relay, machine.relay_ms / 2),
            (gateway, machine.gateway_ms / 2),
            (self._engine, machine.engine_ms),
            (gateway, machine.gateway_ms / 2),
            (self._drawn.choice(self._broker), machine.broker_ms),
            (None, machine.waits_ms),
            (self._relay, machine.relay_ms / 2),
            (self._client, machine.client_ms / 2),
        ]
        self._go_on(Call(stages))

    def _go_on(self, call: Call) -> None:
        if not call.stages:
            self._done += 1
            self._begin()
            return
        process, milliseconds = call.stages.popleft()
        milliseconds *= self._drawn.uniform(*SPREAD)
        if process is None:
            self._waiting.append((self._now + milliseconds, call))
        else:
            process.queue.append((milliseconds, call))

    def _step(self) -> list[Call]:
        """Pass the time until something ends; return the calls that go on."""
        busy = [process for process in self._processes if process.queue]
        for process in busy:
            process.left = process.left or process.queue[0][0]
        rate = min(1.0, self._machine.cores / len(busy)) if busy else 0.0
        step = min([process.left / rate for process in busy] + [at - self._now for at, _ in self._waiting])
        self._now += step
        over = [call for at, call in self._waiting if at <= self._now]
        self._waiting = [(at, call) for at, call in self._waiting if at > self._now]
        for process in busy:
            process.left = max(0.0, process.left - step * rate)
            if process.left < ROUNDING:
                process.left = 0.0
                _, call = process.queue.popleft()
                over += [] if call is None else [call]
        return over
