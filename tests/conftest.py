"""What all tests share: a clean environment, and one real Kafka broker for those that are marked with it."""

import fcntl
import gc
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
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
# A shell's background jobs ignore Ctrl-C, and those under `nohup` the terminal's end: so would every program started here.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

PORTS = range(20_000, 32_000)
"""Below those that the kernel gives to connections that go out: a server that is started again finds its port free."""
KAFKA = Path(__file__).parents[1] / "scripts" / "kafka.py"
DOCKERD = KAFKA.with_name("dockerd.py")
LONGEST = (
    "proofs/chaos/test_cluster.py",
    "proofs/chaos/test_planted.py",
    "proofs/hostile/test_hostile.py",
    "integration/test_commands.py",
    "integration/test_handover.py",
    "integration/test_wrong_input.py",
    "integration/test_real_templates.py",
    "integration/test_pi_full.py",
    "contract/test_sandboxes.py",
    "proofs/chaos/test_killed.py",
    "proofs/chaos/test_alone.py",
    "integration/test_six_processes.py",
    "contract/test_cleaning.py",
    "proofs/escape/test_escape.py",
    "unit/cli/test_usage.py",
    "unit/reconstructor/test_damaged.py",
    "integration/test_waits.py",
    "proofs/conformance/test_cells.py",
    "integration/test_bundles.py",
    "integration/test_quiet_start.py",
    "contract/test_groups.py",
    "integration/test_scheduler_standby.py",
    "integration/test_warm.py",
    "unit/graders/test_r2e_tasks.py",
    "unit/graders/test_swe_tasks.py",
    "unit/engines/test_check.py",
    "unit/tokens/test_generated.py",
    "unit/templates/test_renderer.py",
    "integration/test_unseen.py",
    "integration/test_runner.py",
    "integration/test_gateway.py",
    "integration/test_misconfigured.py",
    "integration/test_up_vllm.py",
    "integration/test_dead_letters.py",
    "unit/dialects/test_live_of_every_family.py",
    "integration/test_updates_killed.py",
    "integration/test_pi.py",
)
"""The files that take longest begin first: a worker that began one of them last would end minutes after the others."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector what all files import: nothing of it ever goes, and every collection would look at it again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first."""
    turn = {Path(__file__).parent / file: number for number, file in enumerate(LONGEST)}
    items.sort(key=lambda item: turn.get(item.path, len(turn)))


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


@pytest.fixture(scope="session", autouse=True)
def _brokers_compile_once() -> Iterator[None]:
    """A broker lives for a minute or two: optimizing its code takes more time than it saves, half of all that the broker takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
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
    """Real CLIs come by npm: their tests fail without it, unless an option leaves them out."""
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
    with shared_server(KAFKA, "Java and Maven are here, and the broker", shared_folder) as address:
        yield address


@pytest.fixture(scope="session")
def docker_host(shared_folder: Path) -> Iterator[str]:
    """Address of one real Docker daemon that all workers share, until the last of them has ended."""
    if os.geteuid() != 0 or shutil.which("dockerd") is None:
        why = "is not root" if os.geteuid() else "lacks Docker (Debian, Ubuntu: apt install docker.io iptables)"
        if os.environ.get("WITHOUT_DOCKER") == "1":
            pytest.skip(f"NOT TESTED IN DOCKER: this user or machine {why}, and WITHOUT_DOCKER=1")
        pytest.fail(f"this user or machine {why}; WITHOUT_DOCKER=1 leaves out the tests in Docker")
    with shared_server(DOCKERD, "Docker is here, and its daemon", shared_folder) as address:
        yield address


@contextmanager
def shared_server(script: Path, what: str, shared_folder: Path) -> Iterator[str]:
    """Yield the address that `SCRIPT run` prints. The first worker starts it, the last one ends it."""
    name = script.stem
    running, own = shared_folder / f"{name}.running", None
    with (shared_folder / f"{name}.turn").open("w") as turn, (shared_folder / f"{name}.users").open("w") as users:
        fcntl.flock(turn, fcntl.LOCK_EX)
        fcntl.flock(users, fcntl.LOCK_SH)
        if not running.exists():
            own = subprocess.Popen([sys.executable, str(script), "run", "--with-parent"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            out, errors = own.stdout, own.stderr
            assert out is not None
            assert errors is not None
            address = out.readline().decode().strip()
            if not address:
                pytest.fail(f"{what} did not start: {errors.read().decode()}")
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
