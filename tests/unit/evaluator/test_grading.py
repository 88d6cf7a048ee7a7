"""Gradings at their seams: failed tries, a blob store that is away, limits of time and number. Real graders in real sandboxes."""

import asyncio
import io
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from prometheus_client import CollectorRegistry
from tests.support.builders import built
from tests.support.loop import turns
from tests.support.outage import Outage
from tests.support.waiting import eventually

from evener.blobs.open import open_blobs
from evener.evaluator.config import Config
from evener.evaluator.grading import Gradings
from evener.proto.blobs import BlobRef
from evener.proto.reasons import ExitCause, TerminationReason
from evener.proto.sessions import Artifact
from evener.proto.spec import GraderSpec
from evener.proto.trajectories import HarnessExit, TrajectoryBuilt
from evener.sandboxes.local import open_local
from evener.sandboxes.registry import LOCAL
from evener.service.telemetry import Metrics
from evener.tasks.pack import pack

SECONDS = 60.0


class Bench:
    """Gradings beside a store that a test takes away."""

    def __init__(self, folder: Path, gradings: Gradings, store: Outage, registry: CollectorRegistry) -> None:
        self._folder = folder
        self._registry = registry
        self.gradings = gradings
        self.store = store

    async def tested(self, script: str, *, tries: int = 2, index: int = 0, removed: bytes = b"[]") -> TrajectoryBuilt:
        """Return a session whose task's tests are this shell script. `removed`: the JSON of what its harness removed."""
        task = self._folder / f"task-{index}"
        (task / "tests").mkdir(parents=True)
        (task / "instruction.md").write_text("Do nothing.")
        (task / "tests/test.sh").write_text(script)
        packed = pack(task)
        await self.store.put(packed.data)
        empty = io.BytesIO()
        tarfile.open(fileobj=empty, mode="w").close()
        kept = {"changes.tar": empty.getvalue(), "removed.json": removed}
        artifacts = tuple([Artifact(name=name, blob=await self.store.put(data)) for name, data in kept.items()])
        left = HarnessExit(cause=ExitCause.EXITED, exit_code=0, artifacts=artifacts)
        return built(index=index, given={"exit": left}, task=packed.ref, grader=GraderSpec(name="harbor", tries=tries))

    def counted(self, grader: str, result: str) -> float | None:
        """Return how many gradings ended so."""
        return self._registry.get_sample_value("evener_gradings_total", {"grader": grader, "result": result})


@pytest.fixture
async def opened(tmp_path: Path) -> AsyncIterator[Any]:
    """A function that makes a bench of a configuration."""
    async with open_local(tmp_path / "grading") as sandboxes:

        def make(**config: Any) -> Bench:
            registry, store = CollectorRegistry(), Outage(open_blobs("memory://"))
            quick = Config(state=str(tmp_path), **{"retry_seconds": 0.01, **config})
            return Bench(tmp_path, Gradings(quick, store, store, {LOCAL: sandboxes}, Metrics(registry)), store, registry)

        yield make


async def test_session_that_is_not_to_be_graded_takes_no_try(opened: Any) -> None:
    """Its end is the reason, and no grader is counted."""
    bench = opened()
    scored = await bench.gradings.scored(built(end=TerminationReason.INFRASTRUCTURE, given={"detail": "lost"}), "a")

    assert (scored.reward, scored.tries, scored.evidence) == (None, 0, ())
    assert scored.ungraded == "infrastructure: lost"
    assert bench.counted("answer", "ungraded") is None


async def test_grader_that_refuses_its_options_is_asked_once_whatever_the_task_allows(opened: Any) -> None:
    bench = opened()
    scored = await bench.gradings.scored(built(grader=GraderSpec(name="answer", options={"expct": "42"}, tries=5)), "a")

    assert (scored.reward, scored.tries) == (None, 1)
    assert "knows no option 'expct'" in scored.ungraded
    assert bench.counted("answer", "ungraded") == 1


async def test_failed_try_is_followed_by_another_and_its_evidence_is_kept_beside(opened: Any, tmp_path: Path) -> None:
    """Tests that fail by chance once: the second try gives the reward, and what the first one said is there to read."""
    bench = opened()
    mark = tmp_path / "tried"
    flaky = f"if [ -e {mark} ]; then echo 1 > /logs/verifier/reward.txt; else touch {mark}; echo by chance; exit 7; fi\n"
    scored = await bench.gradings.scored(await bench.tested(flaky), "a")
    kept = {one.name: await bench.store.get(one.blob) for one in scored.evidence}

    assert (scored.reward, scored.tries) == (1.0, 2)
    assert b"by chance" in kept["try-1/test-stdout.txt"]
    assert b"exited with 7" in kept["try-1/error.txt"]
    assert bench.counted("harbor", "graded") == 1


async def test_grader_that_crashes_is_asked_again_and_each_traceback_is_kept(opened: Any) -> None:
    """A damaged artifact: what it met is in the evidence, and the session ends without a reward."""
    bench = opened()
    scored = await bench.gradings.scored(await bench.tested("true\n", removed=b"{"), "a")
    kept = {one.name: await bench.store.get(one.blob) for one in scored.evidence}

    assert (scored.reward, scored.tries) == (None, 2)
    assert scored.ungraded.startswith("the grader crashed: JSONDecodeError")
    assert b"Traceback" in kept["try-1/crash.txt"]
    assert b"Traceback" in kept["crash.txt"]
    assert bench.counted("harbor", "ungraded") == 1


async def test_session_of_a_sandbox_that_is_not_here_is_graded_in_a_local_one(opened: Any) -> None:
    """A recording's harness ran in none."""
    bench = opened()
    tested = await bench.tested("echo 1 > /logs/verifier/reward.txt\n")
    spec = structs.replace(tested.spec, harness=structs.replace(tested.spec.harness, sandbox="none"))
    scored = await bench.gradings.scored(structs.replace(tested, spec=spec), "a")

    assert scored.reward == 1.0


async def test_store_that_is_away_takes_none_of_the_graders_tries(opened: Any) -> None:
    """However often it is asked in vain: with one try allowed the session is graded when the store is back."""
    bench = opened()
    trajectory = await bench.tested("echo 1 > /logs/verifier/reward.txt\n", tries=1)
    bench.store.away = True
    grading = asyncio.create_task(bench.gradings.scored(trajectory, "a"))
    async with asyncio.timeout(SECONDS):
        while bench.store.refused < 3:
            bench.store.met.clear()
            await bench.store.met.wait()
        assert not grading.done()
        bench.store.away = False
        scored = await grading

    assert (scored.reward, scored.tries) == (1.0, 1)


async def test_blob_that_is_lost_ends_the_grading_after_its_time(opened: Any) -> None:
    """The store answers, and does not have it: no try of the grader's is counted as failed, and the reason names the blob."""
    bench = opened(blob_seconds=0.05)
    lost = BlobRef(digest="0" * 64, size=1)
    there = await bench.tested("true\n")
    assert there.spec.task is not None
    spec = structs.replace(there.spec, task=structs.replace(there.spec.task, archive=lost))
    async with asyncio.timeout(SECONDS):
        scored = await bench.gradings.scored(structs.replace(there, spec=spec), "a")

    assert scored.reward is None
    assert lost.digest in scored.ungraded


async def test_grading_that_takes_too_long_is_a_failed_try(opened: Any) -> None:
    """Whatever hangs in it: the reason says how long it was waited for."""
    bench = opened(grading_seconds=0.5)
    async with asyncio.timeout(SECONDS):
        scored = await bench.gradings.scored(await bench.tested("sleep 600\n", tries=1), "a")

    assert (scored.reward, scored.tries) == (None, 1)
    assert scored.ungraded == "no grade within 0.5 s"


async def test_no_more_are_graded_at_a_time_than_are_allowed(opened: Any, tmp_path: Path) -> None:
    """Each notes how many are at it, itself included, and none ends before the first two have met."""
    bench = opened(concurrency=2)
    busy, seen, go = tmp_path / "busy", tmp_path / "seen", tmp_path / "go"
    busy.mkdir()
    wait = f"until [ -e {go} ]; do sleep 0.01; done"
    script = f"touch {busy}/$$; ls {busy} | wc -l >> {seen}; {wait}; rm {busy}/$$; echo 1 > /logs/verifier/reward.txt\n"
    sessions = [await bench.tested(script, index=index) for index in range(5)]
    grading = asyncio.gather(*(bench.gradings.scored(one, str(number)) for number, one in enumerate(sessions)))
    await eventually(lambda: seen.exists() and len(seen.read_text().split()) == 2)
    await turns()
    go.touch()
    scored = await grading

    assert [one.reward for one in scored] == [1.0] * 5
    assert max(int(line) for line in seen.read_text().split()) == 2
