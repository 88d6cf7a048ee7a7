"""The logs of a process: events with fields on stderr, as JSON lines, or as coloured text on a terminal.

Every line names the service and the instance that it is about, and within a span its trace. A task that works for one session binds
`session_id` by `structlog.contextvars.bound_contextvars`, so that lines of libraries carry it too.
"""

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final, TextIO, cast

import structlog
from opentelemetry import trace
from starlette.datastructures import URLPath
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send
from structlog.contextvars import bound_contextvars
from structlog.typing import EventDict, Processor, WrappedLogger

REPEAT_SECONDS: Final = 30.0
MAX_REPEATING: Final = 1000
"""How many different lines are remembered: some libraries write ids into their messages."""
MAX_TEXT: Final = 16_000
"""The number of characters of an event or a traceback that are written."""


class LogStream:
    """A text stream for logs. What cannot be written, as on a full disk, is lost: logging must never stop a service."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write a text. Errors of the stream are ignored."""
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        """Flush the stream. Its errors are ignored."""
        with suppress(OSError):
            self._stream.flush()


class RepeatFilter(logging.Filter):
    """Lets through one of the equal lines of a library in `seconds`; the next one tells how many were left out.

    While a broker is away, its clients log a line for each of their tries, thousands in a minute. Lines are equal if they differ only in
    what is filled in. Lines with a traceback are equal if their errors are of one type and were raised at the same place.
    """

    def __init__(self, seconds: float = REPEAT_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._seconds = seconds
        self._clock = clock
        self._passed: dict[tuple[str, int, str, tuple[str, ...]], tuple[float, int]] = {}
        """When a line of this logger, level, message and error passed, and how many were left out since."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line is logged."""
        line, now = (record.name, record.levelno, str(record.msg), _raised(record)), self._clock()
        passed_at, left_out = self._passed.get(line, (float("-inf"), 0))
        if now - passed_at < self._seconds:
            self._passed[line] = passed_at, left_out + 1
            return False
        if left_out:
            record.msg, record.args = f"{_message(record)} ({left_out} more like it since the last one)", ()
        if len(self._passed) >= MAX_REPEATING:
            self._passed.clear()
        self._passed[line] = now, 0
        return True


class RouteOf(BaseRoute):
    """A route of a service. What is logged while it answers names the service, also where six services share a process."""

    def __init__(self, service: str, route: BaseRoute) -> None:
        self._service = service
        self._route = route

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return self._route.matches(scope)

    def url_path_for(self, name: str, /, **path_params: Any) -> URLPath:
        return self._route.url_path_for(name, **path_params)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        with bound_contextvars(service=self._service):
            await self._route.handle(scope, receive, send)


def set_up_logs(level: str, *, service: str, instance: str) -> None:
    """Send structlog's events and the log lines of libraries to stderr: JSON lines, or text on a terminal.

    Each line carries the service and the instance that it is about: those of this process, unless the task that logs has bound others.
    """
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        partial(_name_process, {"service": service, "instance": instance}),
        _name_trace,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Tracebacks without local variables: those may hold secrets.
    plain = structlog.dev.ConsoleRenderer(colors="NO_COLOR" not in os.environ, exception_formatter=structlog.dev.plain_traceback)
    lines: list[Processor] = [structlog.processors.format_exc_info, _shorten, structlog.processors.JSONRenderer()]
    renderers: list[Processor] = [plain] if sys.stderr.isatty() else lines
    stream = cast("TextIO", LogStream(sys.stderr))
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.addFilter(_is_no_cancellation)
    handler.addFilter(RepeatFilter())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers]
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


def _message(record: logging.LogRecord) -> str:
    """Return a line's text. What is filled in may not fit: then the line stays as it is, or its library would be told."""
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - as the arguments' own code raises
        return str(record.msg)


def _raised(record: logging.LogRecord) -> tuple[str, ...]:
    """Return the type of a line's error, and where it was raised. Empty: it has none."""
    if not record.exc_info or record.exc_info[0] is None:
        return ()
    kind, _, place = record.exc_info
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    return (kind.__qualname__, *(() if place is None else (place.tb_frame.f_code.co_filename, str(place.tb_lineno))))


def _shorten(_: WrappedLogger, __: str, line: EventDict) -> EventDict:
    """Cut the middle out of long texts: some libraries quote all that they received."""
    for key in ("event", "exception"):
        text = line.get(key)
        if isinstance(text, str) and len(text) > MAX_TEXT:
            line[key] = f"{text[: MAX_TEXT // 2]} ... {text[-MAX_TEXT // 2 :]}"
    return line


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    """Leave out the traceback that the HTTP server logs for each request that its stop breaks off."""
    return record.exc_info is None or not isinstance(record.exc_info[1], asyncio.CancelledError)


def _name_process(names: Mapping[str, str], _: WrappedLogger, __: str, line: EventDict) -> EventDict:
    """Say of which service and instance a line is, unless it says so itself."""
    for key, value in names.items():
        line.setdefault(key, value)
    return line


def _name_trace(_: WrappedLogger, __: str, line: EventDict) -> EventDict:
    """Say in which trace and span a line was written, by the names that OpenTelemetry gives them in logs."""
    span = trace.get_current_span().get_span_context()
    if span.is_valid:
        line.setdefault("trace_id", trace.format_trace_id(span.trace_id))
        line.setdefault("span_id", trace.format_span_id(span.span_id))
    return line
