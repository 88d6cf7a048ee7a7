"""How large a deployment has to be: what was measured of one process, multiplied by the load. No queues, no faults: those are simulated."""

import math
from typing import Final

from msgspec import Struct

GIB: Final = 2**30


class Costs(Struct, frozen=True, kw_only=True):
    """What one unit of work costs. docs/scaling.md says where each figure comes from."""

    gateway_ms_per_call: float
    """CPU of gateways for a call around 8,000 tokens, on Kafka."""
    relay_ms_per_call: float
    session_ms: dict[str, float]
    """CPU of each service behind and beside the gateway for a whole session of ten calls. The scheduler's is simulated instead."""
    broker_ms_per_call: float
    """CPU of one broker without replicas."""
    bytes_per_call: float
    """What a session leaves in all topics, divided by its calls, before replication."""
    commit_ms: float
    """p50 of a call's commit."""


class Load(Struct, frozen=True, kw_only=True):
    """What runs at a time."""

    sessions: int
    """Concurrent sessions."""
    calls_per_session: int = 20
    call_seconds: float = 20.0
    """Sampling of one answer."""
    tool_seconds: float = 2.0
    """What the harness does between two calls."""
    partitions: int = 1024
    runner_capacity: int = 100
    utilization: float = 0.6
    """The share of a core that a process may use at most, so that its queue stays short."""

    @property
    def session_seconds(self) -> float:
        """The length of a session."""
        return self.calls_per_session * (self.call_seconds + self.tool_seconds)

    @property
    def sessions_per_s(self) -> float:
        """Sessions that end a second."""
        return self.sessions / self.session_seconds

    @property
    def calls_per_s(self) -> float:
        """Calls that end a second."""
        return self.sessions_per_s * self.calls_per_session


class Prices(Struct, frozen=True, kw_only=True):
    """Assumed list prices of a cloud, in dollars: change them to yours."""

    core_hour: float = 0.05
    gib_month: float = 0.08


class Sizing(Struct, frozen=True, kw_only=True):
    """The processes and what they use. Cores are those of the control plane: agents, tools and engines need their own."""

    sessions: int
    calls_per_s: float
    gateways: int
    runners: int
    reconstructors: int
    evaluators: int
    bridges: int
    cores: float
    """The cores of all services and brokers together, at the given utilization; two schedulers have a core each."""
    brokers: int
    log_mb_per_s: float
    """Into the log, before replication."""
    log_gib_per_day: float
    """Kept on disks, three replicas."""
    dollars_per_hour: float


REPLICAS: Final = 3
BROKER_MB_PER_S: Final = 50.0
"""What a broker takes in with ease, replicas included, on a common cloud disk."""
KEPT_DAYS: Final = 30
SCHEDULER_CORES: Final = 2


def size(load: Load, costs: Costs, prices: Prices | None = None) -> Sizing:
    """Return the deployment for a load."""
    prices = prices or Prices()
    calls, sessions = load.calls_per_s, load.sessions_per_s
    per_session = {name: sessions * milliseconds / 1000 for name, milliseconds in costs.session_ms.items()}
    busy = {
        "gateways": calls * costs.gateway_ms_per_call / 1000,
        "runners": calls * costs.relay_ms_per_call / 1000 + per_session["sandbox_runner"],
        "reconstructors": per_session["reconstructor"],
        "evaluators": per_session["evaluator"],
        "bridges": per_session["trainer_bridge"],
    }
    megabytes = calls * costs.bytes_per_call / 1e6
    brokers = max(REPLICAS, math.ceil(REPLICAS * megabytes / BROKER_MB_PER_S))
    broker_cores = REPLICAS * calls * costs.broker_ms_per_call / 1000
    cores = (sum(busy.values()) + broker_cores) / load.utilization + SCHEDULER_CORES
    gib_per_day = REPLICAS * megabytes * 86_400 / 1000 / 1.0737
    processes = {name: max(2, math.ceil(cpu / load.utilization)) for name, cpu in busy.items()}
    disks = gib_per_day * KEPT_DAYS * prices.gib_month / (30 * 24)
    return Sizing(
        sessions=load.sessions,
        calls_per_s=calls,
        gateways=processes["gateways"],
        runners=max(processes["runners"], math.ceil(load.sessions / load.runner_capacity)),
        reconstructors=processes["reconstructors"],
        evaluators=processes["evaluators"],
        bridges=processes["bridges"],
        cores=cores,
        brokers=brokers,
        log_mb_per_s=megabytes,
        log_gib_per_day=gib_per_day,
        dollars_per_hour=cores * prices.core_hour + disks,
    )
