"""The metrics of a process, in one typed registry."""

from functools import lru_cache, partial
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

CALL_SECONDS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900)
COMMIT_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
BLOB_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
WARMING_SECONDS: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
QUEUE_SECONDS: Final = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400, 86400)
LOOP_STOP_BUCKETS: Final = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)


class Metrics:
    """Every series of Evener. `metrics(registry)` returns the one instance of a registry, also when six services share it."""

    def __init__(self, registry: CollectorRegistry) -> None:  # noqa: PLR0915 - a statement for each series
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry)
        # every process
        self.crashes = counter("evener_crashes_total", "Crashes of a service, which was started again.", ["service"])
        self.dead_letters = counter("evener_dead_letters_total", "Records that could not be read and were given up.", ["service", "topic"])
        self.loop_stop_seconds = histogram(
            "evener_loop_stop_seconds", "Times during which the event loop was blocked, if over 10 ms.", buckets=LOOP_STOP_BUCKETS
        )
        self.loop_longest_stop_seconds = gauge(
            "evener_loop_longest_stop_seconds", "The longest time the event loop was blocked since the last scrape."
        )
        self.loop_longest_stop_cpu_seconds = gauge(
            "evener_loop_longest_stop_cpu_seconds",
            "The CPU time of the process during that longest block. It is far less than the block if the machine was too busy.",
        )
        self.blob_seconds = histogram(
            "evener_blob_seconds",
            "Time of a request to the blob store that succeeded.",
            ["request"],
            buckets=BLOB_SECONDS,
        )
        self.blob_failures = counter("evener_blob_failures_total", "Requests to the blob store that failed.", ["request"])
        self.blob_bytes = counter("evener_blob_bytes_total", "Bytes that were put into the blob store, or fetched from it.", ["request"])
        self.blob_store_usable = gauge("evener_blob_store_usable", "Whether the blob store could be used when it was last checked: 1 or 0.")
        self.lag_records = gauge(
            "evener_lag_records",
            "Records of a partition that a service of this process reads and has not worked on yet.",
            ["reader", "topic", "partition"],
        )
        self.topics_altered = gauge("evener_topics_altered", "Topics that got more partitions than the deployment uses.")
        # scheduler
        self.tasks_ended = counter("evener_tasks_ended_total", "Tasks that ended.", ["outcome"])
        self.admission_held = gauge("evener_admission_held", "Whether no session starts because a service lags behind: 1 or 0.", ["behind"])
        self.sessions_waiting = gauge("evener_sessions_waiting", "Sessions that wait for a runner.")
        self.sessions_running = gauge("evener_sessions_running", "Sessions that runners hold.")
        self.runs_waiting = gauge("evener_runs_waiting", "Runs with sessions that wait for a runner.")
        self.queue_seconds = histogram(
            "evener_queue_seconds",
            "Time from a task's submission to the first dispatch of each of its sessions.",
            buckets=QUEUE_SECONDS,
        )
        self.team_sessions = gauge("evener_team_sessions", "Sessions of a team: waiting for a runner, or running.", ["team", "stage"])
        self.team_tokens_sampled = counter("evener_team_tokens_sampled_total", "Tokens sampled in sessions that ended, by team.", ["team"])
        self.attempts_lost = counter(
            "evener_attempts_lost_total",
            "Attempts that ended without a result. The reason is that of the record, or lease_expired.",
            ["reason"],
        )
        self.fleet_instances = gauge(
            "evener_fleet_instances",
            "Instances of a service: alive, stopping, or silent, which is without a heartbeat for a lease.",
            ["service", "state"],
        )
        self.fleet_slots = gauge("evener_fleet_slots", "Sessions that the living runners can hold together.")
        self.fleet_partitions_unserved = gauge("evener_fleet_partitions_unserved", "Partitions of sessions that no living gateway serves.")
        self.fleet_engines = gauge("evener_fleet_engines", "Engines of the fleet: joined or draining.", ["state"])
        self.runners_quarantined = gauge(
            "evener_runners_quarantined", "Runners that get no sessions, or one at a time, because they lost sandboxes in a row."
        )
        # sandbox-runner
        self.harnesses_running = gauge("evener_harnesses_running", "Harnesses and recordings that run.")
        self.harness_exits = counter("evener_harness_exits_total", "Harnesses that ended.", ["cause"])
        self.prepare_seconds = histogram("evener_prepare_seconds", "Time from the arrival of a dispatch to the start of its harness.")
        self.sandbox_starts = counter(
            "evener_sandbox_starts_total", "Sandboxes that sessions got: prepared ahead (warm), or when they came (cold).", ["prepared"]
        )
        self.warm_sandboxes = gauge("evener_warm_sandboxes", "Sandboxes that wait for sessions: ready, or being prepared.", ["state"])
        self.warm_sandboxes_lost = counter(
            "evener_warm_sandboxes_lost_total", "Warm sandboxes that could not be used any more when a session came."
        )
        self.warming_seconds = histogram("evener_warming_seconds", "Time of preparing a sandbox ahead.", buckets=WARMING_SECONDS)
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
        self.engine_answers = gauge(
            "evener_engine_answers", "Whether an engine answers this gateway: 1 or 0. A frozen engine has no policy.", ["engine", "policy"]
        )
        self.engine_calls = gauge("evener_engine_calls", "Answers that an engine samples for this gateway.", ["engine", "policy"])
        self.engine_limit = gauge(
            "evener_engine_limit", "Answers that an engine may sample for this gateway at a time.", ["engine", "policy"]
        )
        self.engine_version = gauge("evener_engine_version", "The policy version that an engine reports.", ["engine", "policy"])
        # reconstructor
        self.trajectories = counter("evener_trajectories_total", "Trajectories built.", ["termination_reason"])
        self.rows = counter("evener_rows_total", "Rows built.", ["fidelity"])
        self.inconsistencies = counter(
            "evener_inconsistent_trajectories_total", "Trajectories whose records are damaged or contradict each other."
        )
        # evaluator
        self.gradings = counter("evener_gradings_total", "Gradings.", ["grader", "result"])
        self.grading_seconds = histogram("evener_grading_seconds", "Time of a grading, without pauses between its tries.", ["grader"])
        self.sessions_flagged = counter(
            "evener_sessions_flagged_total", "Sessions with signs of reward hacking.", ["detector", "consequence"]
        )
        self.sessions_unwatched = counter(
            "evener_sessions_unwatched_total", "Sessions that the detectors of reward hacking could not look at, or not at all of them."
        )
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
