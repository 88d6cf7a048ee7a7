"""Logs, metrics and traces of a process.

Logs are events with fields on stderr: JSON lines, or coloured text on a terminal. Metrics have one typed registry, below.
Traces travel in the `traceparent` header of records; they are exported where OTEL_EXPORTER_OTLP_ENDPOINT is set and the OTLP
exporter is installed.
"""

import importlib
import importlib.util
import logging
import os
import re
import sys
from contextlib import suppress
from functools import lru_cache
from typing import Final, TextIO, cast

import structlog
from opentelemetry import context, trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, NonRecordingSpan, SpanContext, TraceFlags
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from structlog.typing import Processor

EXPORTER: Final = "opentelemetry.exporter.otlp.proto.http"
TRACEPARENT: Final = re.compile(rb"^00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})$")
CALL_SECONDS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)
COMMIT_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
STOP_SECONDS: Final = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)

tracer: Final = trace.get_tracer("evener")


class LogStream:
    """A text stream for logs. What cannot be written, as on a full disk, is lost: logging must stop no service."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write, if that is possible."""
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        """Flush, if that is possible."""
        with suppress(OSError):
            self._stream.flush()


class Metrics:
    """Every series of Evener. Get it by `metrics(registry)`: one for each registry, also when six services share it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # host
        self.crashes = Counter("evener_crashes_total", "Services that were started again.", ["service"], registry=registry)
        self.dead_letters = Counter("evener_dead_letters_total", "Records given up.", ["service", "topic"], registry=registry)
        self.loop_stop_seconds = Histogram(
            "evener_loop_stop_seconds", "Stops of the event loop of more than 10 ms.", buckets=STOP_SECONDS, registry=registry
        )
        self.loop_longest_stop_seconds = Gauge(
            "evener_loop_longest_stop_seconds", "The event loop's longest stop since the last scrape.", registry=registry
        )
        self.loop_longest_stop_cpu_seconds = Gauge(
            "evener_loop_longest_stop_cpu_seconds",
            "CPU time of the process in that stop: little on a busy machine.",
            registry=registry,
        )
        # scheduler
        self.tasks_ended = Counter("evener_tasks_ended_total", "Tasks that ended.", ["outcome"], registry=registry)
        self.sessions_waiting = Gauge("evener_sessions_waiting", "Sessions that wait for a runner.", registry=registry)
        self.sessions_running = Gauge("evener_sessions_running", "Sessions that runners hold.", registry=registry)
        self.attempts_lost = Counter("evener_attempts_lost_total", "Attempts to be run again.", ["end"], registry=registry)
        # sandbox-runner
        self.harnesses_running = Gauge("evener_harnesses_running", "Harness processes.", registry=registry)
        self.harness_exits = Counter("evener_harness_exits_total", "Harnesses that are gone.", ["cause"], registry=registry)
        self.prepare_seconds = Histogram("evener_prepare_seconds", "Dispatch to the harness's start.", registry=registry)
        self.relay_requests = Counter("evener_relay_requests_total", "Requests of harnesses.", ["status"], registry=registry)
        self.relay_sent_again = Counter("evener_relay_sent_again_total", "Requests that lost their gateway.", registry=registry)
        # provider-gateway
        self.call_seconds = Histogram("evener_call_seconds", "Request to last byte.", ["dialect"], buckets=CALL_SECONDS, registry=registry)
        self.engine_seconds = Histogram("evener_engine_seconds", "Sampling of a call.", buckets=CALL_SECONDS, registry=registry)
        self.commit_seconds = Histogram("evener_commit_seconds", "Commit of a call.", buckets=COMMIT_SECONDS, registry=registry)
        self.calls_open = Gauge("evener_calls_open", "Calls under way.", registry=registry)
        self.calls_ended = Counter("evener_calls_ended_total", "Calls by end: closed, or why not.", ["end"], registry=registry)
        self.placements = Counter("evener_placements_total", "Calls by root reason, or extended.", ["placement"], registry=registry)
        self.tokens_sampled = Counter("evener_tokens_sampled_total", "Tokens sampled.", ["policy"], registry=registry)
        self.answers_continued = Counter(
            "evener_answers_continued_total", "Answers that went on after an engine had ended them early.", registry=registry
        )
        self.tokens_masked = Counter("evener_tokens_masked_total", "Sampled tokens out of the loss.", ["reason"], registry=registry)
        self.partitions_owned = Gauge("evener_partitions_owned", "Partitions of sessions owned and served.", registry=registry)
        # reconstructor, evaluator, trainer-bridge
        self.trajectories = Counter("evener_trajectories_total", "Trajectories built.", ["end"], registry=registry)
        self.rows = Counter("evener_rows_total", "Rows built.", ["fidelity"], registry=registry)
        self.doubts = Counter("evener_doubts_total", "Trajectories with a doubt.", registry=registry)
        self.gradings = Counter("evener_gradings_total", "Gradings.", ["grader", "result"], registry=registry)
        self.grading_seconds = Histogram("evener_grading_seconds", "One grading.", ["grader"], registry=registry)
        self.groups = Counter("evener_groups_total", "Groups by result.", ["result", "purpose"], registry=registry)
        self.tokens_delivered = Counter("evener_tokens_delivered_total", "Trainable tokens delivered.", registry=registry)
        self.tokens_left_out = Counter("evener_tokens_left_out_total", "Sampled, not delivered.", ["reason"], registry=registry)
        self.updates = Counter(
            "evener_policy_updates_total", "Weight updates: published, rolled back, unreached, put out.", ["result"], registry=registry
        )
        self.update_seconds = Histogram("evener_policy_update_seconds", "Update of one engine.", buckets=CALL_SECONDS, registry=registry)


@lru_cache(maxsize=16)
def metrics(registry: CollectorRegistry) -> Metrics:
    """Return the one `Metrics` of a registry."""
    return Metrics(registry)


def set_up_logs(level: str) -> None:
    """Send structlog's events, and the log lines of libraries, to stderr: JSON lines, or text on a terminal."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # Tracebacks without local variables: those may hold secrets.
    plain = structlog.dev.ConsoleRenderer(colors="NO_COLOR" not in os.environ, exception_formatter=structlog.dev.plain_traceback)
    lines: list[Processor] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    renderers: list[Processor] = [plain] if sys.stderr.isatty() else lines
    stream = cast("TextIO", LogStream(sys.stderr))
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(stream),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers]
        )
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)


def set_up_traces(service: str) -> None:
    """Make spans real, so that trace context travels; export them where that is configured and possible."""
    provider = TracerProvider(resource=Resource.create({"service.name": f"evener-{service}"}))
    if os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") and _installed(EXPORTER):
        exporter = importlib.import_module(f"{EXPORTER}.trace_exporter").OTLPSpanExporter()
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)


def inject() -> bytes | None:
    """Return the current span as a W3C `traceparent`. None: there is none."""
    span = trace.get_current_span().get_span_context()
    if not span.is_valid:
        return None
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}".encode()


def extract(traceparent: bytes | None) -> context.Context:
    """Return the context that a record carries, to start a span as its child; an empty one where it carries none."""
    match = TRACEPARENT.match(traceparent or b"")
    if match is None:
        return context.Context()
    trace_id, span_id, flags = (int(part, 16) for part in match.groups())
    remote = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return trace.set_span_in_context(NonRecordingSpan(remote), context.Context())


def link(traceparent: bytes | None) -> tuple[Link, ...]:
    """Return a link to the span that a record carries: how a consumer that reads many names each."""
    span = trace.get_current_span(extract(traceparent)).get_span_context()
    return (Link(span),) if span.is_valid else ()


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
