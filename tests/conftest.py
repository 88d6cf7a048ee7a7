"""What all tests share: a clean environment, and one real Kafka broker for those that are marked with it."""

import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.support.spans import Spans

pytest_plugins = ["tests.support.engines", "tests.support.held"]

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")  # however slow or busy
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so would every program started here

PORTS = range(20_000, 32_000)
"""Below those that the kernel gives to connections that go out: a server that is started again finds its port free."""
KAFKA = Path(__file__).parents[1] / "scripts" / "kafka.py"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is configured on this machine reaches a test."""
    for name in os.environ:
        if name.startswith(("EVENER_", "OTEL_")):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def tracer_provider() -> TracerProvider:
    """The one provider of this process: OpenTelemetry takes no second one."""
    provider = TracerProvider()
    trace.set_tracer_provider(provider)
    return provider


@pytest.fixture
def spans(tracer_provider: TracerProvider) -> Iterator[Spans]:
    """The spans that are finished during a test."""
    exporter = InMemorySpanExporter()
    tracer_provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield Spans(exporter)
    exporter.shutdown()


@pytest.fixture(scope="session", autouse=True)
def _bytecode(shared_folder: Path) -> Iterator[None]:
    """Programs of ours are started hundreds of times: what Python compiles is kept for the next, also where the environment forbids it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", str(shared_folder / "bytecode"))
        yield


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this run share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture
def unused_tcp_port() -> int:
    """A port of loopback that nothing listens at, and that nothing gets by chance while the test runs."""
    while True:
        port = secrets.choice(PORTS)
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) != 0:
                return port


@pytest.fixture(scope="session")
def npm() -> None:
    """Real CLIs come by npm: the tests of them fail without it, unless it is said that they are to be left out."""
    if shutil.which("npm") is None:
        if os.environ.get("WITHOUT_NPM") == "1":
            pytest.skip("NOT TESTED WITH REAL CLIS: npm is missing on this machine, and WITHOUT_NPM=1")
        pytest.fail("npm is missing on this machine (Debian, Ubuntu: apt install npm); WITHOUT_NPM=1 leaves out the tests with real CLIs")


@pytest.fixture(scope="session")
def kafka_servers(shared_folder: Path) -> Iterator[str]:
    """Bootstrap address of one real broker that all workers share, until the last of them has ended."""
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"NOT TESTED ON KAFKA: {' and '.join(missing)} missing on this machine")
    running, own = shared_folder / "kafka.running", None
    with (shared_folder / "kafka.turn").open("w") as turn, (shared_folder / "kafka.users").open("w") as users:
        fcntl.flock(turn, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_SH)
        if not running.exists():
            own = subprocess.Popen([sys.executable, str(KAFKA), "run", "--with-parent"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            out, errors = own.stdout, own.stderr
            assert out is not None
            assert errors is not None
            address = out.readline().decode().strip()
            if not address:
                pytest.fail(f"Java and Maven are here, and the broker did not start: {errors.read().decode()}")
            running.write_text(f"{own.pid} {address}")
        pid, address = running.read_text().split()
        fcntl.flock(turn, fcntl.LOCK_UN)
        yield address
        fcntl.flock(turn, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_UN)
        with suppress(BlockingIOError):
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the last one has it
            running.unlink()
            os.kill(int(pid), signal.SIGTERM)
        fcntl.flock(turn, fcntl.LOCK_UN)
        if own is not None:
            own.communicate()
