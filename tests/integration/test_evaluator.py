"""The evaluator on the embedded bus: every session gets its score, whatever happens to its grading."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from operator import eq
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs
from tests.support import builders
from tests.support.answering import answering
from tests.support.builders import built, spec
from tests.support.outage import Outage
from tests.support.service_context import MISSING, RUBBISH, open_parts, running_service
from tests.support.waiting import eventually, until

from evener.blobs.store import path_of
from evener.bus.port import Header, Outgoing
from evener.evaluator.config import Config
from evener.evaluator.service import open_service
from evener.graders.config import Endpoint
from evener.graders.registry import GRADERS
from evener.proto.codec import AnyEvent, decode
from evener.proto.fleet import DeadLetter
from evener.proto.reasons import ExclusionReason, ExitCause, TerminationReason
from evener.proto.sessions import Artifact
from evener.proto.spec import GraderSpec, TaskRef
from evener.proto.topics import HEADER_SESSION, Topic
from evener.proto.trajectories import CallSummary, HarnessExit, TrajectoryBuilt, TrajectoryScored
from evener.runtime.faults import at_point
from evener.service.context import Service, ServiceContext
from evener.service.events import EventLog, header
from evener.tasks import pack


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(state=str(tmp_path), retry_seconds=0.01, commit_seconds=0.05, concurrency=2)


@asynccontextmanager
async def running(context: ServiceContext, config: Config) -> AsyncIterator[Service]:
    """An evaluator that serves until the block ends, then dies without a word."""
    async with open_service(config, context) as service, running_service(service):
        yield service


async def write(context: ServiceContext, *trajectories: TrajectoryBuilt) -> None:
    events = EventLog(context.bus, context.blobs)
    for trajectory in trajectories:
        await events.send(Topic.BUILT, trajectory.session_id, trajectory, session_id=trajectory.session_id)


async def scores(context: ServiceContext, count: int) -> list[TrajectoryScored]:
    """Wait for so many scores in all and return them."""

    async def read() -> list[AnyEvent]:
        return [
            decode(record.value)
            for partition in range(context.bus.partitions_of(Topic.SCORED))
            async for record in context.bus.read(Topic.SCORED, partition)
            if record.value is not None
        ]

    return [event for event in await until(read, lambda found: len(found) >= count) if isinstance(event, TrajectoryScored)]


async def until_committed(context: ServiceContext) -> None:
    """Wait until the evaluator's offsets are at the ends of `trajectories.built`."""
    for partition in range(context.bus.partitions_of(Topic.BUILT)):
        if end := await context.bus.end(Topic.BUILT, partition):
            committed = partial(context.bus.committed, "evaluator", Topic.BUILT, partition)
            await until(committed, partial(eq, end))


async def test_every_session_is_scored_also_those_that_are_not_graded(tmp_path: Path, config: Config) -> None:
    """A right answer, a wrong one, none, and an end that nobody grades."""
    sessions = (
        built(index=0, given={"answer": "42"}),
        built(index=1, given={"answer": "41"}),
        built(index=2, given={"answer": None}),
        built(index=3, end=TerminationReason.CANCELLED, given={"detail": "by the user"}),
    )
    async with open_parts(tmp_path) as context:
        await write(context, *sessions)
        async with running(context, config):
            found = {score.trajectory.session_id: score for score in await scores(context, 4)}
            await until_committed(context)
        partition = context.bus.partition_of(Topic.SCORED, "fix-the-bug")
        (first, *_) = [record async for record in context.bus.read(Topic.SCORED, partition)]

    assert [found[f"fix-the-bug.{index}"].reward for index in range(4)] == [1.0, 0.0, 0.0, None]
    assert found["fix-the-bug.3"].ungraded == "cancelled: by the user"
    assert found["fix-the-bug.3"].tries == 0
    assert [found[session.session_id].trajectory for session in sessions] == list(sessions)
    assert first.key == "fix-the-bug"
    assert header(first, HEADER_SESSION) is not None


async def test_evaluator_that_can_open_no_sandbox_is_not_ready(tmp_path: Path, config: Config) -> None:
    """It would only use up the tries of every grading."""
    async with open_parts(tmp_path) as context, running(context, config) as service:
        (root,) = (tmp_path / "grading").iterdir()
        assert service.ready() == {"taking": True, "sandboxes": True}
        root.rename(tmp_path / "away")
        ready = service.ready()
        assert (ready["taking"], ready["sandboxes"]) == (True, False)
        assert f"sandboxes local: {root / 'local'} is gone, or cannot be written" in ready
        (tmp_path / "away").rename(root)


async def test_grading_continues_from_the_committed_offset(tmp_path: Path, config: Config) -> None:
    """A second evaluator repeats nothing that was committed."""
    async with open_parts(tmp_path) as context:
        await write(context, built(index=0))
        async with running(context, config):
            await scores(context, 1)
            await until_committed(context)
        await write(context, built(index=1))
        async with running(context, config):
            await scores(context, 2)
            await until_committed(context)

        assert len(await scores(context, 2)) == 2


async def test_drain_finishes_and_commits_what_is_open(tmp_path: Path, config: Config) -> None:
    slow = msgspec.structs.replace(config, commit_seconds=600.0)
    async with open_parts(tmp_path) as context:
        await write(context, *(built(index=index) for index in range(4)))
        async with running(context, slow) as service:
            await scores(context, 1)
            await service.drain()
            committed = [await context.bus.committed("evaluator", Topic.BUILT, partition) for partition in (0, 1)]

        assert sum(offset is not None for offset in committed) >= 1


async def task_of(context: ServiceContext, folder: Path, script: str) -> TaskRef:
    for name, text in {"instruction.md": "Do it.", "tests/test.sh": f"#!/bin/sh\n{script}\n"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "tests/test.sh").chmod(0o755)
    packed = pack.pack(folder)
    await context.blobs.put(packed.data)
    return packed.ref


async def test_grading_that_gives_no_reward_is_tried_again_and_then_ungraded(tmp_path: Path, config: Config) -> None:
    """The number of tries, the reason and the output of each of them are in the score."""
    async with open_parts(tmp_path) as context:
        task = await task_of(context, tmp_path / "task", "echo broken on purpose; exit 1")
        await write(context, built(task=task, grader=GraderSpec(name="harbor", tries=2)))
        async with running(context, config):
            (score,) = await scores(context, 1)
        output = {artifact.name: await context.blobs.get(artifact.blob) for artifact in score.evidence}

    assert (score.reward, score.tries) == (None, 2)
    assert score.ungraded is not None
    assert score.ungraded.startswith("tests/test.sh exited with 1 and wrote neither /logs/verifier/reward.json nor reward.txt")
    assert score.ungraded.endswith("its last lines: broken on purpose")
    assert output["test-stdout.txt"] == output["try-1/test-stdout.txt"] == b"broken on purpose\n"
    assert msgspec.json.decode(output["grading.json"])["exit_code"] == 1
    assert output["try-1/error.txt"].decode() == score.ungraded


async def test_grading_beyond_its_time_is_a_crash(tmp_path: Path, config: Config) -> None:
    """The grader's processes do not outlive it."""
    quick = msgspec.structs.replace(config, grading_seconds=3.5)
    async with open_parts(tmp_path) as context:
        task = await task_of(context, tmp_path / "task", "sleep 600")
        await write(context, built(task=task, grader=GraderSpec(name="harbor", tries=1)))
        async with running(context, quick):
            (score,) = await scores(context, 1)

        assert score.ungraded == "no grade within 3.5 s"
        assert "grading.json" in {artifact.name for artifact in score.evidence}
        assert [entry for entry in (tmp_path / "grading" / "test").glob("*/**/*") if entry.name not in {".held", ".removed"}] == []


async def test_grader_that_crashes_leaves_its_traceback(tmp_path: Path, config: Config) -> None:
    """A damaged artifact makes the grader crash: the evidence has the error."""
    async with open_parts(tmp_path) as context:
        task = await task_of(context, tmp_path / "task", "exit 0")
        artifacts = tuple([Artifact(name=name, blob=await context.blobs.put(b"{")) for name in ("changes.tar", "removed.json")])
        left = HarnessExit(cause=ExitCause.EXITED, exit_code=0, artifacts=artifacts)
        await write(context, built(task=task, grader=GraderSpec(name="harbor", tries=1), given={"exit": left}))
        async with running(context, config):
            (score,) = await scores(context, 1)
        output = {artifact.name: await context.blobs.get(artifact.blob) for artifact in score.evidence}

    assert score.ungraded is not None
    assert score.ungraded.startswith("the grader crashed: JSONDecodeError")
    assert b"Traceback" in output["crash.txt"]


async def test_a_store_that_is_away_costs_a_grading_no_try(tmp_path: Path, config: Config) -> None:
    """Neither the task's archive nor the evidence is the grader's fault; the session has its one try left when the store is back."""
    async with open_parts(tmp_path) as opened:
        store = Outage(opened.blobs)
        timings = msgspec.structs.replace(opened.blob_timings, answer_seconds=0.0)
        context = msgspec.structs.replace(opened, blobs=store, blob_timings=timings)
        task = await task_of(context, tmp_path / "task", "mkdir -p /logs/verifier; echo 0.5 > /logs/verifier/reward.txt")
        await write(context, built(task=task, grader=GraderSpec(name="harbor", tries=1)))
        store.away = True
        async with running(context, config):
            while store.refused < 5:  # the archive was asked for again and again
                store.met.clear()
                await store.met.wait()
            store.away = False
            (score,) = await scores(context, 1)

    assert (score.reward, score.tries, score.ungraded) == (0.5, 1, None)


async def test_unknown_grader_leaves_the_session_ungraded_at_once(tmp_path: Path, config: Config) -> None:
    async with open_parts(tmp_path) as context:
        await write(context, built(grader=GraderSpec(name="oracle")))
        async with running(context, config):
            (score,) = await scores(context, 1)

    assert (score.tries, score.ungraded) == (
        1,
        f"unknown grader 'oracle', not one of {', '.join(sorted(GRADERS))}",
    )


@pytest.mark.parametrize("bad", [RUBBISH, MISSING], ids=["rubbish", "missing"])
async def test_unreadable_trajectory_is_counted_from_the_log(tmp_path: Path, config: Config, bad: tuple[bytes, tuple[Header, ...]]) -> None:
    """Its record goes to dead-letters, and its session is scored as an empty, ungraded one."""
    cancelled = TerminationReason.CANCELLED
    lived = (
        builders.given_up("g.0", spec("g", 0, 1), cancelled, attempt=0),
        builders.sealed("g.0", cancelled, attempt=0, calls=2, sampled_tokens=9),
    )
    async with open_parts(tmp_path) as context:
        events = EventLog(context.bus, context.blobs)
        for event in lived:
            await events.send(Topic.SESSIONS, "g.0", event, session_id="g.0")
        value, claim = bad
        headers = (Header(HEADER_SESSION, b"g.0"), *claim)
        await context.bus.send([Outgoing(topic=Topic.BUILT, key="g.0", value=value, headers=headers)])
        async with running(context, config):
            (score,) = await scores(context, 1)
            await until_committed(context)
        (letter,) = [record async for record in context.bus.read(Topic.DEAD_LETTERS, 0)]

    assert score.ungraded == "dead_letter"
    assert score.trajectory.accounting.excluded == {ExclusionReason.DEAD_LETTER: 9}
    assert letter.value is not None
    assert isinstance(decode(letter.value), DeadLetter)


async def test_blob_that_is_missing_is_waited_for_and_is_no_failure_of_the_grader(tmp_path: Path, config: Config) -> None:
    """More tries than the task allows its grader: the store may be another one for a while."""
    patient = msgspec.structs.replace(config, blob_seconds=60.0)
    async with open_parts(tmp_path) as context:
        task = await task_of(context, tmp_path / "task", "echo 1 > /logs/verifier/reward.txt")
        (tmp_path / "blobs").rename(tmp_path / "away")
        (tmp_path / "blobs").mkdir()
        await write(context, built(index=0, task=task, grader=GraderSpec(name="harbor", tries=1)), built(index=1))
        with capture_logs() as logs:
            async with running(context, patient):
                assert [score.trajectory.session_id for score in await scores(context, 1)] == ["fix-the-bug.1"]
                await eventually(lambda: sum(entry["event"] == "blob_not_fetched" for entry in logs) > 1)
                (tmp_path / "blobs").rename(tmp_path / "other")
                (tmp_path / "away").rename(tmp_path / "blobs")
                found = {score.trajectory.session_id: score for score in await scores(context, 2)}
    assert (found["fix-the-bug.0"].ungraded, found["fix-the-bug.0"].tries) == (None, 1)


async def test_blob_that_stays_missing_leaves_the_session_ungraded_with_the_reason(tmp_path: Path, config: Config) -> None:
    hasty = msgspec.structs.replace(config, blob_seconds=0.2)
    async with open_parts(tmp_path) as context:
        task = await task_of(context, tmp_path / "task", "exit 0")
        (tmp_path / "blobs" / path_of(task.archive.digest)).unlink()
        await write(context, built(task=task, grader=GraderSpec(name="harbor", tries=1)))
        async with running(context, hasty):
            (score,) = await scores(context, 1)
    assert score.ungraded is not None
    assert score.ungraded.startswith(f"blob {task.archive.digest} is not in {tmp_path / 'blobs'}")


async def test_verifier_that_fails_once_is_asked_again_and_one_that_always_fails_gives_no_reward(tmp_path: Path, config: Config) -> None:
    """Rewards of calls go along; what was asked, answered and graded is kept by name, of each try."""
    good, bad = ((503, "busy"), (200, {"reward": 0.5, "call_rewards": {"c1": 0.25}})), ((200, {"reward": None}),)
    calls = (CallSummary(call_id="c1", attempt=1, opened_at=0.0),)
    async with answering(*good) as verifier, answering(*bad) as broken, open_parts(tmp_path) as context:
        endpoints = {"good": Endpoint(url=verifier.url), "broken": Endpoint(url=broken.url)}
        for index, name in enumerate(endpoints):
            await write(
                context, built(index=index, given={"calls": calls}, grader=GraderSpec(name="http", options={"endpoint": name}, tries=2))
            )
        async with running(context, msgspec.structs.replace(config, endpoints=endpoints)):
            first, second = sorted(await scores(context, 2), key=lambda score: score.trajectory.session_id)
        kept = {artifact.name: await context.blobs.get(artifact.blob) for artifact in first.evidence}

    assert (first.reward, first.call_rewards, first.tries) == (0.5, {"c1": 0.25}, 2)
    assert {"inputs.json", "request.json", "response.json", "try-1/error.txt", "try-1/response.json"} <= set(kept)
    assert kept["try-1/response.json"] == b"busy"
    assert msgspec.json.decode(kept["inputs.json"])["grader"]["options"] == {"endpoint": "good"}
    assert (second.reward, second.tries, len(broken.asked)) == (None, 2, 2)
    assert second.ungraded == "no reward among the grader's numbers"


def compared(index: int, task: TaskRef, **given: Any) -> TrajectoryBuilt:
    """Return a session of two whose group is graded together."""
    grader = GraderSpec(name="relative_judge", options={"endpoint": "judge", "rubric": "The better number."}, tries=2)
    return built(index=index, size=2, task=task, grader=grader, **given)


async def stored_task(context: ServiceContext, folder: Path) -> TaskRef:
    (folder / "task").mkdir()
    (folder / "task/instruction.md").write_text("A number?")
    (folder / "task/task.toml").write_text('[metadata.evener]\nexpected = "4"\n')
    packed = pack.pack(folder / "task")
    await context.blobs.put(packed.data)
    return packed.ref


def judged(words: str) -> tuple[int, Any]:
    return 200, {"choices": [{"message": {"role": "assistant", "content": words}, "finish_reason": "stop"}]}


def by_answer(found: list[TrajectoryScored]) -> dict[str | None, float | None]:
    return {score.trajectory.answer: score.reward for score in found if not score.pending}


async def test_group_is_graded_together_when_its_last_session_is_there(tmp_path: Path, config: Config) -> None:
    """One judgement for both; each has its own number of it, and its own score is passed over."""
    async with open_parts(tmp_path) as context, answering(judged("SCORES: 1, 0.25")) as server:
        config = msgspec.structs.replace(config, endpoints={"judge": Endpoint(url=server.url)})
        task = await stored_task(context, tmp_path)
        async with running(context, config):
            await write(context, compared(0, task, given={"answer": "first"}))
            (waits,) = await scores(context, 1)
            assert (waits.pending, waits.reward, server.asked) == (True, None, [])
            await write(context, compared(1, task, given={"answer": "second"}))
            found = await scores(context, 4)

    (asked,) = server.asked
    prompt = asked["messages"][1]["content"]
    order = sorted(("first", "second"), key=prompt.index)
    assert by_answer(found) == {order[0]: 1.0, order[1]: 0.25}
    assert all("group/judgement.txt" in {artifact.name for artifact in score.evidence} for score in found if not score.pending)


async def test_group_whose_judge_fails_gets_no_reward_and_never_a_number(tmp_path: Path, config: Config) -> None:
    async with open_parts(tmp_path) as context, answering(judged("SCORES: 1")) as server:
        config = msgspec.structs.replace(config, endpoints={"judge": Endpoint(url=server.url)})
        task = await stored_task(context, tmp_path)
        async with running(context, config):
            await write(context, *(compared(index, task, given={"answer": str(index)}) for index in range(2)))
            found = [score for score in await scores(context, 4) if not score.pending]

    assert [(score.reward, score.tries) for score in found] == [(None, 2)] * 2
    assert all("is not 2 scores from 0 to 1" in str(score.ungraded) for score in found)
    assert len(server.asked) == 2


async def test_session_that_is_not_graded_takes_no_part_but_ends_the_wait(tmp_path: Path, config: Config) -> None:
    async with open_parts(tmp_path) as context, answering(judged("SCORES: 0.5")) as server:
        config = msgspec.structs.replace(config, endpoints={"judge": Endpoint(url=server.url)})
        task = await stored_task(context, tmp_path)
        async with running(context, config):
            await write(context, compared(0, task, end=TerminationReason.CANCELLED))
            await write(context, compared(1, task, given={"answer": "only"}))
            found = await scores(context, 3)
            await until_groups_committed(context)

    assert by_answer([score for score in found if score.trajectory.spec.index == 1]) == {"only": 0.5}
    assert [score.reward for score in found if score.trajectory.spec.index == 0] == [None]


async def test_group_of_an_evaluator_that_died_is_graded_by_the_next_all_or_nothing(tmp_path: Path, config: Config) -> None:
    """Before the scores are in the log the judge is asked again; afterwards nobody is, and nothing is written twice."""
    async with open_parts(tmp_path) as context, answering(judged("SCORES: 1, 0")) as server:
        config = msgspec.structs.replace(config, endpoints={"judge": Endpoint(url=server.url)})
        task = await stored_task(context, tmp_path)
        reached = asyncio.Event()

        async def stops() -> None:
            reached.set()
            await asyncio.Event().wait()

        with at_point("evaluator.group_graded", stops):
            async with running(context, config):
                await write(context, *(compared(index, task, given={"answer": str(index)}) for index in range(2)))
                await asyncio.wait_for(reached.wait(), 30)
                await until_committed(context)  # or the next one would score the sessions themselves again
        assert [score.pending for score in await scores(context, 2)] == [True, True]
        async with running(context, config):
            await scores(context, 4)
            await until_groups_committed(context)
        async with running(context, config):
            await write(context, built("other", given={"answer": "42"}))
            found = await scores(context, 5)

    assert len(server.asked) == 2
    assert sorted(score.reward for score in found if score.trajectory.spec.group_id != "other" and score.reward is not None) == [0.0, 1.0]


async def until_groups_committed(context: ServiceContext) -> None:
    """Wait until all groups that are graded together were passed."""
    for partition in range(context.bus.partitions_of(Topic.SCORED)):
        if end := await context.bus.end(Topic.SCORED, partition):
            await until(partial(context.bus.committed, "evaluator-groups", Topic.SCORED, partition), partial(eq, end))
