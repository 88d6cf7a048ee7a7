"""make bench-scale: what more processes do to the same load, and what a whole session costs over all services, on Kafka.

1, 2 and 4 gateways, with as many reconstructors behind them, get the same closed load through relays: who asks next asks at once. All
processes share the machine, so that throughput rises until its cores are busy; what has to stay flat is the cost of a call.
"""

import argparse
import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
import uvloop
from msgspec import Struct, structs
from proofs.bench.gateway import tokenizers
from proofs.bench.gateway_arms import TOKENS
from proofs.bench.gateway_load import TURNS, Crowd, Http, packed
from proofs.bench.gateway_parts import GatewayAt, Policy, broker, engine, gateway, program, relays
from proofs.bench.whole_sessions import measure_sessions
from proofs.figures import Row, children, cpu_seconds, report, show
from proofs.scaling.shared_cores import Machine, predict

from evener.proto.spec import Streaming

PROCESSES: Final = (1, 2, 4)
PARTITIONS: Final = 16
CALLS: Final = 1200
WARM_CALLS: Final = 100
AT_ONCE: Final = 24
COMMIT_WAITS_MS: Final = 3.0
"""What a commit waits for disk and timers, without CPU: its p50 at few calls a second, by `make bench-bus`."""
PREDICTED_CALLS: Final = 3000
DIVIDED_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.1
CLOSED: Final = re.compile(rb'evener_calls_ended_total\{result="closed"\} ([0-9.e+]+)')
OWNED: Final = re.compile(rb"evener_partitions_owned ([0-9.e+]+)")


class Scaled(Struct, frozen=True, kw_only=True):
    """What some gateways, and as many reconstructors, did."""

    calls_per_s: float
    cpu_ms_per_call: float
    """The milliseconds of CPU that all gateways together use for a call."""
    shares: tuple[float, ...]
    """Each gateway's share of the calls, the largest first."""
    partitions: tuple[int, ...]
    """The number of partitions that each gateway served."""
    others_cpu_ms_per_call: dict[str, float]
    """The same of each process that shares the machine with them, by its name."""
    predicted_calls_per_s: float | None = None
    """What `proofs.scaling.shared_cores` predicts from the run with one gateway. None: this is that run."""


async def measure(http: Http, folder: Path, policy: Policy, servers: str, *, count: int, calls: int) -> Scaled:
    """Start so many gateways and reconstructors on topics of their own, and send the load through relays."""
    bus = f"kafka://{servers}?prefix=scale{count}."
    state = folder / f"state{count}"
    async with AsyncExitStack() as stack:
        engine_at = await stack.enter_async_context(engine(http, _made(folder / f"e{count}"), policy))
        gateways: list[GatewayAt] = []
        for number in range(count):
            opening = gateway(
                http,
                _made(folder / f"g{count}-{number}"),
                policy,
                bus,
                engine_at,
                state=state,
                instance=f"g{number}",
                partitions=PARTITIONS,
            )
            gateways.append(await stack.enter_async_context(opening))
        reconstructors = [
            await stack.enter_async_context(_reconstructor(folder, bus, state, f"r{count}-{number}")) for number in range(count)
        ]
        await _divided(http, gateways)
        relays_at = await stack.enter_async_context(relays(http, _made(folder / f"r{count}"), bus))
        names = [f"scale-{count}-{number}" for number in range(AT_ONCE + (calls + WARM_CALLS) // TURNS + 1)]
        started = await gateways[0].start(names, Streaming.BUFFERED)
        crowd = Crowd(http, iter(await relays_at.agents(started, TOKENS)), active=AT_ONCE)
        await packed(crowd.one, at_once=AT_ONCE, calls=WARM_CALLS)
        pids = {
            "client": [os.getpid()],
            "broker": [java for script in children(os.getpid()) for java in children(script)],  # nobody else has children
            "engine": [engine_at.pid],
            "relays": [relays_at.pid],
            "reconstructors": reconstructors,
            "gateways": [one.pid for one in gateways],
        }
        before, closed_before = _used(pids), await _closed(http, gateways)
        began = time.perf_counter()
        await packed(crowd.one, at_once=AT_ONCE, calls=calls)
        seconds = time.perf_counter() - began
        after, closed = _used(pids), await _closed(http, gateways)
        served = [await _partitions(http, one) for one in gateways]
    each = {name: 1000 * (after[name] - before[name]) / calls for name in pids}
    closed = [now - then for now, then in zip(closed, closed_before, strict=True)]
    return Scaled(
        calls_per_s=calls / seconds,
        cpu_ms_per_call=each.pop("gateways"),
        shares=tuple(sorted((each_closed / sum(closed) for each_closed in closed), reverse=True)),
        partitions=tuple(sorted(served, reverse=True)),
        others_cpu_ms_per_call=each,
    )


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _used(pids: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Return the CPU seconds of groups of processes."""
    return {name: sum(map(cpu_seconds, group)) for name, group in pids.items()}


async def _closed(http: Http, gateways: Sequence[GatewayAt]) -> list[float]:
    """Return how many calls each gateway has closed."""
    return [_metric(await http.get(f"{one.url}/metrics"), CLOSED) for one in gateways]


async def _partitions(http: Http, gateway_at: GatewayAt) -> int:
    return int(_metric(await http.get(f"{gateway_at.url}/metrics"), OWNED))


def _metric(page: bytes, pattern: re.Pattern[bytes]) -> float:
    found = pattern.search(page)
    return float(found[1]) if found else 0.0


async def _divided(http: Http, gateways: Sequence[GatewayAt]) -> None:
    """Wait until the partitions are served, and divided as evenly as they can be."""
    fair = [PARTITIONS // len(gateways) + (number < PARTITIONS % len(gateways)) for number in range(len(gateways))]
    async with asyncio.timeout(DIVIDED_SECONDS):
        while sorted([await _partitions(http, one) for one in gateways], reverse=True) != fair:  # noqa: ASYNC110 - of other processes
            await asyncio.sleep(POLL_SECONDS)


@asynccontextmanager
async def _reconstructor(folder: Path, bus: str, state: Path, name: str) -> AsyncIterator[int]:
    """Run a reconstructor; yield its process id."""
    options = {"bus": bus, "state": str(state), "instance": name, "partitions": str(PARTITIONS)}
    words = [word for key, value in options.items() for word in (f"--{key}", value)]
    async with program(name, folder, [sys.executable, "-m", "evener.reconstructor", *words]) as (_, pid):
        yield pid


def predicted(one: Scaled, found: Scaled) -> float:
    """Return the calls a second that the run with one gateway lets expect of more."""
    each = one.others_cpu_ms_per_call
    machine = Machine(
        cores=os.cpu_count() or 1,
        client_ms=each["client"],
        relay_ms=each["relays"],
        gateway_ms=one.cpu_ms_per_call,
        engine_ms=each["engine"],
        broker_ms=each["broker"],
        behind_ms=each["reconstructors"],
        waits_ms=COMMIT_WAITS_MS,
    )
    return predict(machine, found.shares, at_once=AT_ONCE, calls=PREDICTED_CALLS)


def rows(scaled: Mapping[int, Scaled]) -> list[Row]:
    """Return a line for each number of processes."""
    return [
        {
            "gateways": count,
            "calls_per_s": one.calls_per_s,
            "predicted": one.predicted_calls_per_s,
            "cpu_ms_per_call": one.cpu_ms_per_call,
            "shares": ", ".join(f"{share:.2f}" for share in one.shares),
            "partitions": ", ".join(map(str, one.partitions)),
            **{f"{name}_cpu_ms": cpu for name, cpu in one.others_cpu_ms_per_call.items()},
        }
        for count, one in scaled.items()
    ]


async def main(calls: int) -> None:
    """Measure, and leave outputs/bench-scale.json."""
    policy = Policy(source=f"hf:{await tokenizers() / 'qwen3'}", template=None)
    scaled: dict[int, Scaled] = {}
    with tempfile.TemporaryDirectory(prefix="evener-scale-") as name:
        folder = Path(name)
        async with Http() as http, broker(folder) as servers:
            for count in PROCESSES:
                sys.stderr.write(f"{count} gateways ...\n")
                found = await measure(http, folder, policy, servers, count=count, calls=calls)
                scaled[count] = structs.replace(found, predicted_calls_per_s=predicted(scaled[1], found)) if scaled else found
            sys.stderr.write("whole sessions ...\n")
            sessions = await measure_sessions(_made(folder / "whole"), servers)
    told = msgspec.to_builtins({"processes": {str(count): one for count, one in scaled.items()}, "sessions": sessions})
    report("bench-scale", "More processes, the same load", rows(scaled), cpu_s_per_session=sessions.cpu_s_per_session, **told)
    show("A session of 10 calls over all services", [{"service": name, "cpu_s": cpu} for name, cpu in sessions.cpu_s_by_service.items()])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="make bench-scale")
    parser.add_argument("--calls", type=int, default=CALLS, help="that each number of gateways gets")
    uvloop.run(main(parser.parse_args().calls))
