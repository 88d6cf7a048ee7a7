"""make simulate: a fleet of up to 100,000 concurrent sessions, in simulated time, and how large a deployment for it has to be.

The scheduler's own code runs, with its own CPU time; partitions are divided by the group's own code; what a call costs a gateway was
measured. In the middle of each run a gateway joins, and another is killed. Leaves outputs/simulate.json; docs/scaling.md explains it.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct
from proofs.figures import OUTPUTS, Row, percentile, report, show
from proofs.scaling.clock import Clock
from proofs.scaling.fleet_model import FleetModel, Moves
from proofs.scaling.scheduler_model import SchedulerModel, ends
from proofs.scaling.sizing import Costs, Load, Sizing, size
from tests.support.builders import group_ended, heartbeat, sealed, started

from evener.proto.reasons import TerminationReason
from evener.proto.sessions import SessionDispatched
from evener.proto.spec import GraderSpec, HarnessSpec
from evener.proto.tasks import TaskOptions, TaskSubmitted

SIZES: Final = (1_000, 10_000, 100_000)
SAMPLES: Final = 16
RUNS: Final = 8
QUEUED: Final = 1.25
"""Sessions that are submitted at a time, as a multiple of the slots: the queue is never empty."""
PREPARE_SECONDS: Final = 1.0
"""The time from a dispatch to the start of the harness."""
MERGE_SECONDS: Final = 0.2
"""The time from the last seal to the merged group (`make bench-bus`)."""
BEGINS, JOINS, DIES, ENDS = 1.0, 1.2, 1.5, 1.8
"""When the counting begins, a gateway joins, one is killed, and all ends, in mean lengths of a session: the first one fills the fleet."""


class Simulated(Struct, frozen=True, kw_only=True):
    """What happened after the fleet was full."""

    sessions: int
    gateways: int
    runners: int
    partitions: int
    calls_per_s: float
    sessions_per_s: float
    running_share: float
    """The share of the slots that held a session at the end."""
    scheduler_share: float
    """The share of one core that the scheduler used, heartbeats included."""
    scheduler_wait_p99_s: float
    """The time from an event to the commit of its consequences."""
    gateway_share: float
    """The share of a core that a gateway used."""
    gateway_wait_p50_ms: float
    gateway_wait_p99_ms: float
    """The time that a call waited for its gateway's thread, or for an owner."""
    wasted_token_share: float
    moves: tuple[Moves, ...]
    fill_seconds: float
    """The time until all slots held a session for the first time."""
    real_seconds: float


class Simulation:
    """A fleet that is kept full."""

    def __init__(self, load: Load, costs: Costs, sizing: Sizing) -> None:
        self.clock = Clock()
        self.load = load
        self.sealed = 0
        self.filled_at = 0.0
        self.running = 0
        self.gateways = FleetModel(self.clock, load, costs, sizing.gateways)
        runners = [heartbeat("sandbox_runner", f"r{number}", at=0.0, capacity=load.runner_capacity) for number in range(sizing.runners)]
        self.places = len(runners) * load.runner_capacity
        self.scheduler = SchedulerModel(self.clock, runners, commit_seconds=costs.commit_ms / 1000, dispatched=self._dispatched)
        self._numbers = count()
        self._left: dict[str, int] = {}
        for _ in range(int(QUEUED * self.places / SAMPLES)):
            self._submit()

    def _submit(self) -> None:
        number = next(self._numbers)
        task_id = f"run-{number % RUNS}.task-{number}"
        self._left[task_id] = SAMPLES
        options = TaskOptions(
            run_id=f"run-{number % RUNS}", samples=SAMPLES, harness=HarnessSpec(name="script"), grader=GraderSpec(name="none")
        )
        submitted = TaskSubmitted(task_id=task_id, task=None, options=options, submitted_at=self.clock.now)
        self.scheduler.put(lambda draft: draft.submit(submitted))

    def _dispatched(self, event: SessionDispatched) -> None:
        self.running += 1
        if not self.filled_at and self.running >= self.places:
            self.filled_at = self.clock.now
        self.clock.after(PREPARE_SECONDS, lambda: self._start(event))

    def _start(self, event: SessionDispatched) -> None:
        begun = started(event.session_id, event.spec, attempt=event.attempt, runner_id=event.runner_id, at=self.clock.now)
        self.scheduler.put(lambda draft: draft.read(begun))
        self.gateways.begin(event.session_id, lambda: self._over(event))

    def _over(self, event: SessionDispatched) -> None:
        self.sealed += 1
        self.running -= 1
        task_id = event.spec.task_id
        seal = sealed(event.session_id, TerminationReason.FINISHED, attempt=event.attempt, at=self.clock.now)
        self.scheduler.put(lambda draft: draft.read(seal))
        self._left[task_id] -= 1
        if not self._left[task_id]:
            del self._left[task_id]
            self.clock.after(MERGE_SECONDS, lambda: self._merged(task_id))

    def _merged(self, task_id: str) -> None:
        merged = group_ended(task_id, [1.0] * SAMPLES)
        self.scheduler.put(lambda draft: draft.read(merged))
        self._submit()


def simulate(load: Load, costs: Costs) -> Simulated:
    """Fill a fleet, let a gateway join and another die, and return what happened from then on."""
    began = time.perf_counter()
    sizing = size(load, costs)
    at = Simulation(load, costs, sizing)
    fleet, clock, length = at.gateways, at.clock, load.session_seconds
    clock.run_until(BEGINS * length)
    calls, seals, waits, decided, busy = fleet.calls, at.sealed, len(fleet.waits), len(at.scheduler.waits), at.scheduler.busy_seconds
    busy_gateways, counted = sum(fleet.busy_seconds.values()), (ENDS - BEGINS) * length
    clock.run_until(JOINS * length)
    fleet.join()
    clock.run_until(DIES * length)
    fleet.kill()
    clock.run_until(ENDS * length)
    waited = fleet.waits[waits:]
    if ends(at.scheduler.tasks) == 0:
        msg = "no task has ended: the simulation is wrong"
        raise RuntimeError(msg)
    return Simulated(
        sessions=load.sessions,
        gateways=sizing.gateways,
        runners=sizing.runners,
        partitions=load.partitions,
        calls_per_s=(fleet.calls - calls) / counted,
        sessions_per_s=(at.sealed - seals) / counted,
        running_share=at.running / at.places,
        scheduler_share=(at.scheduler.busy_seconds - busy) / counted + at.scheduler.beat_share,
        scheduler_wait_p99_s=percentile(at.scheduler.waits[decided:], 0.99),
        gateway_share=(sum(fleet.busy_seconds.values()) - busy_gateways) / counted / sizing.gateways,
        gateway_wait_p50_ms=1000 * percentile(waited, 0.5),
        gateway_wait_p99_ms=1000 * percentile(waited, 0.99),
        wasted_token_share=fleet.wasted_seconds / (fleet.wasted_seconds + fleet.sampled_seconds),
        moves=tuple(fleet.moves),
        fill_seconds=at.filled_at,
        real_seconds=time.perf_counter() - began,
    )


def turned(rows: Sequence[Row]) -> list[Row]:
    """Return a table with a line for each figure and a column for each size."""
    return [{"figure": key.replace("_", " "), **{f"{row['sessions']:,}": row[key] for row in rows}} for key in rows[0] if key != "sessions"]


def main() -> None:
    """Simulate, and leave the figures."""
    parser = argparse.ArgumentParser(prog="make simulate")
    parser.add_argument("--sessions", type=int, nargs="*", default=list(SIZES), help="concurrent sessions")
    parser.add_argument("--costs", type=Path, default=Path(__file__).with_name("costs.json"), help="what was measured, as JSON")
    given = parser.parse_args()
    costs = msgspec.json.decode(given.costs.read_bytes(), type=Costs)
    sizings: list[Row] = []
    found: list[Simulated] = []
    for sessions in given.sessions:
        load = Load(sessions=sessions, partitions=64 if sessions <= 10_000 else 1024)
        sys.stderr.write(f"{sessions:,} sessions ...\n")
        sizings.append(msgspec.structs.asdict(size(load, costs)))
        found.append(simulate(load, costs))
    rows: list[Row] = [{key: value for key, value in msgspec.structs.asdict(one).items() if key != "moves"} for one in found]
    report(
        "simulate", "The fleet, simulated", rows, costs=msgspec.to_builtins(costs), sizings=sizings, simulated=msgspec.to_builtins(found)
    )
    for row in (*rows, *sizings):
        show("", [{"what": key.replace("_", " "), "value": value} for key, value in row.items()])
    measured = OUTPUTS / "bench-scale.json"
    if measured.exists():
        processes = json.loads(measured.read_text())["processes"]
        show(
            "Predicted and measured, calls/s (make bench-scale)",
            [
                {"gateways": name, "measured": one["calls_per_s"], "predicted": one.get("predicted_calls_per_s")}
                for name, one in processes.items()
            ],
        )


if __name__ == "__main__":
    main()
