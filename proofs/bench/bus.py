"""make bench-bus: how fast and how soon records are durable, on both buses, beside the bare parts that they are made of.

Latencies are of awaited operations, in milliseconds; rates in records a second. The peers ran in the same process, on the same
disk and broker: a bare SQLite insert with a synced commit, and a bare idempotent aiokafka producer.
"""

import asyncio
import secrets
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from pathlib import Path

import msgspec
import uvloop
from aiokafka import AIOKafkaProducer
from proofs.bench.bus_rates import BusFigures, measure_rates
from proofs.bench.stages import StageFigures, measure_stages
from proofs.figures import Row, percentile, report, show

from evener.bus.embedded import open_embedded
from evener.bus.kafka import open_kafka
from evener.bus.port import Bus, Outgoing
from evener.proto.topics import TOPICS, Topic

KAFKA = Path(__file__).parents[2] / "scripts" / "kafka.py"
SMALL, CALL = 200, 2048
SINGLES, LANES, LANE_RECORDS = 500, 64, 100
PACED_SECONDS = 5.0
TURN_ROUNDS, TURN_PER_SECOND = 3, 50
RATE_PARTITIONS = 16
FEW = {name: TOPICS[name] for name in (Topic.SESSIONS, Topic.BUILT)}
Send = Callable[[int], Awaitable[object]]


async def one_after_another(send: Send) -> tuple[list[float], float]:
    """Return the seconds of each of SINGLES awaited sends, and of all."""
    taken = []
    start = time.perf_counter()
    for number in range(SINGLES):
        before = time.perf_counter()
        await send(number)
        taken.append(time.perf_counter() - before)
    return taken, time.perf_counter() - start


async def lanes(send: Send) -> tuple[list[float], float]:
    """The same for LANES tasks that each await LANE_RECORDS sends."""
    taken: list[float] = []

    async def lane(first: int) -> None:
        for number in range(first, first + LANE_RECORDS):
            before = time.perf_counter()
            await send(number)
            taken.append(time.perf_counter() - before)

    start = time.perf_counter()
    await asyncio.gather(*(lane(number * LANE_RECORDS) for number in range(LANES)))
    return taken, time.perf_counter() - start


async def paced(send: Send, per_second: int) -> tuple[list[float], float]:
    """The same for sends that start at a steady rate, whether or not the last one is through."""
    taken: list[float] = []

    async def one(number: int) -> None:
        before = time.perf_counter()
        await send(number)
        taken.append(time.perf_counter() - before)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(int(PACED_SECONDS * per_second)):
            await asyncio.sleep(max(0.0, start + number / per_second - time.perf_counter()))
            group.create_task(one(number))
    return taken, time.perf_counter() - start


def row(bus: str, what: str, measured: tuple[list[float], float], cpu_seconds: float) -> Row:
    """Return a line of the table."""
    taken, seconds = measured
    return {
        "bus": bus,
        "what": what,
        "records_per_s": len(taken) / seconds,
        "p50_ms": percentile(taken, 0.5) * 1000,
        "p99_ms": percentile(taken, 0.99) * 1000,
        "cpu_ms_each": cpu_seconds / len(taken) * 1000,
    }


async def measure(bus: str, what: str, work: Awaitable[tuple[list[float], float]]) -> Row:
    """Run one measurement and return its line, with this process's CPU time."""
    before = time.process_time()
    measured = await work
    return row(bus, what, measured, time.process_time() - before)


async def bench_bus(name: str, bus: Bus) -> list[Row]:
    """Measure one bus."""
    producer = await bus.producer("gateway-0")
    small, call = secrets.token_bytes(SMALL), secrets.token_bytes(CALL)

    async def send(number: int) -> None:
        await bus.send([Outgoing(topic=Topic.SESSIONS, key=f"s{number}", value=small)])

    async def commit(number: int) -> None:
        await producer.commit([Outgoing(topic=Topic.BUILT, key=f"s{number}", value=call)])

    await lanes(send)  # a broker's first seconds are those of its compiler
    await one_after_another(commit)
    read_from = {partition: await bus.end(Topic.BUILT, partition) for partition in range(bus.partitions_of(Topic.BUILT))}
    rows = [
        await measure(name, f"send one by one, {SMALL} B", one_after_another(send)),
        await measure(name, f"send, {LANES} lanes, {SMALL} B", lanes(send)),
        await measure(name, f"commit one by one, {CALL} B", one_after_another(commit)),
        await measure(name, f"commit, 100/s, {CALL} B", paced(commit, 100)),
        await measure(name, f"commit, 300/s, {CALL} B", paced(commit, 300)),
        await measure(name, f"commit, {LANES} lanes, {CALL} B", lanes(commit)),
    ]
    before, cpu, count = time.perf_counter(), time.process_time(), 0
    for partition, start in read_from.items():
        async for _ in bus.read(Topic.BUILT, partition, start):
            count += 1
    rate = count / (time.perf_counter() - before)
    cpu_each = (time.process_time() - cpu) / count * 1000
    return [*rows, {"bus": name, "what": f"read back, {CALL} B", "records_per_s": rate, "cpu_ms_each": cpu_each}]


async def bench_sqlite(folder: Path) -> list[Row]:
    """The embedded bus's peer: the same file settings, a commit and a sync for each insert."""
    connection = sqlite3.connect(folder / "peer.sqlite", isolation_level=None)
    connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; CREATE TABLE t (id INTEGER PRIMARY KEY, value BLOB)")
    rows = []
    for size in (SMALL, CALL):
        value = secrets.token_bytes(size)

        async def insert(_: int, value: bytes = value) -> None:
            connection.execute("INSERT INTO t (value) VALUES (?)", (value,))

        rows.append(await measure("bare sqlite", f"insert one by one, {size} B", one_after_another(insert)))
    connection.close()
    return rows


async def bench_aiokafka(servers: str, prefix: str) -> list[Row]:
    """Kafka's peer: an idempotent producer, all replicas, no transaction."""
    value = secrets.token_bytes(SMALL)
    async with AIOKafkaProducer(bootstrap_servers=servers, enable_idempotence=True) as producer:

        async def send(number: int) -> None:
            await producer.send_and_wait(prefix + Topic.SESSIONS, value=value, key=b"s%d" % number)

        return [
            await measure("bare aiokafka", f"send one by one, {SMALL} B", one_after_another(send)),
            await measure("bare aiokafka", f"send, {LANES} lanes, {SMALL} B", lanes(send)),
        ]


async def bench_turns(bus: Bus) -> list[Row]:
    """Commit by one transactional id, and by two in turn, a round of each: how much of a commit is the wait for the markers of the last?

    Commits follow each other, as the order of a partition wants it.
    """
    value, order = secrets.token_bytes(CALL), asyncio.Lock()
    producers = [await bus.producer(f"turn-{number}") for number in range(2)]
    rounds: dict[str, list[tuple[list[float], float, float]]] = defaultdict(list)

    async def commit(ids: int, number: int) -> None:
        async with order:
            await producers[number % ids].commit([Outgoing(topic=Topic.BUILT, key=f"s{number}", value=value)])

    for _ in range(TURN_ROUNDS):
        for ids in (1, 2):
            send = partial(commit, ids)
            for what, begin in (("one by one", one_after_another), (f"{TURN_PER_SECOND}/s", partial(paced, per_second=TURN_PER_SECOND))):
                before = time.process_time()
                measured = await begin(send)
                name = f"commit {what}, {CALL} B, {ids} transactional id{'s in turn' * (ids - 1)}"
                rounds[name].append((*measured, time.process_time() - before))
    return [
        row("kafka", name, (list(chain.from_iterable(taken)), sum(seconds)), sum(cpu))
        for name, (taken, seconds, cpu) in ((name, zip(*parts, strict=True)) for name, parts in rounds.items())
    ]


@asynccontextmanager
async def broker() -> AsyncIterator[str]:
    """Run a broker; yield its address."""
    process = await asyncio.create_subprocess_exec(sys.executable, str(KAFKA), "run", "--with-parent", stdout=subprocess.PIPE)
    assert process.stdout
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.terminate()
        await process.wait()


async def main() -> None:
    """Measure everything that is here."""
    rows: list[Row] = []
    figures: dict[str, BusFigures] = {}
    stages: StageFigures | None = None
    with tempfile.TemporaryDirectory(prefix="evener-bench-", dir=".") as folder:
        async with open_embedded(Path(folder) / "rows", FEW) as bus:
            rows += await bench_bus("embedded", bus)
        async with open_embedded(Path(folder) / "rates", FEW, RATE_PARTITIONS) as bus:
            figures["embedded"] = await measure_rates(bus)
        rows += await bench_sqlite(Path(folder))
    if shutil.which("java") and shutil.which("mvn"):
        async with broker() as servers:
            prefix = f"b{secrets.token_hex(4)}."
            async with open_kafka(servers, FEW, 4, prefix) as kafka:
                rows += await bench_bus("kafka", kafka)
                rows += await bench_turns(kafka)
                rows += await bench_aiokafka(servers, prefix)
            async with open_kafka(servers, FEW, RATE_PARTITIONS, f"r{prefix}") as kafka:
                figures["kafka"] = await measure_rates(kafka)
            with tempfile.TemporaryDirectory(prefix="evener-bench-") as folder:
                stages = await measure_stages(servers, f"s{prefix}", Path(folder))
    else:
        print("Kafka was not measured: it needs Java and Maven", file=sys.stderr)  # noqa: T201 - for whoever ran it
    told = {name: msgspec.to_builtins(one) for name, one in figures.items()}
    if stages is not None:
        told["kafka"] |= msgspec.to_builtins(stages)
    report("bench-bus", "Bus: durable records", rows, lanes=LANES, partitions=4, rate_partitions=RATE_PARTITIONS, brokers=1, **told)
    show("Bus: call events of 2 KB", rate_rows(figures))
    if stages is not None:
        per_session = {f"{name}_cpu_ms": cpu for name, cpu in stages.cpu_ms_per_session.items()}
        plain = {key: value for key, value in msgspec.structs.asdict(stages).items() if key != "cpu_ms_per_session"}
        show("From seal to merged group, on Kafka", [plain | per_session])


def rate_rows(figures: Mapping[str, BusFigures]) -> list[Row]:
    """Return the table of call events: a line for each figure, a column for each bus."""
    table: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for bus, one in figures.items():
        for name, value in msgspec.structs.asdict(one).items():
            if name != "commit_ms":
                table[name.replace("_", " ")][bus] = value
        for rate, shares in one.commit_ms.items():
            for share, ms in shares.items():
                table[f"commit, {rate} calls/s, {share}, ms"][bus] = ms
    return [{"what": what, **values} for what, values in table.items()]


if __name__ == "__main__":
    uvloop.run(main())
