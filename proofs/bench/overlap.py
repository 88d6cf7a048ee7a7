"""`make bench-overlap`: what overlapping stages and warm sandboxes are worth; figures to outputs/bench-overlap.json.

It starts a Docker daemon of its own (`scripts/dockerd.py`), which needs root.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path
from typing import Final

from msgspec import structs
from proofs.bench.overlap_sandboxes import RUNNING as RUNNER_SLOTS
from proofs.bench.overlap_sandboxes import measure_first_calls, measure_many
from proofs.bench.overlap_stages import measure_overlapping, measure_serial, simulated
from proofs.figures import Row, report
from scripts.dockerd import daemon

WALL_OVER_RUN_STAGE: Final = 1.15
WARM_FIRST_CALL_MS: Final = 300.0
"""The bar of the median, in Docker."""


def main() -> int:
    """Return the exit status: 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m proofs.bench.overlap")
    parser.add_argument("--sessions", type=int, default=80, help="sessions whose stages overlap")
    parser.add_argument("--serial", type=int, default=16, help="sessions whose stages follow each other")
    parser.add_argument("--first-calls", type=int, default=30, help="sessions of each kind and backend, one at a time")
    parser.add_argument("--many", type=int, default=200, help="sessions in Docker")
    options = parser.parse_args()
    with simulated(), tempfile.TemporaryDirectory() as folder:
        overlapping = asyncio.run(measure_overlapping(Path(folder, "overlapping"), options.sessions))
        serial = asyncio.run(measure_serial(Path(folder, "serial"), options.serial))
    with daemon() as (_, host), tempfile.TemporaryDirectory() as folder:
        first = {
            backend: asyncio.run(measure_first_calls(Path(folder, backend), backend, host, options.first_calls))
            for backend in ("docker", "bubblewrap")
        }
        many = asyncio.run(measure_many(Path(folder, "many"), host, options.many))
    rows: list[Row] = [
        {"measured": "wall over the run stage, overlapping", "value": overlapping.over_run_stage, "bar": WALL_OVER_RUN_STAGE},
        {"measured": "wall over the run stage, serial", "value": serial.over_run_stage},
        *(
            {"measured": f"{backend}: first call, {kind}, p50 (ms)", "value": value, "bar": bar}
            for backend, calls in first.items()
            for kind, value, bar in (("warm", calls.warm_ms_p50, WARM_FIRST_CALL_MS), ("cold", calls.cold_ms_p50, None))
        ),
        {"measured": f"{many.sessions} sessions in Docker, {RUNNER_SLOTS} at a time (s)", "value": many.seconds},
        {"measured": "CPU of the runner for one of them (ms)", "value": many.cpu_ms_per_session},
        {"measured": "kinds of things that they leaked", "value": len(many.leaked), "bar": 0},
    ]
    report(
        "bench-overlap",
        "Overlapping stages and warm sandboxes",
        rows,
        wall_over_run_stage=overlapping.over_run_stage,
        serial_over_run_stage=serial.over_run_stage,
        warm_first_call_ms_p50=first["docker"].warm_ms_p50,
        leaked=many.leaked,
        stages={"overlapping": structs.asdict(overlapping), "serial": structs.asdict(serial)},
        first_calls={backend: structs.asdict(calls) for backend, calls in first.items()},
        many=structs.asdict(many) | {"before": structs.asdict(many.before), "after": structs.asdict(many.after)},
    )
    slow = [calls for calls in first.values() if calls.warm_ms_p50 > WARM_FIRST_CALL_MS]
    return 1 if overlapping.over_run_stage > WALL_OVER_RUN_STAGE or slow or many.leaked else 0


if __name__ == "__main__":
    sys.exit(main())
