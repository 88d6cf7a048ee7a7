"""The lines of a process's log."""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
import structlog
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from structlog.contextvars import bound_contextvars
from tests.support.service_context import serving

from evener.service.exits import complain
from evener.service.logs import MAX_TEXT, RepeatFilter, RouteOf, set_up_logs

FULL = Path("/dev/full")


@pytest.fixture
def _logging() -> Iterator[None]:
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:], logging.root.level = handlers, level
    structlog.reset_defaults()


def _fail(secret: str) -> None:
    msg = f"wrong key of {len(secret)} letters"
    raise ValueError(msg)


@pytest.mark.usefixtures("_logging")
def test_log_lines_are_json_without_local_variables(capsys: pytest.CaptureFixture[str]) -> None:
    """A traceback must not carry what its frames held."""
    set_up_logs("info", service="scheduler", instance="s-1")
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
    set_up_logs("info", service="scheduler", instance="s-1")
    structlog.get_logger().error("crashed")
    logging.getLogger("aiokafka").warning("from a library")
    complain("the end")
    with pytest.raises(OSError, match="No space left"):
        sink.close()


@pytest.mark.usefixtures("_logging")
def test_every_line_names_its_service_instance_session_and_trace(
    capsys: pytest.CaptureFixture[str], tracer_provider: TracerProvider
) -> None:
    """Lines of libraries too. What a line says itself counts more."""
    set_up_logs("info", service="up", instance="host-1")
    with (
        bound_contextvars(service="evaluator", session_id="t.0"),
        tracer_provider.get_tracer("test").start_as_current_span("grade") as span,
    ):
        structlog.get_logger().info("graded")
        logging.getLogger("aiokafka").warning("from a library")
        structlog.get_logger().info("repeated", session_id="t.1")
    structlog.get_logger().info("outside")
    graded, library, repeated, outside = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    named = {
        "service": "evaluator",
        "instance": "host-1",
        "session_id": "t.0",
        "trace_id": trace.format_trace_id(span.get_span_context().trace_id),
        "span_id": trace.format_span_id(span.get_span_context().span_id),
    }

    assert named.items() <= graded.items()
    assert named.items() <= library.items()
    assert repeated["session_id"] == "t.1"
    assert {"service": "up", "instance": "host-1"}.items() <= outside.items()
    assert not {"session_id", "trace_id", "span_id"} & outside.keys()


@pytest.mark.usefixtures("_logging")
async def test_lines_of_a_request_name_the_service_that_answers(capsys: pytest.CaptureFixture[str]) -> None:
    """Six services share the listener of `evener up`."""
    set_up_logs("info", service="up", instance="host-1")

    async def hello(_: Request) -> Response:
        structlog.get_logger().info("asked")
        return Response()

    async with serving([RouteOf("scheduler", Route("/hello", hello))]) as url, aiohttp.ClientSession(url) as client:
        async with client.get("/hello") as answer:
            assert answer.status == 200
        async with client.post("/hello") as answer:
            assert answer.status == 405
        async with client.get("/elsewhere") as answer:
            assert answer.status == 404
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]

    assert [line["service"] for line in lines if line["event"] == "asked"] == ["scheduler"]


@pytest.mark.usefixtures("_logging")
async def test_requests_that_a_stop_breaks_off_log_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """A gateway with a thousand open calls that is stopped wrote a thousand tracebacks of its HTTP server."""
    set_up_logs("info", service="gateway", instance="host-1")
    asked = asyncio.Event()

    async def never(_: Request) -> Response:
        asked.set()
        await asyncio.Event().wait()
        return Response()

    async with aiohttp.ClientSession() as client:
        async with serving([Route("/never", never)]) as url:
            asking = asyncio.create_task(client.get(f"{url}/never"))
            await asked.wait()
        async with await asking as answer:
            assert answer.status == 500
    assert [line for line in capsys.readouterr().err.splitlines() if "exception" in json.loads(line)] == []


def test_line_that_a_library_repeats_is_logged_once_in_a_while_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """A broker that was away for a minute filled the log with thousands of lines that said so."""
    now = 0.0
    library = logging.getLogger("library")
    caplog.handler.addFilter(RepeatFilter(30.0, lambda: now))
    for node in range(500):
        library.warning("cannot connect to %s", node)
    library.warning("another line")
    library.error("cannot connect to %s", "a node of another level")
    for _ in range(2):
        try:
            _fail("")
        except ValueError:
            library.exception("a bug")
    now = 31.0
    library.warning("cannot connect to %s", 7)
    library.warning("another line")

    assert [record.getMessage() for record in caplog.records] == [
        "cannot connect to 0",
        "another line",
        "cannot connect to a node of another level",
        "a bug",
        "cannot connect to 7 (499 more like it since the last one)",
        "another line",
    ]


def test_line_whose_arguments_do_not_fit_raises_nothing_into_its_library() -> None:
    """Not even when it tells how often it was repeated."""
    now = 0.0
    line = logging.makeLogRecord({"name": "library", "levelno": 30, "msg": "%d tries", "args": ("x",)})
    repeats = RepeatFilter(30.0, lambda: now)
    assert [repeats.filter(line) for _ in range(2)] == [True, False]
    now = 31.0
    assert repeats.filter(line)
    assert line.getMessage() == "%d tries (1 more like it since the last one)"


@pytest.mark.usefixtures("_logging")
def test_long_texts_are_cut_in_the_middle(capsys: pytest.CaptureFixture[str]) -> None:
    """A library quoted all that it had received: an agent could fill the disk."""
    set_up_logs("info", service="scheduler", instance="s-1")
    try:
        float("x" * 200_000)
    except ValueError:
        logging.getLogger("library").exception("y" * 200_000)
    [line] = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert len(line) < 3 * MAX_TEXT
    assert told["exception"].startswith("Traceback")
    assert told["exception"].endswith("x'")
