"""What the example submits, waits for and counts, against a real scheduler."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from arms import MAX_REPLACED, Arm, Bench, Feed, waited
from checking import sessions_run
from held_out import HeldOut, ended, judged, submit
from running import CALLS, NotDone
from tests.support.other_services import OtherServices
from tests.support.scheduler import scheduler
from tests.support.waiting import until

from evener.blobs.open import open_blobs
from evener.bus.open import open_bus
from evener.client.views import TaskView
from evener.proto.sessions import SessionDispatched
from evener.proto.spec import Purpose
from evener.proto.tasks import TaskOutcome

ARM = Arm(name="arm", harness="script", kinds=("write", "copy"), steps=3, groups=2, samples=2)


@pytest.fixture
async def others(tmp_path: Path) -> AsyncIterator[OtherServices]:
    async with open_bus(f"embedded:{tmp_path / 'bus'}", partitions=2) as bus:
        yield OtherServices(bus, open_blobs(str(tmp_path / "blobs")))


@pytest.fixture
async def bench(others: OtherServices, tmp_path: Path) -> AsyncIterator[Bench]:
    async with scheduler(others.bus, tmp_path) as client:
        yield Bench(client=client, out=tmp_path, start=tmp_path, python=tmp_path, url="", held_out=3)


async def failed(others: OtherServices, bench: Bench, task_ids: Sequence[str]) -> None:
    """Let the groups of tasks fail, as the bridge says it."""
    for task_id in task_ids:
        await others.group_ended(task_id, ARM.samples, reason="too few sessions")

    async def lost() -> list[TaskView]:
        return [view for view in await bench.client.tasks(ARM.name) if view.outcome is TaskOutcome.FAILED]

    await until(lost, lambda views: {view.task_id for view in views} >= set(task_ids))


async def test_training_is_submitted_for_training_and_held_out_prompts_for_evaluation(bench: Bench) -> None:
    """An evaluation under the wrong purpose would be trained on."""
    await Feed(bench, ARM).submit(1)
    await submit(bench, "before", "script", "copy", policy="control")
    training, evaluation = await bench.client.tasks(ARM.name), await bench.client.tasks("before")

    assert sorted(view.task_id for view in training) == [f"arm.{kind}.001.{number}" for kind in ("copy", "write") for number in range(2)]
    assert {(view.purpose, view.samples) for view in training} == {(Purpose.TRAIN, 2)}
    assert len(evaluation) == bench.held_out
    assert {(view.purpose, view.samples) for view in evaluation} == {(Purpose.EVAL, 4)}


async def test_a_group_that_fails_is_told_and_another_takes_its_place(
    bench: Bench, others: OtherServices, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once; of the same kind."""
    feed = Feed(bench, ARM)
    await feed.submit(1)
    await failed(others, bench, ["arm.copy.001.1"])
    for _ in range(2):
        await feed.replace_failed()

    assert "arm.copy.001.1 failed: too few sessions" in capsys.readouterr().out
    assert [view.task_id for view in await bench.client.tasks(ARM.name) if "again" in view.task_id] == ["arm.copy.again.1"]


async def test_an_arm_whose_groups_fail_again_and_again_ends(bench: Bench, others: OtherServices) -> None:
    feed = Feed(bench, ARM)
    for step in range(1, 4):
        await feed.submit(step)
    names = [view.task_id for view in await bench.client.tasks(ARM.name)]
    await failed(others, bench, names[: MAX_REPLACED + 1])

    with pytest.raises(NotDone, match="more than 8 groups failed, the last one of: too few sessions"):
        await feed.replace_failed()


async def test_a_step_that_does_not_come_ends_the_arm(bench: Bench, others: OtherServices) -> None:
    """Failed groups are replaced while it is waited for."""
    feed = Feed(bench, ARM)
    await feed.submit(1)
    await failed(others, bench, ["arm.write.001.0"])

    async def never() -> str:
        await asyncio.Event().wait()
        return ""

    with pytest.raises(NotDone, match="arm step 1 did not come in 0 s"):
        await waited(never, feed, "arm step 1", seconds=0.3)
    assert any(view.task_id == "arm.write.again.1" for view in await bench.client.tasks(ARM.name))


async def test_an_evaluation_that_does_not_end_says_so(bench: Bench) -> None:
    await submit(bench, "before", "script", "write")

    with pytest.raises(NotDone, match="before: 3 of 3 tasks have not ended"):
        await ended(bench.client, "before", bench.held_out, seconds=0.3)


async def test_repeated_task_is_sent_once_more_with_the_calls_for_it(bench: Bench, others: OtherServices) -> None:
    await Feed(bench, Arm(name="arm", harness="script", kinds=("write",), steps=1, groups=1, samples=1, again=2)).submit(1)
    async with others.beating(capacity=1):
        (given,) = await others.dispatched(1)
    told = (bench.out / "tasks" / "arm-write-001-0" / "instruction.md").read_text()

    assert given.spec.harness.options == {"turns": f"{told}{told.strip()}"}
    assert given.spec.budgets.calls == 3 * CALLS


async def test_only_sessions_that_were_started_and_ended_have_run(bench: Bench, others: OtherServices) -> None:
    """Whatever was submitted; those of failed groups are named."""
    await Feed(bench, Arm(name="arm", harness="script", kinds=("write",), steps=1, groups=2, samples=2)).submit(1)
    async with others.beating(capacity=3):
        given: list[SessionDispatched] = await others.dispatched(3)
    first, second = (task_id for task_id in ("arm.write.001.0", "arm.write.001.1"))
    for event in given[:2]:
        await others.started(event)
        await others.sealed(event.session_id)
    await failed(others, bench, [first])
    ran = await until(lambda: sessions_run(bench.client, ARM.name), lambda ran: len(ran["sessions"]) == 2)

    assert {event.session_id for event in given[:2]} == {f"{first}.0", f"{first}.1"}
    assert sorted(ran["sessions"]) == sorted(ran["of_failed_groups"]) == [f"{first}.0", f"{first}.1"]
    assert second not in {session.rpartition(".")[0] for session in ran["sessions"]}


def test_sessions_without_a_grade_are_neither_right_nor_wrong() -> None:
    """They are counted; tasks that failed have no rewards at all."""
    assert judged([1.0, 0.1, None, 1.0], 6) == HeldOut(right=2 / 3, sessions=6, ungraded=3)
    assert judged([], 4) == HeldOut(right=0.0, sessions=4, ungraded=4)
