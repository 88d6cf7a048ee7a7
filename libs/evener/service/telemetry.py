"""The logs and metrics of a process.

Logs are events with fields on stderr: JSON lines, or coloured text on a terminal. Metrics have one typed registry, below.
"""

import logging
import os
import sys
from contextlib import suppress
from functools import lru_cache, partial
from typing import Final, TextIO, cast

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from structlog.typing import Processor

CALL_SECONDS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)
COMMIT_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
STOP_SECONDS: Final = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


class LogStream:
    """A text stream for logs. What cannot be written, as on a full disk, is lost: logging must never stop a service."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        """Write, if possible."""
        with suppress(OSError):
            self._stream.write(text)

    def flush(self) -> None:
        """Flush, if possible."""
        with suppress(OSError):
            self._stream.flush()


class Metrics:
    """Every series of Evener. `metrics(registry)` returns the one instance of a registry, also when six services share it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        # every process
        self.crashes = counter("evener_crashes_total", "Crashes of a service, which was started again.", ["service"])
        self.dead_letters = counter("evener_dead_letters_total", "Records that could not be read and were given up.", ["service", "topic"])
        self.loop_stop_seconds = histogram(
            "evener_loop_stop_seconds", "Times during which the event loop was blocked, if over 10 ms.", buckets=STOP_SECONDS
        )
        self.loop_longest_stop_seconds = gauge(
            "evener_loop_longest_stop_seconds", "The longest time the event loop was blocked since the last scrape."
        )
        self.loop_longest_stop_cpu_seconds = gauge(
            "evener_loop_longest_stop_cpu_seconds",
            "The CPU time of the process during that longest block. It is far less than the block if the machine was too busy.",
        )
        # scheduler
        self.tasks_ended = counter("evener_tasks_ended_total", "Tasks that ended.", ["outcome"])
        self.sessions_waiting = gauge("evener_sessions_waiting", "Sessions that wait for a runner.")
        self.sessions_running = gauge("evener_sessions_running", "Sessions that runners hold.")
        self.attempts_lost = counter(
            "evener_attempts_lost_total",
            "Attempts that ended without a result. The reason is that of the record, or lease_expired.",
            ["reason"],
        )
        # sandbox-runner
        self.harnesses_running = gauge("evener_harnesses_running", "Harnesses and recordings that run.")
        self.harness_exits = counter("evener_harness_exits_total", "Harnesses that ended.", ["cause"])
        self.prepare_seconds = histogram("evener_prepare_seconds", "Time from the arrival of a dispatch to the start of its harness.")
        self.relay_requests = counter("evener_relay_requests_total", "Requests of harnesses, by the status of the answer.", ["status"])
        self.relay_sent_again = counter(
            "evener_relay_sent_again_total", "Requests that the relay sent again because a gateway did not answer them."
        )
        # provider-gateway
        self.call_seconds = histogram(
            "evener_call_seconds", "Time from a request to its committed answer.", ["dialect"], buckets=CALL_SECONDS
        )
        self.engine_seconds = histogram("evener_engine_seconds", "Sampling time of a call.", buckets=CALL_SECONDS)
        self.commit_seconds = histogram("evener_commit_seconds", "Time of a commit.", buckets=COMMIT_SECONDS)
        self.calls_open = gauge("evener_calls_open", "Calls in flight.")
        self.calls_waiting = gauge("evener_calls_waiting", "Calls in flight that wait for an engine.")
        self.calls_ended = counter("evener_calls_ended_total", "Calls that ended: closed, or the reason of the failure.", ["result"])
        self.placements = counter(
            "evener_placements_total", "Calls that extended an earlier one, or the reason why they did not.", ["placement"]
        )
        self.tokens_sampled = counter("evener_tokens_sampled_total", "Sampled tokens.", ["policy"])
        self.answers_continued = counter(
            "evener_answers_continued_total", "Answers that were continued after an engine had ended them early."
        )
        self.partitions_owned = gauge("evener_partitions_owned", "Partitions of sessions that this gateway serves.")
        # reconstructor
        self.trajectories = counter("evener_trajectories_total", "Trajectories built.", ["termination_reason"])
        self.rows = counter("evener_rows_total", "Rows built.", ["fidelity"])
        self.inconsistencies = counter(
            "evener_inconsistent_trajectories_total", "Trajectories whose records are damaged or contradict each other."
        )
        # evaluator
        self.gradings = counter("evener_gradings_total", "Gradings.", ["grader", "result"])
        self.grading_seconds = histogram("evener_grading_seconds", "Time of a grading, without pauses between its tries.", ["grader"])
        # trainer-bridge
        self.groups = counter("evener_groups_total", "Groups that ended.", ["result", "purpose"])
        self.tokens_delivered = counter("evener_tokens_delivered_total", "Trainable tokens delivered.")
        self.tokens_excluded = counter(
            "evener_tokens_excluded_total", "Sampled tokens of ended groups that were not delivered.", ["reason"]
        )
        self.updates = counter("evener_policy_updates_total", "Weight updates: published, rolled back, unreached, evicted.", ["result"])
        self.update_seconds = histogram("evener_policy_update_seconds", "Time of the weight update of an engine.", buckets=CALL_SECONDS)


@lru_cache(maxsize=16)
def metrics(registry: CollectorRegistry) -> Metrics:
    """Return the one `Metrics` of a registry."""
    return Metrics(registry)


def set_up_logs(level: str) -> None:
    """Send structlog's events and the log lines of libraries to stderr: JSON lines, or text on a terminal."""
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
