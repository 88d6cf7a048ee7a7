"""Starts a real Apache Kafka broker on this machine: one node, KRaft, loopback only, its data in a temporary folder.

`run` stays in the foreground and prints the bootstrap address when the broker accepts connections; the broker ends with it.
`start` does that in the background, `stop` ends it, `status` prints its address. Maven brings the broker at first use, into the
user's cache folder. Needs Java and Maven. For tests and trials: it forgets everything when it ends. `run --settings FILE` adds to the
broker's properties, in which $BROKER and $CONTROLLER stand for the ports; `--scram TEXT` adds a user as Kafka's storage tool writes one.
"""

import argparse
import base64
import ctypes
import fcntl
import hashlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from string import Template
from typing import Final, NoReturn

VERSION: Final = "4.1.0"
ARTIFACTS: Final = (
    ("org.apache.kafka", "kafka_2.13", VERSION),
    ("org.apache.kafka", "kafka-tools", VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.1"),
)
START_SECONDS: Final = 60.0
ARCHIVE_SECONDS: Final = 60.0
JAVA_OPTIONS: Final = ("-Xmx512m", "-XX:+UseSerialGC", "-Xshare:auto")
PR_SET_PDEATHSIG: Final = 1


def cache() -> Path:
    """Return the folder that is kept between runs."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "evener" / f"kafka-{VERSION}"


def fetch_broker() -> Path:
    """Return the folder of the broker's jars, fetched if missing. Two who come at once fetch it once."""
    jars = cache() / "libs"
    with _locked():
        if not jars.is_dir():
            with tempfile.TemporaryDirectory(dir=cache()) as folder:
                _fetch_into(Path(folder))
                (Path(folder) / "libs").rename(jars)
    return jars


@contextmanager
def _locked() -> Iterator[None]:
    """Let nobody else change the cache folder inside this block."""
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def java() -> list[str]:
    """Return the command that runs a class of the broker.

    Java keeps the broker's classes as it has loaded them in an archive, which halves the CPU time of every start. The first start makes
    it. Without one, or with one that does not fit, Java starts as always.
    """
    command = ["java", *JAVA_OPTIONS, "-cp", f"{fetch_broker()}/*"]
    virtual_machine = Path(shutil.which("java") or "java").resolve()
    name = hashlib.sha256(f"{virtual_machine} {virtual_machine.stat().st_mtime_ns}".encode()).hexdigest()[:16]
    archive = cache() / f"classes-{name}.jsa"
    with _locked():
        if not archive.exists():
            _archive(command, archive)
    return [*command, f"-XX:SharedArchiveFile={archive}"]


def _archive(command: Sequence[str], archive: Path) -> None:
    """Run a broker that writes the classes that it has loaded when it ends."""
    with tempfile.TemporaryDirectory(dir=cache()) as folder:
        written = Path(folder) / archive.name
        with _broker([*command, "-XX:TieredStopAtLevel=1", f"-XX:ArchiveClassesAtExit={written}"], "", ()) as (process, _):
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(ARCHIVE_SECONDS)
        if written.exists():
            written.rename(archive)
        else:
            archive.touch()  # this Java cannot


def _fetch_into(folder: Path) -> None:
    wanted = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in ARTIFACTS
    )
    (folder / "pom.xml").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>evener</groupId><artifactId>broker</artifactId>"
        f"<version>1</version><dependencies>{wanted}</dependencies></project>"
    )
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=libs"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        fail(f"Maven could not fetch the broker:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def properties(folder: Path, broker: int, controller: int) -> str:
    """Return the broker's configuration: small internal topics, quick rebalances, and nothing that waits for other brokers."""
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}",
        "log.dirs": folder / "data",
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 4,
        "offsets.retention.minutes": 525600,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.num.partitions": 4,
        "transaction.state.log.min.isr": 1,
        "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1000,
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


@contextmanager
def broker(settings: str = "", users: Sequence[str] = ()) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Run a broker; yield its process and its address. It dies with this process, however that ends."""
    with _broker(java(), settings, users) as (process, address):
        yield process, address


@contextmanager
def _broker(command: Sequence[str], settings: str, users: Sequence[str]) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    folder = Path(tempfile.mkdtemp(prefix="evener-kafka-"))
    port, controller = free_ports(2)
    config = folder / "server.properties"
    config.write_text(properties(folder, port, controller) + Template(settings).safe_substitute(BROKER=port, CONTROLLER=controller))
    cluster = base64.urlsafe_b64encode(b"e" + secrets.token_bytes(15)).decode().rstrip("=")  # one that began with "-" would be an option
    log = folder / "broker.log"
    with log.open("wb") as out:
        format_command = [*command, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(config)]
        for user in users:
            format_command += ["--add-scram", user]
        if subprocess.run(format_command, stdout=out, stderr=out, check=False).returncode:
            fail(f"the storage was not formatted:\n{log.read_text()[-2000:]}")
        server = [*command, "kafka.Kafka", str(config)]
        process = subprocess.Popen(server, stdout=out, stderr=out, preexec_fn=die_with_parent)  # noqa: PLW1509 - one thread
    try:
        wait_until_it_accepts(process, port, log)
        yield process, f"127.0.0.1:{port}"
    finally:
        end(process)
        shutil.rmtree(folder, ignore_errors=True)


def wait_until_it_accepts(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Return when the port is open; exit with the broker's last words if it ends before that."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    fail(f"the broker did not start:\n{log.read_text()[-2000:]}")


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that nobody listens on.

    They lie below the range from which the kernel takes the ports of connections: between this call and the moment the server listens,
    another process may connect somewhere, and a port of that range may then be taken.
    """
    first_of_connections = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports: set[int] = set()
    while len(ports) < count:
        port = 10_000 + secrets.randbelow(first_of_connections - 10_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.add(port)
    return list(ports)


def end(process: subprocess.Popen[bytes]) -> None:
    """End the broker at once: it has nothing to keep."""
    process.kill()
    process.wait()


def die_with_parent() -> None:
    """Have the kernel end this process when its parent ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def run(settings: Path | None, users: Sequence[str], *, with_parent: bool) -> None:
    """Run a broker in the foreground until it or this process is ended."""
    parent = os.getppid()
    if with_parent:
        die_with_parent()
        if os.getppid() != parent:
            return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with broker("" if settings is None else settings.read_text(), users) as (process, address):
        print(address, flush=True)
        process.wait()


def start() -> None:
    """Run a broker in the background and print its address."""
    if running():
        fail("a broker runs already; see `status`")
    command = [sys.executable, __file__, "run"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    address = process.stdout.readline().strip() if process.stdout else ""
    if not address:
        fail("no broker was started")
    (cache() / "running").write_text(f"{process.pid} {address}\n")
    print(address)


def stop() -> None:
    """End the broker that `start` started."""
    if found := running():
        os.kill(found[0], signal.SIGTERM)
        (cache() / "running").unlink()


def status() -> None:
    """Print the address of the broker that `start` started. Exit code 1: none runs."""
    found = running()
    if not found:
        fail("no broker runs")
    print(found[1])


def running() -> tuple[int, str] | None:
    """Return pid and address of the broker that `start` started, if it lives."""
    try:
        pid, address = (cache() / "running").read_text().split()
        os.kill(int(pid), 0)
    except (OSError, ValueError):
        return None
    return int(pid), address


def fail(message: str) -> NoReturn:
    """Say why, and exit with 1."""
    print(message, file=sys.stderr)
    sys.exit(1)


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "start", "stop", "status"])
    parser.add_argument("--with-parent", action="store_true", help="end `run` when the process that started it ends")
    parser.add_argument("--settings", type=Path, help="a file of further properties of a broker that is `run`")
    parser.add_argument("--scram", action="append", default=[], help="a user of a broker that is `run`: SCRAM-SHA-512=[name=N,password=P]")
    given = parser.parse_args()
    if given.command == "run":
        run(given.settings, given.scram, with_parent=given.with_parent)
    else:
        {"start": start, "stop": stop, "status": status}[given.command]()


if __name__ == "__main__":
    main()
