"""Logs and metrics."""

import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from prometheus_client import CollectorRegistry

from evener.service.exits import complain
from evener.service.telemetry import metrics, set_up_logs

FULL = Path("/dev/full")


@pytest.fixture
def _logging() -> Iterator[None]:
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:], logging.root.level = handlers, level
    structlog.reset_defaults()


def test_series_are_registered_once_for_six_services() -> None:
    """A service that is started again counts on."""
    registry = CollectorRegistry()

    assert metrics(registry) is metrics(registry)
    assert metrics(registry) is not metrics(CollectorRegistry())


def _fail(secret: str) -> None:
    msg = f"wrong key of {len(secret)} letters"
    raise ValueError(msg)


@pytest.mark.usefixtures("_logging")
def test_log_lines_are_json_without_local_variables(capsys: pytest.CaptureFixture[str]) -> None:
    """A traceback must not carry what its frames held."""
    set_up_logs("info")
    try:
        _fail("hu" + "sh")
    except ValueError:
        structlog.get_logger().error("crashed", session_id="t.0", exc_info=True)
    structlog.get_logger().debug("not told")
    logging.getLogger("aiokafka").warning("from a library")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())

    assert (first["event"], first["session_id"], first["level"]) == ("crashed", "t.0", "error")
    assert "ValueError: wrong key of 4 letters" in first["exception"]
    assert "hush" not in json.dumps(first)
    assert (second["event"], second["level"]) == ("from a library", "warning")
    assert sys.stderr.isatty() is False


@pytest.mark.usefixtures("_logging")
@pytest.mark.skipif(not FULL.exists(), reason="this system has no device that is always full")
def test_log_on_a_full_disk_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines are lost, the services go on."""
    sink = os.fdopen(os.open(FULL, os.O_WRONLY), "w", buffering=1)
    monkeypatch.setattr(sys, "stderr", sink)
    set_up_logs("info")
    structlog.get_logger().error("crashed")
    logging.getLogger("aiokafka").warning("from a library")
    complain("the end")
    with pytest.raises(OSError, match="No space left"):
        sink.close()
