"""What strikes a cluster: signals to members of every service and to brokers, and a blob store that is away or full."""

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from typing import Final

from msgspec import Struct
from proofs.chaos.cluster import SCHEDULER, SERVICES, Cluster, Member

FROZEN_SECONDS: Final = 9.0
"""Longer than the session time-out of the consumer groups, 6 s."""
AWAY_SECONDS: Final = 30.0
PASSES_SECONDS: Final = 60.0
"""The longest wait for a member to pass a point."""
PAUSE_SECONDS: Final = 2.0
"""The longest pause before what was ended is started again."""


class Strike(Struct, frozen=True, kw_only=True):
    """A fault that struck."""

    kind: str
    at: float
    """Unix seconds."""
    service: str = ""
    """The service that was struck. Empty: something that all use."""
    instance_id: str = ""
    inside: bool = False
    """Whether it struck at a point where a transaction or a grading is open."""


Struck = Callable[[Cluster, random.Random], Awaitable[Strike]]
"""Strikes, and returns when what was struck is there again."""


def signalled(service: str, number: signal.Signals) -> Struck:
    """Return a strike by a signal at a member of a service: a frozen one goes on, a dead one is started again."""

    async def strike(cluster: Cluster, drawn: random.Random) -> Strike:
        member = await victim(cluster, service, drawn)
        at = time.time()
        if number is signal.SIGSTOP:
            member.tell(number)
            await asyncio.sleep(FROZEN_SECONDS)
            member.tell(signal.SIGCONT)
        else:
            await member.end(number)
            await asyncio.sleep(drawn.uniform(0, PAUSE_SECONDS))
            await member.start()
        await cluster.recovers(member)
        return Strike(kind=f"{number.name} {service}", at=at, service=service, instance_id=member.instance_id)

    return strike


def frozen_at(service: str, point: str) -> Struck:
    """Return a strike in the middle of a transaction: a member freezes itself there, and goes on when others have taken over."""

    async def strike(cluster: Cluster, drawn: random.Random) -> Strike:
        member = await victim(cluster, service, drawn)
        while not await _freezes(cluster, member, point):
            pass
        at = time.time()
        await asyncio.sleep(FROZEN_SECONDS)
        member.tell(signal.SIGCONT)
        await cluster.recovers(member)
        return Strike(kind=f"SIGSTOP at {point}", at=at, service=service, instance_id=member.instance_id, inside=True)

    return strike


async def _freezes(cluster: Cluster, member: Member, point: str) -> bool:
    """Start a member again so that it freezes itself at a point; return whether it came there in time."""
    await member.end(signal.SIGKILL)
    await member.start({"EVENER_FAULTS": f"freeze@{point}"})
    rivals = [other for other in cluster.of(SCHEDULER) if other is not member] if member.service == SCHEDULER else []
    for rival in rivals:  # a standby writes nothing: it has to become the active one
        await rival.end(signal.SIGKILL)
    try:
        async with asyncio.timeout(PASSES_SECONDS):
            await member.stopped()
    except TimeoutError:
        return False
    finally:
        for rival in rivals:
            await rival.start()
    return True


async def victim(cluster: Cluster, service: str, drawn: random.Random) -> Member:
    """Return a member that serves. Of the schedulers it is the active one: a standby has nothing to lose."""
    while True:
        ready = [member for member in cluster.of(service) if await cluster.is_ready(member)]
        if ready:
            return drawn.choice(ready)
        await asyncio.sleep(PAUSE_SECONDS)


def broker_killed(kind: str, seconds: float) -> Struck:
    """Return the death of a broker, which comes back with its data after so many seconds."""

    async def strike(cluster: Cluster, drawn: random.Random) -> Strike:
        broker = drawn.choice(cluster.kafka.all)
        at = time.time()
        await broker.kill()
        await asyncio.sleep(seconds)
        await broker.start()
        await broker.accepts()
        return Strike(kind=kind, at=at)

    return strike


def broker_frozen(kind: str, seconds: float) -> Struck:
    """Return a broker that does nothing for so many seconds."""

    async def strike(cluster: Cluster, drawn: random.Random) -> Strike:
        broker = drawn.choice(cluster.kafka.all)
        at = time.time()
        broker.tell(signal.SIGSTOP)
        await asyncio.sleep(seconds)
        broker.tell(signal.SIGCONT)
        return Strike(kind=kind, at=at)

    return strike


async def leaders_moved(cluster: Cluster, drawn: random.Random) -> Strike:
    """Stop a broker in good order: its partitions get other leaders. Then start it again."""
    broker = drawn.choice(cluster.kafka.all)
    at = time.time()
    broker.tell(signal.SIGTERM)
    await broker.ended()
    await asyncio.sleep(PAUSE_SECONDS)
    await broker.start()
    await broker.accepts()
    return Strike(kind="leaders moved", at=at)


def blobs_away(seconds: float) -> Struck:
    """Return a blob store that is not mounted for so many seconds."""

    async def strike(cluster: Cluster, drawn: random.Random) -> Strike:
        del drawn
        elsewhere = cluster.blobs.with_name("blobs-away")
        at = time.time()
        cluster.blobs.rename(elsewhere)
        await asyncio.sleep(seconds)
        elsewhere.rename(cluster.blobs)
        return Strike(kind="blobs away", at=at)

    return strike


SIGNALS: Final = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)
AT_MEMBERS: Final[dict[str, Struck]] = {f"{number.name} {name}": signalled(name, number) for number in SIGNALS for name in SERVICES}
"""Signals to members, by kind."""
INSIDE: Final[dict[str, Struck]] = {
    f"SIGSTOP at {point}": frozen_at(service, point)
    for service, point in (
        ("provider_gateway", "gateway.commit"),
        ("trainer_bridge", "bridge.in_transaction"),
        ("evaluator", "evaluator.graded"),
        ("scheduler", "scheduler.dispatched"),
        ("reconstructor", "reconstructor.sealed_read"),
    )
}
"""Freezes of members in the middle of what they write, by kind."""
AT_ALL: Final[dict[str, Struck]] = {
    "SIGKILL broker": broker_killed("SIGKILL broker", 4.0),
    "SIGSTOP broker": broker_frozen("SIGSTOP broker", 8.0),
    "blobs away": blobs_away(AWAY_SECONDS),
}
"""What strikes everything at once, by kind."""
AT_THREE: Final[dict[str, Struck]] = {
    "SIGKILL one broker": broker_killed("SIGKILL one broker", 4.0),
    "SIGSTOP one broker": broker_frozen("SIGSTOP one broker", 8.0),
    "leaders moved": leaders_moved,
}
"""What strikes one of three brokers, by kind."""
