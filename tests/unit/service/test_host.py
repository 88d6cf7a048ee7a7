"""A process of services: its signals, its HTTP, and how it tells what is wrong."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec
import pytest
from tests.support.waiting import block_until

from evener.service.state_folder import STATE_FILE, RunningUp

ROOT = Path(__file__).parents[3]
PROGRAM = Path(__file__).with_name("toy_program.py")
START_SECONDS = 60.0


class Process:
    """The toy program, running."""

    def __init__(self, state: Path, mode: str = "steady", *flags: str) -> None:
        command = [sys.executable, str(PROGRAM), mode, "--state", str(state), *flags]
        self.state = state
        self.popen = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})

    @property
    def url(self) -> str:
        """Base URL, once it serves."""
        file = self.state / STATE_FILE
        block_until(lambda: file.exists() or self.popen.poll() is not None, seconds=START_SECONDS)
        assert self.popen.poll() is None, self.popen.communicate()[1]
        return msgspec.json.decode(file.read_bytes(), type=RunningUp).url

    def end(self) -> tuple[int, str]:
        """Wait for its end; return exit code and stderr."""
        _, errors = self.popen.communicate(timeout=START_SECONDS)
        return self.popen.returncode, errors

    def stop(self) -> tuple[int, str]:
        """End it by SIGTERM."""
        self.popen.terminate()
        return self.end()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    toy = Process(tmp_path)
    yield toy
    toy.popen.kill()
    toy.popen.communicate()


def get(url: str, token: str | None = None, method: str = "GET") -> tuple[int, Any]:
    """Return status and JSON."""
    request = Request(url, headers={"authorization": f"Bearer {token}"} if token else {}, method=method)  # noqa: S310
    try:
        with urlopen(request, timeout=60) as answer:  # noqa: S310
            return answer.status, json.loads(answer.read())
    except HTTPError as refused:
        with refused:
            return refused.code, json.loads(refused.read())


def until_ready(url: str) -> Any:
    """Return what /readyz says once it is content."""
    block_until(lambda: get(f"{url}/readyz")[0] == 200, seconds=START_SECONDS)
    return get(f"{url}/readyz")[1]


def test_sigterm_drains_and_ends_with_0(process: Process) -> None:
    """The state file goes with the process."""
    until_ready(process.url)
    code, errors = process.stop()

    assert code == 0, errors
    assert not (process.state / STATE_FILE).exists()
    assert "Traceback" not in errors


def test_sigint_is_the_same(process: Process) -> None:
    """Ctrl-C in a terminal."""
    until_ready(process.url)
    process.popen.send_signal(signal.SIGINT)

    assert process.end()[0] == 0


def test_second_signal_ends_at_once_with_1(tmp_path: Path) -> None:
    """Somebody who asks twice does not want to wait."""
    toy = Process(tmp_path, "hanging")
    until_ready(toy.url)
    toy.popen.terminate()
    assert toy.popen.stderr is not None
    assert any('"stopping"' in line for line in toy.popen.stderr)
    assert toy.popen.poll() is None
    toy.popen.terminate()

    assert toy.end()[0] == 1


def test_health_readiness_and_metrics_are_there(process: Process) -> None:
    """What platforms probe."""
    ready = until_ready(process.url)

    services = {"host": {"bus": True, "blobs": True}, "toy": {"running": True, "warm": True}}
    assert ready == {"ready": True, "services": services, "warnings": []}
    assert get(f"{process.url}/healthz") == get(f"{process.url}/health") == (200, {"alive": True})
    with urlopen(f"{process.url}/metrics", timeout=60) as answer:  # noqa: S310
        text = answer.read()
        assert b"# HELP evener_crashes_total Crashes of a service, which was started again." in text
        assert b"\nevener_loop_longest_stop_seconds " in text


def test_service_that_opens_slowly_is_alive_and_not_ready(tmp_path: Path) -> None:
    """Its paths answer 503 meanwhile, so that callers come back."""
    toy = Process(tmp_path, "slow")

    assert get(f"{toy.url}/healthz")[0] == 200
    assert get(f"{toy.url}/readyz") == (
        503,
        {"ready": False, "services": {"host": {"bus": True, "blobs": True}, "toy": {"running": False}}, "warnings": []},
    )
    assert get(f"{toy.url}/hello")[0] == 503
    assert toy.stop()[0] == 0


def test_control_endpoint_wants_the_operators_token(process: Process) -> None:
    """It was drawn at the first start, for its owner alone."""
    until_ready(process.url)
    file = process.state / "operator-token"

    assert file.stat().st_mode & 0o777 == 0o600
    assert get(f"{process.url}/hello")[0] == 401
    assert get(f"{process.url}/hello", "wrong")[0] == 401
    assert get(f"{process.url}/hello?a=1", file.read_text().strip()) == (200, {"hello": 1, "query": "a=1"})


def test_unknown_path_is_answered_as_json(process: Process) -> None:
    """As every error of a control endpoint."""
    until_ready(process.url)

    assert get(f"{process.url}/nowhere") == (404, {"error": {"message": "Not Found: GET /nowhere", "field": None}})


def test_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    """And exit code 1: nothing is wrong with the words."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, errors = Process(tmp_path, "steady", "--port", str(port)).end()

    assert code == 1
    assert errors.splitlines()[-1].startswith(f"evener: port {port} of 127.0.0.1 is in use. ")
    assert "Traceback" not in errors


def test_address_beyond_loopback_wants_a_token_that_was_given(tmp_path: Path) -> None:
    """The drawn one may not even be known to its owner."""
    code, errors = Process(tmp_path, "steady", "--host", "0.0.0.0").end()  # noqa: S104

    assert code == 2
    assert errors.startswith(
        "evener: host 0.0.0.0 can be reached from other machines, and no operator_token or principals_file was given. "
    )
    assert errors.count("\n") == 1


def test_unknown_address_is_a_wrong_configuration(tmp_path: Path) -> None:
    """One that this machine does not have."""
    code, errors = Process(tmp_path, "steady", "--host", "192.0.2.1", "--operator-token", "t").end()

    assert code == 2
    assert "cannot listen on 192.0.2.1" in errors


def test_bus_held_by_another_process_is_reported_by_its_number(process: Process) -> None:
    """Two processes never write to one file."""
    until_ready(process.url)
    code, errors = Process(process.state).end()

    assert code == 1
    assert f"is held by process {process.popen.pid}" in errors
    assert "Traceback" not in errors
    assert until_ready(process.url)
    assert (process.state / STATE_FILE).exists()
