"""What all tests share: a clean environment, and one real Kafka broker for those that are marked with it."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = ["tests.engines_fixtures"]

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it, and so would every program started here

PORTS = range(20_000, 32_000)
"""Below those that the kernel gives to connections that go out: a server that is started again finds its port free."""
KAFKA = Path(__file__).parents[1] / "scripts" / "kafka.py"


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is configured on this machine reaches a test."""
    for name in os.environ:
        if name.startswith("EVENER_"):
            monkeypatch.delenv(name)


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
def kafka_servers() -> Iterator[str]:
    """Bootstrap address of a real broker that lives as long as this test session."""
    missing = [tool for tool in ("java", "mvn") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"NOT TESTED ON KAFKA: {' and '.join(missing)} missing on this machine")
    command = [sys.executable, str(KAFKA), "run", "--with-parent"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as broker:
        assert broker.stdout
        assert broker.stderr
        address = broker.stdout.readline().strip()
        if not address:
            pytest.fail(f"Java and Maven are here, and the broker did not start: {broker.stderr.read()}")
        try:
            yield address
        finally:
            broker.terminate()
