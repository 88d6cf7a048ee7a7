"""The scheduler on the embedded bus: its promises to clients and runners, and how groups end."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from msgspec import structs
from opentelemetry import trace
from opentelemetry.trace import SpanContext
from prometheus_client import CollectorRegistry
from tests.support.builders import heartbeat
from tests.support.loop import Time
from tests.support.other_services import OtherServices
from tests.support.ports import closed_port
from tests.support.scheduler import scheduler
from tests.support.service_context import MISSING, RUBBISH, open_parts, operator
from tests.support.spans import Spans
from tests.support.waiting import eventually, until

from evener.blobs.open import open_blobs
from evener.bus.open import open_bus
from evener.bus.port import Bus, Header, Outgoing, Record
from evener.client.client import Client
from evener.client.errors import RequestRefused, TokenRefused, Unavailable, Unreachable
from evener.client.views import ACTIVE_HEADER, EngineRequest, Submission
from evener.proto.codec import tag_of
from evener.proto.fleet import DeadLetter, GraderOffer
from evener.proto.reasons import TerminationReason
from evener.proto.sessions import Event, SessionCancelled, SessionDispatched, SessionGivenUp
from evener.proto.spec import Budgets, GraderSpec, HarnessSpec, Purpose, TaskRef
from evener.proto.state import Stage
from evener.proto.tasks import TaskEnded, TaskOptions, TaskOutcome, TaskSubmitted
from evener.proto.topics import HEADER_TYPE, Topic
from evener.runtime.faults import arm
from evener.scheduler.config import Config
from evener.scheduler.fleet_reader import FleetReader
from evener.scheduler.service import open_service
from evener.service.events import header
from evener.service.fleet_feed import FleetFeed
from evener.service.state_folder import TOKEN_FILE
from evener.service.tracing import context_of
from evener.tasks.directory import bundled, find
from evener.tasks.pack import pack

PACKED = pack(find(bundled())[0])
LEASE_SECONDS = 3.0
"""Longer than a busy machine holds back the heartbeats of a runner that lives."""


def options(samples: int = 2, **given: Any) -> TaskOptions:
    fields: dict[str, Any] = {"harness": HarnessSpec(name="script"), "grader": GraderSpec(name="answer", options={"expected": "Paris"})}
    return TaskOptions(samples=samples, **fields | given)


async def submit(client: Client, task_id: str = "t", samples: int = 2, **given: Any) -> None:
    await client.put_blob(PACKED.data)
    await client.submit(options(samples, **given), task=PACKED.ref, task_id=task_id)


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[Bus]:
    async with open_bus(f"embedded:{tmp_path / 'bus'}", partitions=2) as opened:
        yield opened


@pytest.fixture
def others(bus: Bus, tmp_path: Path) -> OtherServices:
    return OtherServices(bus, open_blobs(str(tmp_path / "blobs")))


async def test_task_goes_from_submission_to_its_end(bus: Bus, others: OtherServices, tmp_path: Path) -> None:
    """Submitted, dispatched by capacity, started, sealed, merged: each is seen, and the end is reported once."""
    async with scheduler(bus, tmp_path) as client:
        await submit(client, samples=3)
        async with others.beating(capacity=2):
            first = await others.dispatched(2)
            for event in first:
                await others.started(event)
            detail = await until(lambda: client.task("t"), lambda detail: detail.task.stages.get(Stage.RUNNING) == 2)
            assert [session.runner_id for session in detail.sessions] == ["runner", "runner", None]
            assert len(await others.read(Topic.DISPATCH, SessionDispatched)) == 2

            await others.sealed("t.0")
            await others.dispatched(3)
        for session_id in ("t.1", "t.2"):
            await others.sealed(session_id)
        await others.group_ended("t", 3)
        ended = (await until(lambda: client.task("t"), lambda detail: detail.task.outcome is not None)).task

    assert (ended.outcome, ended.rewards, ended.ends) == (TaskOutcome.MERGED, (0.0, 1.0, 2.0), {TerminationReason.FINISHED: 3})
    assert len(await others.read(Topic.TASKS, TaskEnded)) == 1


async def test_submission_is_idempotent_by_the_clients_own_id(bus: Bus, others: OtherServices, tmp_path: Path) -> None:
    """Also at the next scheduler; other content under the same id is refused."""
    async with scheduler(bus, tmp_path) as client:
        await submit(client)
        await submit(client)
    async with scheduler(bus, tmp_path) as client:
        await submit(client)
        with pytest.raises(RequestRefused, match="t is there already") as refused:
            await submit(client, samples=5)

    assert refused.value.status == 409
    assert len(await others.read(Topic.TASKS, TaskSubmitted)) == 1


async def test_task_without_an_id_gets_one(bus: Bus, tmp_path: Path) -> None:
    async with scheduler(bus, tmp_path) as client:
        await client.put_blob(PACKED.data)
        views = [(await client.submit(options(), task=PACKED.ref)).task for _ in range(2)]

        assert [view.task_id for view in await client.tasks("default")] == [view.task_id for view in views]
        assert await client.tasks("other") == ()


@pytest.mark.parametrize("priority", [0, 101])
async def test_priority_out_of_its_range_is_refused(bus: Bus, tmp_path: Path, priority: int) -> None:
    """A run that nothing would ever run, and one that nothing would run beside."""
    async with scheduler(bus, tmp_path) as client:
        await client.put_blob(PACKED.data)
        with pytest.raises(RequestRefused, match="priority"):
            await client.submit(structs.replace(options(), priority=priority), task=PACKED.ref)


async def test_priority_of_a_run_gives_it_its_share_of_the_slots(bus: Bus, others: OtherServices, tmp_path: Path) -> None:
    """Also for the scheduler that takes over: it is in the log."""
    async with scheduler(bus, tmp_path) as client:
        await submit(client, "low", samples=4, run_id="low")
        await submit(client, "high", samples=4, run_id="high", priority=3)
        assert (await client.task("high")).task.priority == 3
    async with scheduler(bus, tmp_path), others.beating(capacity=4):
        shares = Counter(event.spec.run_id for event in await others.dispatched(4))

    assert shares == {"high": 3, "low": 1}


async def test_scheduler_that_dies_between_commit_and_answer_has_taken_the_task(bus: Bus, others: OtherServices, tmp_path: Path) -> None:
    """The client hears an error, asks again, and there is one task."""
    arm("cancel@scheduler.submitted")
    async with scheduler(bus, tmp_path) as client:
        with pytest.raises(Exception, match="stopped before it could answer"):
            await submit(client)
    arm("")
    async with scheduler(bus, tmp_path) as client:
        assert [view.task_id for view in await client.tasks()] == ["t"]
        await submit(client)

    assert len(await others.read(Topic.TASKS, TaskSubmitted)) == 1


@pytest.mark.parametrize("where", ["scheduler.dispatched", "scheduler.task_ended"])
async def test_next_scheduler_continues_where_the_last_one_died(bus: Bus, others: OtherServices, tmp_path: Path, where: str) -> None:
    """Right after a commit, before anything that follows from it: nothing is dispatched or told twice."""
    arm(f"cancel@{where}")
    async with scheduler(bus, tmp_path) as client:
        await submit(client, samples=1)
        await others.beat()
        await others.dispatched(1)
        if where == "scheduler.task_ended":
            await others.sealed("t.0")
            await others.group_ended("t", 1)
            await until(lambda: others.read(Topic.TASKS, TaskEnded), bool)
    arm("")
    async with scheduler(bus, tmp_path) as client, others.beating():
        if where == "scheduler.dispatched":
            await others.sealed("t.0")
            await others.group_ended("t", 1)
        await until(lambda: client.task("t"), lambda detail: detail.task.outcome is not None)

    assert len(await others.read(Topic.DISPATCH, SessionDispatched)) == 1
    assert len(await others.read(Topic.TASKS, TaskEnded)) == 1


async def test_fenced_scheduler_writes_nothing_more_and_continues_where_the_other_stopped(
    bus: Bus, others: OtherServices, tmp_path: Path
) -> None:
    """Somebody else took its transactional id: it refuses what it cannot commit, then takes over again, for it is still assigned."""
    async with scheduler(bus, tmp_path) as client:
        await submit(client)
        await (await bus.producer("scheduler-main")).aclose()
        with pytest.raises(Unavailable):
            await client.submit(options(), task=PACKED.ref, task_id="u")
        assert [event.task_id for event in await others.read(Topic.TASKS, TaskSubmitted)] == ["t"]

        await client.patiently(lambda: client.submit(options(), task=PACKED.ref, task_id="u"))
        assert {view.task_id for view in await client.tasks()} == {"t", "u"}


async def test_scheduler_that_drains_refuses_what_waits_and_what_comes(bus: Bus, tmp_path: Path) -> None:
    """503 with Retry-After, and a moment: another one takes over."""
    async with open_parts(tmp_path / "parts") as parts:
        context = structs.replace(parts, bus=bus)
        async with open_service(Config(state=str(tmp_path), bus="unused"), context) as service, operator(service.routes) as http:
            running = asyncio.ensure_future(service.run())
            await eventually(lambda: service.ready() == {"active": True})
            await service.drain()
            async with http.get("/tasks") as answer:
                assert (answer.status, answer.headers["retry-after"]) == (503, "2")
                assert answer.headers[ACTIVE_HEADER] == ""
            assert service.heartbeat().stopping
            assert not service.heartbeat().active_epoch
            assert not running.done()
            async with open_service(Config(state=str(tmp_path), bus="unused"), context) as successor:
                next_one = asyncio.ensure_future(successor.run())
                await eventually(lambda: successor.ready() == {"active": True})
            for task in (running, next_one):
                task.cancel()
            await asyncio.gather(running, next_one, return_exceptions=True)


async def test_schedulers_of_two_names_do_not_touch_each_others_tasks(bus: Bus, others: OtherServices, tmp_path: Path) -> None:
    """They share topics, runners and nothing else."""
    named = (f"u{number}" for number in range(100))
    foreign = next(name for name in named if places(bus, name) == places(bus, "t"))
    async with scheduler(bus, tmp_path, name="one") as one, scheduler(bus, tmp_path, name="two") as two:
        await submit(one, "t", samples=1)
        await submit(two, foreign, samples=1)
    async with scheduler(bus, tmp_path, name="one") as one:
        assert [view.task_id for view in await one.tasks()] == ["t"]
        for task_id in (foreign, "t"):  # read in this order: they stand in the same partitions
            await others.sealed(f"{task_id}.0")
            await others.group_ended(task_id, 1)
        await until(lambda: one.task("t"), lambda detail: detail.task.outcome is not None)

    assert [event.task_id for event in await others.read(Topic.TASKS, TaskEnded)] == ["t"]


def places(bus: Bus, task_id: str) -> tuple[int, int]:
    """Return the partitions in which the ends of a task's session and group stand."""
    return bus.partition_of(Topic.SESSIONS, f"{task_id}.0"), bus.partition_of(Topic.MERGED, task_id)


async def test_recording_goes_without_a_task(bus: Bus, others: OtherServices, tmp_path: Path) -> None:
    """Its harness is whatever its user runs."""
    recorded = options(1, harness=HarnessSpec(name="my-agent", sandbox="none"), grader=GraderSpec(name="fixed"), purpose=Purpose.COLLECT)
    async with scheduler(bus, tmp_path) as client:
        await client.submit(recorded, task_id="r")
        await others.beat()
        (event,) = await others.dispatched(1)

    assert (event.spec.task, event.spec.harness.sandbox, event.spec.group.min_usable) == (None, "none", 1)


async def test_silent_runner_loses_its_attempts_to_another(bus: Bus, others: OtherServices, tmp_path: Path) -> None:
    """After a lease without a sign, attempt 2 goes to a runner that lives."""
    registry = CollectorRegistry()
    async with scheduler(bus, tmp_path, registry=registry, lease_seconds=LEASE_SECONDS) as client:
        await submit(client, samples=1)
        await others.beat("silent")
        (first,) = await others.dispatched(1)
        await others.started(first)
        async with others.beating("other"):
            second = (await others.dispatched(2))[1]

    assert (first.runner_id, first.attempt, first.lease_seconds) == ("silent", 1, LEASE_SECONDS)
    assert (second.runner_id, second.attempt, second.session_id) == ("other", 2, "t.0")
    assert registry.get_sample_value("evener_attempts_lost_total", {"reason": "lease_expired"}) == 1


async def test_dead_instance_leaves_the_fleet_and_comes_back_with_its_next_heartbeat(
    bus: Bus, others: OtherServices, tmp_path: Path
) -> None:
    """Its last heartbeat is deleted from the log too. Who lives on stays."""

    async def shown(client: Client) -> set[str]:
        return {one.instance_id for one in (await client.fleet()).instances}

    await others.beat("dead")
    async with open_parts(tmp_path / "parts") as parts:
        time = Time()
        reader = FleetReader(Config(state=str(tmp_path), bus="unused"), structs.replace(parts, bus=bus, fleet=FleetFeed(bus, time)), time)
        await reader.start()
        async with others.beating("alive"), scheduler(bus, tmp_path) as client:
            following = asyncio.ensure_future(reader.follow(lambda: None))
            await until(lambda: shown(client), lambda names: names == {"dead", "alive"})
            time.now += 2 * Config().forget_seconds
            await eventually(lambda: reader.fleet.alive("alive", now=time.now))
            await reader.forget_the_dead()
            assert set(reader.fleet.heartbeats) == {"alive"}
            await until(lambda: shown(client), lambda names: names == {"alive"})
            assert "dead" not in await bus.last_values(Topic.FLEET, 0)
            await others.beat("dead")
            await until(lambda: shown(client), lambda names: names == {"dead", "alive"})
            following.cancel()


async def test_session_whose_attempts_are_used_up_is_given_up(bus: Bus, others: OtherServices, tmp_path: Path) -> None:
    async with scheduler(bus, tmp_path) as client, others.beating():
        await submit(client, samples=1, budgets=Budgets(attempts=2))
        for attempt in (1, 2):
            event = (await others.dispatched(attempt))[-1]
            await others.started(event)
            await others.attempt_ended(event)
        (given_up,) = await until(lambda: others.read(Topic.SESSIONS, SessionGivenUp), bool)
        await others.sealed("t.0", given_up.termination_reason, attempt=2)
        await others.group_ended("t", 1, reason="1 usable session of 1 needed")
        ended = (await until(lambda: client.task("t"), lambda detail: detail.task.outcome is not None)).task

    assert (given_up.session_id, given_up.attempt, given_up.termination_reason) == ("t.0", 2, TerminationReason.ATTEMPTS_USED_UP)
    assert given_up.spec.task == PACKED.ref
    assert (ended.outcome, ended.attempts) == (TaskOutcome.FAILED, 2)


async def test_cancelled_task_tells_runner_and_owners_and_ends_with_its_group(bus: Bus, others: OtherServices, tmp_path: Path) -> None:
    async with scheduler(bus, tmp_path) as client:
        await submit(client, purpose=Purpose.EVAL)
        await others.beat(capacity=1)
        await others.dispatched(1)
        detail = await client.cancel("t", "changed my mind")
        assert detail.task.stages == {Stage.GIVEN_UP: 2}
        (told,) = await others.read(Topic.DISPATCH, SessionCancelled)
        given_up = await until(lambda: others.read(Topic.SESSIONS, SessionGivenUp), lambda found: len(found) == 2)
        for event in given_up:
            await others.sealed(event.session_id, event.termination_reason)
        await others.group_ended("t", 2, purpose=Purpose.EVAL, reason="cancelled")
        ended = (await until(lambda: client.task("t"), lambda detail: detail.task.outcome is not None)).task
        again = (await client.cancel("t")).task

    assert (told.session_id, told.runner_id, told.reason) == ("t.0", "runner", "changed my mind")
    assert (ended.outcome, ended.reason) == (TaskOutcome.CANCELLED, "changed my mind")
    assert again.outcome is TaskOutcome.CANCELLED


async def test_give_up_is_reported_again_until_the_seal_is_read(bus: Bus, others: OtherServices, tmp_path: Path) -> None:
    """The first scheduler may have died before it told anybody."""
    async with scheduler(bus, tmp_path) as client:
        await submit(client, samples=1)
        await client.cancel("t")
        await until(lambda: others.read(Topic.SESSIONS, SessionGivenUp), bool)
    async with scheduler(bus, tmp_path) as client:
        await until(lambda: others.read(Topic.SESSIONS, SessionGivenUp), lambda found: len(found) == 2)
        await others.sealed("t.0", TerminationReason.CANCELLED, attempt=0)
        await until(lambda: client.task("t"), lambda detail: detail.task.stages == {Stage.SEALED: 1})
    async with scheduler(bus, tmp_path):
        pass  # it tells owners before it is ready

    assert len(await others.read(Topic.SESSIONS, SessionGivenUp)) == 2


async def test_giving_up_is_not_sent_again_where_its_seal_was_written_meanwhile(bus: Bus, others: OtherServices, tmp_path: Path) -> None:
    """The scheduler was down for so long that the owner has forgotten the seal, and would seal again."""
    async with scheduler(bus, tmp_path) as client:
        await submit(client, samples=1)
        await client.cancel("t")
        (given_up,) = await until(lambda: others.read(Topic.SESSIONS, SessionGivenUp), bool)
    await others.sealed("t.0", given_up.termination_reason, attempt=given_up.attempt)
    async with scheduler(bus, tmp_path) as client:
        await until(lambda: client.task("t"), lambda detail: detail.task.stages == {Stage.SEALED: 1})

    assert len(await others.read(Topic.SESSIONS, SessionGivenUp)) == 1


async def test_hard_deadline_gives_up(bus: Bus, others: OtherServices, tmp_path: Path) -> None:
    async with scheduler(bus, tmp_path) as client:
        await submit(client, samples=1, budgets=Budgets(deadline_seconds=0.3))
        async with others.beating():
            held = await others.dispatched(1)
            async with others.beating(running=held):
                (given_up,) = await until(lambda: others.read(Topic.SESSIONS, SessionGivenUp), bool)

    assert given_up.termination_reason is TerminationReason.DEADLINE


@pytest.mark.parametrize("bad", [RUBBISH, MISSING], ids=["rubbish", "missing"])
async def test_bad_record_goes_to_the_dead_letters_and_the_stream_continues(
    bus: Bus, others: OtherServices, tmp_path: Path, bad: tuple[bytes, tuple[Header, ...]]
) -> None:
    async with scheduler(bus, tmp_path) as client:
        await submit(client, samples=1)
        value, claim = bad
        await bus.send([Outgoing(topic=Topic.MERGED, key="t", value=value, headers=claim)])
        await others.sealed("t.0")
        await others.group_ended("t", 1)
        await until(lambda: client.task("t"), lambda detail: detail.task.outcome is not None)

    (letter,) = await others.read(Topic.DEAD_LETTERS, DeadLetter)
    assert (letter.service, letter.topic, letter.value) == ("scheduler", Topic.MERGED, bad[0])


async def test_watcher_sees_changes_and_resumes_after_its_cursor(bus: Bus, others: OtherServices, tmp_path: Path) -> None:
    """Level-triggered: it gets the present state of the tasks that it missed, also from the next scheduler."""
    async with scheduler(bus, tmp_path) as client:
        watching = client.watch("default")
        await submit(client, samples=1)
        first = await anext(watching)
        await others.beat()
        second = await anext(watching)
        assert (first.stages, second.stages) == ({Stage.QUEUED: 1}, {Stage.DISPATCHED: 1})
        await watching.aclose()

        await others.sealed("t.0")
        resumed = client.watch("default", after=second.cursor)
        assert (await anext(resumed)).stages == {Stage.SEALED: 1}
        await resumed.aclose()
        other = client.watch("another")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(other), 0.3)
    async with scheduler(bus, tmp_path) as client:
        resumed = client.watch(after=second.cursor)
        assert (await anext(resumed)).stages == {Stage.SEALED: 1}
        await resumed.aclose()


async def test_engines_join_drain_and_leave(bus: Bus, others: OtherServices, tmp_path: Path) -> None:
    async with scheduler(bus, tmp_path) as client:
        await others.beat()
        await client.join_engine(EngineRequest(engine_id="e1", kind="vllm", url="http://127.0.0.1:8000", policy="policy"))
        fleet = await until(client.fleet, lambda fleet: bool(fleet.instances))
        assert [(engine.engine_id, engine.policy, engine.draining) for engine in fleet.engines] == [("e1", "policy", False)]
        assert [(instance.instance_id, instance.alive) for instance in fleet.instances] == [("runner", True)]

        assert (await client.drain_engine("e1")).engines[0].draining
        assert (await client.remove_engine("e1")).engines == ()
        with pytest.raises(RequestRefused, match="no engine e1"):
            await client.remove_engine("e1")


async def test_blob_comes_back_as_it_was_put(bus: Bus, tmp_path: Path) -> None:
    async with scheduler(bus, tmp_path) as client:
        ref = await client.put_blob(b"x" * 1_000_000)

        assert await client.get_blob(ref) == b"x" * 1_000_000


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        (b"{", None, "not JSON"),
        (b"[]", None, "Expected `object`"),
        (b'{"options": {"grader": {"name": "none"}}}', "options", "harness"),
        (b'{"optoins": {}}', "optoins", "unknown field optoins"),
        (b'{"options": {"harness": {"name": "script"}, "grader": {"name": "none"}, "sample": 2}}', "options.sample", "unknown"),
        (
            b'{"options": {"harness": {"name": "script"}, "grader": {"name": "none"}, "sampling": {"temprature": 2}}}',
            "options.sampling.temprature",
            "unknown",
        ),
        (b'{"options": {"harness": {"name": "script"}, "grader": {"name": "none"}, "samples": 0}}', "options.samples", ">= 1"),
        (b'{"task_id": "no spaces", "options": {"harness": {"name": "script"}, "grader": {"name": "none"}}}', "task_id", "letters"),
        (b'{"options": {"harness": {"name": "skript"}, "grader": {"name": "none"}}}', "options.harness", "did you mean 'script'"),
        (b'{"options": {"harness": {"name": "script"}, "grader": {"name": "judge"}}}', "task", "without a task"),
    ],
)
async def test_wrong_submission_is_refused_by_field(bus: Bus, tmp_path: Path, body: bytes, field: str | None, said: str) -> None:
    """Status 400, one line that says what, and where."""
    async with scheduler(bus, tmp_path) as client:
        with pytest.raises(RequestRefused, match=said) as refused:
            await client._connection.data("POST", "/tasks", body=body)

    assert (refused.value.status, refused.value.field) == (400, field)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"grader": GraderSpec(name="nonsense")}, "options.grader.name"),
        ({"grader": GraderSpec(name="harbor")}, "options.grader"),
        ({"group": {"deliver_early_at": 3}}, "options.group.deliver_early_at"),
        ({"group": {"min_usable": 3}}, "options.group.min_usable"),
        ({"group": {"drop_zero_variance": True}, "purpose": "eval"}, "options.group.drop_zero_variance"),
        ({"group": {"drop_zero_variants": True}}, "options.group.drop_zero_variants"),
        ({"harness": HarnessSpec(name="script", sandbox="podman")}, "options.harness.sandbox"),
        ({"harness": HarnessSpec(name="script", options={"nonsense": "1"})}, "options.harness"),
    ],
)
async def test_options_that_cannot_be_run_are_refused(bus: Bus, tmp_path: Path, given: dict[str, Any], field: str) -> None:
    async with scheduler(bus, tmp_path) as client:
        with pytest.raises(RequestRefused) as refused:
            await submit(client, **given)

    assert (refused.value.status, refused.value.field) == (400, field)


@pytest.mark.parametrize(
    ("grader", "said"),
    [
        (GraderSpec(name="judge", options={"endpoint": "judge"}), "the grader 'judge' has no `rubric`"),
        (GraderSpec(name="judge", options={"endpoint": "judge", "rubric": "?", "sees": "all"}), "sees has 'all', not one of answer"),
        (GraderSpec(name="answer", options={"expect": "4"}), "option 'expect' of the grader 'answer'"),
        (GraderSpec(name="weighted"), "parts are for the grader 'weighted'"),
        (GraderSpec(name="judge", options={"endpoint": "other", "rubric": "?"}), "unknown endpoint 'other' of the evaluator"),
        (GraderSpec(name="python", options={"function": "ours:graed"}), "unknown grader function 'ours:graed' of the evaluator"),
        (GraderSpec(name="python", options={"file": "check.py"}), "has no tests/check.py"),
        (GraderSpec(name="test_log", options={"expected": "no.json"}), "tests/no.json: No such file"),
        (GraderSpec(name="test_log", options={"expected": "expected.json"}), "unknown log parser 'parse_log_odd' of the evaluator"),
        (GraderSpec(name="http", options={"endpoint": "judge", "body": "../x"}), "../x leaves the task"),
    ],
)
async def test_grader_that_the_evaluator_cannot_run_is_refused(
    bus: Bus, others: OtherServices, tmp_path: Path, grader: GraderSpec, said: str
) -> None:
    """At submission, not when the sessions have been sampled."""
    task = tmp_path / "task"
    (task / "tests").mkdir(parents=True)
    (task / "instruction.md").write_text("Go.")
    (task / "tests" / "test.sh").write_text("true")
    (task / "tests" / "expected.json").write_text('{"parser": "parse_log_odd", "fail_to_pass": ["a"]}')
    packed = pack(task)
    offer = GraderOffer(endpoints=("judge",), functions=("ours:grade",), parsers=("pytest",))
    async with scheduler(bus, tmp_path) as client:
        await others.events.send(Topic.FLEET, "e", heartbeat("evaluator", "e", at=time.time(), graders=offer))
        await until(client.fleet, lambda fleet: bool(fleet.instances))
        await client.put_blob(packed.data)
        with pytest.raises(RequestRefused, match=re.escape(said)):
            await client.submit(options(grader=grader), task=packed.ref)
        fitting = GraderSpec(name="python", options={"function": "ours"})
        await client.submit(options(grader=fitting), task=packed.ref)


async def test_archive_that_is_missing_or_no_task_is_refused(bus: Bus, tmp_path: Path) -> None:
    """What a runner could not unpack is not accepted."""
    async with scheduler(bus, tmp_path) as client:
        with pytest.raises(RequestRefused, match="PUT it to /blobs/"):
            await client.submit(options(), task=PACKED.ref)
        rubbish = await client.put_blob(b"rubbish")
        with pytest.raises(RequestRefused, match="packed task of 7 bytes"):
            await client.submit(options(), task=TaskRef(name="x", digest=rubbish.digest, archive=rubbish))


async def test_task_that_needs_an_image_is_refused_in_a_local_sandbox(bus: Bus, tmp_path: Path) -> None:
    task = tmp_path / "task"
    (task / "environment").mkdir(parents=True)
    (task / "tests").mkdir()
    (task / "instruction.md").write_text("Go.")
    (task / "tests" / "test.sh").write_text("true")
    (task / "environment" / "Dockerfile").write_text("FROM scratch")
    packed = pack(task)
    async with scheduler(bus, tmp_path) as client:
        await client.put_blob(packed.data)
        with pytest.raises(RequestRefused, match="an image of its own"):
            await client.submit(options(), task=packed.ref)


async def test_wrong_token_and_absent_evener_are_distinguished(bus: Bus, tmp_path: Path) -> None:
    """Each with its own way to mend it."""
    async with scheduler(bus, tmp_path) as client, Client(client._connection.url, "wrong") as stranger:
        with pytest.raises(TokenRefused, match="operator-token"):
            await stranger.tasks()
    async with Client(f"http://127.0.0.1:{closed_port()}", "any") as nobody:
        with pytest.raises(Unreachable, match=r"no evener is running at .* `evener up`"):
            await nobody.tasks()


async def test_client_that_knows_several_schedulers_asks_until_one_answers(bus: Bus, tmp_path: Path) -> None:
    """The first is gone. It goes on with the one that answered."""
    async with scheduler(bus, tmp_path) as known:
        await submit(known)
        token = (tmp_path / TOKEN_FILE).read_text().strip()
        async with Client(f"http://127.0.0.1:{closed_port()}, {known.url}/", token) as client:
            assert [view.task_id for view in await client.tasks()] == ["t"]
            assert client.url == known.url
        async with Client(f"http://127.0.0.1:{closed_port()},http://127.0.0.1:{closed_port()}", token) as client:
            with pytest.raises(Unreachable):
                await client.tasks()


async def test_every_endpoint_needs_the_token(bus: Bus, tmp_path: Path) -> None:
    async with scheduler(bus, tmp_path) as client, aiohttp.ClientSession(client._connection.url) as stranger:
        for method, path in [("GET", "/tasks"), ("POST", "/tasks"), ("GET", "/events"), ("PUT", "/blobs/x"), ("POST", "/engines")]:
            async with stranger.request(method, path) as response:
                assert response.status == 401


async def test_large_body_is_refused_before_it_is_read_whole(bus: Bus, tmp_path: Path) -> None:
    async with scheduler(bus, tmp_path) as client:
        with pytest.raises(RequestRefused, match="larger than") as refused:
            await client._connection.data("POST", "/tasks", body=b" " * 1_000_000)

    assert refused.value.status == 413


def parent_of(record: Record) -> SpanContext:
    """Return the span that a record carries."""
    return trace.get_current_span(context_of(record)).get_span_context()


async def records(bus: Bus, topic: Topic, kind: type[Event]) -> list[Record]:
    tag = tag_of(kind).encode()
    partitions = range(bus.partitions_of(topic))
    return [record for number in partitions async for record in bus.read(topic, number) if header(record, HEADER_TYPE) == tag]


async def test_trace_of_a_task_outlives_its_scheduler(bus: Bus, others: OtherServices, tmp_path: Path, spans: Spans) -> None:
    """What a scheduler writes that has taken over is in the trace of the submission."""

    async def told() -> list[Record]:
        kinds = ((Topic.TASKS, TaskSubmitted), (Topic.DISPATCH, SessionCancelled), (Topic.SESSIONS, SessionGivenUp))
        return [record for topic, kind in kinds for record in await records(bus, topic, kind)]

    async with scheduler(bus, tmp_path) as client:
        await submit(client)
    async with scheduler(bus, tmp_path) as client:
        async with others.beating(capacity=1):
            await others.dispatched(1)
        await client.cancel("t")
        written = await until(told, lambda found: len(found) >= 4)
    submitted = spans.one("submit").context
    (dispatched,) = await records(bus, Topic.DISPATCH, SessionDispatched)

    assert parent_of(dispatched).span_id == spans.one("dispatch").context.span_id
    assert [span.name for span in spans.children(spans.one("submit"))] == ["dispatch"]
    assert {(parent_of(record).trace_id, parent_of(record).span_id) for record in written} == {(submitted.trace_id, submitted.span_id)}
    assert len(written) == 4


async def test_submission_continues_the_trace_of_its_client(bus: Bus, tmp_path: Path, spans: Spans) -> None:
    """The client is a trainer that has a trace of its own."""
    async with scheduler(bus, tmp_path) as client:
        await client.put_blob(PACKED.data)
        body = msgspec.json.encode(Submission(options=options(), task=PACKED.ref, task_id="t"))
        headers = {
            "authorization": f"Bearer {(tmp_path / TOKEN_FILE).read_text().strip()}",
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        }
        async with aiohttp.ClientSession() as http, http.post(f"{client.url}/tasks", data=body, headers=headers) as answer:
            assert answer.status == 200
    parent = spans.one("submit").parent

    assert parent is not None
    assert (f"{parent.trace_id:032x}", f"{parent.span_id:016x}") == ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
