"""The bench of overlapping stages, in small: that it measures what it says."""

from pathlib import Path

from msgspec import structs
from proofs.bench.overlap_sandboxes import NO_LEAK, Left, leaked, measure_first_calls
from proofs.bench.overlap_stages import measure_overlapping, simulated

NOTHING = Left(containers=0, folders=0, processes=0, descriptors=20, sockets=4, threads=12, memory_mb=100.0)


async def test_first_calls_come_from_warm_and_from_cold_sandboxes(tmp_path: Path) -> None:
    """A session that fails, or for which nothing gets warm, fails the bench."""
    figures = await measure_first_calls(tmp_path, "bubblewrap", "unix:///nowhere", 1)

    assert figures.warm_ms_p50 > 0
    assert figures.cold_ms_p50 > 0


async def test_overlapping_sessions_take_as_long_as_their_longest_stage(tmp_path: Path) -> None:
    """At least as long: what they overlap is prepared, run and graded all the same."""
    with simulated():
        figures = await measure_overlapping(tmp_path, 4)

    assert figures.over_run_stage > 1


def test_single_container_that_stays_is_a_leak() -> None:
    """Connections that are kept alive, threads of a pool and memory of an allocator are not, up to a limit."""
    more = structs.replace(NOTHING, containers=1, threads=12 + int(NO_LEAK["threads"]), memory_mb=100.0 + NO_LEAK["memory_mb"])

    assert leaked(NOTHING, NOTHING) == {}
    assert leaked(NOTHING, more) == {"containers": 1}
    assert leaked(NOTHING, structs.replace(NOTHING, threads=212)) == {"threads": 200}
