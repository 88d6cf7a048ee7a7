"""Kafka brokers whose processes die, freeze and come back with the data that they had."""

import asyncio
import base64
import secrets
import signal
import subprocess
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from proofs.chaos.links import Link, link
from scripts.kafka import die_with_parent, free_ports, java, properties

START_SECONDS: Final = 600.0
POLL_SECONDS: Final = 0.1
CLUSTERED: Final = {
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.min.isr": 2,
    "default.replication.factor": 3,
    "min.insync.replicas": 2,
    "controlled.shutdown.enable": "true",
    "broker.session.timeout.ms": 6000,
    "replica.lag.time.max.ms": 5000,
}
"""Settings of several brokers, which differ from those of one."""


class Broker:
    """One broker. It has at most one process at a time."""

    def __init__(self, number: int, folder: Path, port: int) -> None:
        self.number = number
        self.address = f"127.0.0.1:{port}"
        self._folder = folder
        self._port = port
        self._process: Process | None = None

    async def format(self, cluster: str) -> None:
        """Prepare its folder."""
        words = await _java("kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(self._folder / "server.properties"))
        process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        out, _ = await process.communicate()
        assert process.returncode == 0, out.decode()

    async def start(self) -> None:
        """Start it."""
        words = await _java("kafka.Kafka", str(self._folder / "server.properties"))
        with (self._folder / "broker.log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(*words, stdin=DEVNULL, stdout=log, stderr=log, preexec_fn=die_with_parent)

    async def accepts(self) -> None:
        """Wait until it takes connections."""
        async with asyncio.timeout(START_SECONDS):
            while True:
                assert self._process is not None
                assert self._process.returncode is None, (self._folder / "broker.log").read_text()[-3000:]
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", self._port)
                except OSError:
                    await asyncio.sleep(POLL_SECONDS)
                else:
                    writer.close()
                    return

    def tell(self, number: signal.Signals) -> None:
        """Send it a signal, if it lives."""
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def ended(self) -> None:
        """Wait for its end."""
        assert self._process is not None
        await self._process.wait()

    async def kill(self) -> None:
        """End it at once, and wait until it is gone."""
        self.tell(signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()


class Brokers:
    """One broker, or three with `min.insync.replicas=2`."""

    def __init__(self, all_: Sequence[Broker], links: Mapping[str, Sequence[Link]], servers: str = "") -> None:
        """`servers`: the address of a broker that is not ours to strike, in place of `all_`."""
        self.all = all_
        self.links = links
        """The links between each client that has links of its own and all brokers."""
        self.servers = servers or ",".join(broker.address for broker in all_)
        """The addresses of all, as the URL of a bus has them."""

    def servers_of(self, client: str) -> str:
        """Return the addresses by which a client finds them over its own links."""
        return ",".join(f"127.0.0.1:{one.port}" for one in self.links[client])


@asynccontextmanager
async def brokers(folder: Path, count: int = 1, clients: Sequence[str] = ()) -> AsyncIterator[Brokers]:
    """Run brokers, their data in a folder; none runs on after the block. `clients` get links of their own."""
    ports = await asyncio.to_thread(free_ports, (2 + len(clients)) * count)
    voters = ",".join(f"{number}@127.0.0.1:{ports[count + number - 1]}" for number in range(1, count + 1))
    all_ = []
    links: dict[str, list[Link]] = {client: [] for client in clients}
    async with AsyncExitStack() as stack:
        for number in range(1, count + 1):
            own = folder / f"broker-{number}"
            own.mkdir(parents=True)
            port, controller = ports[number - 1], ports[count + number - 1]
            settings: dict[str, object] = {"node.id": number, "controller.quorum.voters": voters} | (CLUSTERED if count > 1 else {})
            behind = dict(zip(clients, ports[2 * count + len(clients) * (number - 1) :], strict=False))
            for client, target in behind.items():
                links[client].append(await stack.enter_async_context(link(target)))
            settings |= _listeners(port, controller, behind, {client: links[client][-1].port for client in clients})
            (own / "server.properties").write_text(_changed(properties(own, port, controller), settings))
            all_.append(Broker(number, own, port))
        cluster = base64.urlsafe_b64encode(b"e" + secrets.token_bytes(15)).decode().rstrip("=")
        try:
            await asyncio.gather(*(broker.format(cluster) for broker in all_))
            await asyncio.gather(*(broker.start() for broker in all_))
            await asyncio.gather(*(broker.accepts() for broker in all_))
            yield Brokers(all_, links)
        finally:
            await asyncio.gather(*(broker.kill() for broker in all_))


def _listeners(port: int, controller: int, behind: Mapping[str, int], told: Mapping[str, int]) -> dict[str, object]:
    """Return the settings of listeners: one for everybody, one for each client, who is told the port of its link."""
    own = [f"{client.upper()}://127.0.0.1:{target}" for client, target in behind.items()]
    links = [f"{client.upper()}://127.0.0.1:{target}" for client, target in told.items()]
    names = ["PLAINTEXT", "CONTROLLER", *map(str.upper, behind)]
    return {
        "listeners": ",".join([f"PLAINTEXT://127.0.0.1:{port}", f"CONTROLLER://127.0.0.1:{controller}", *own]),
        "advertised.listeners": ",".join([f"PLAINTEXT://127.0.0.1:{port}", *links]),
        "listener.security.protocol.map": ",".join(f"{name}:PLAINTEXT" for name in names),
        "inter.broker.listener.name": "PLAINTEXT",
    }


async def _java(*words: str) -> list[str]:
    return [*await asyncio.to_thread(java), *words]


def _changed(told: str, settings: Mapping[str, object]) -> str:
    """Return properties with settings replaced and added."""
    known = dict(line.split("=", 1) for line in told.splitlines())
    return "".join(f"{key}={value}\n" for key, value in {**known, **settings}.items())
