"""The sandbox-runner with real harness processes and the embedded bus; the gateway is a double that speaks frames."""

import asyncio
import errno
import io
import json
import os
import sys
import tarfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp
import msgspec
import pytest
from msgspec import structs
from structlog.testing import capture_logs
from tests.support.added_harness import install, packages_in
from tests.support.builders import alone, dispatched, heartbeat
from tests.support.frames_gateway import FramesGateway, admitted_silence, cut_after_admission, frames_gateway, refuse, reply, told
from tests.support.service_context import context_on, running_service, serving
from tests.support.spent import disk_of
from tests.support.trees import scratch
from tests.support.waiting import eventually, until

from evener.bus.open import open_bus
from evener.harnesses.registry import harness as harness_named
from evener.proto.codec import AnyEvent, decode
from evener.proto.fleet import Running
from evener.proto.reasons import CallFailure, ExitCause
from evener.proto.relay import STEP
from evener.proto.sandbox import SandboxSpec
from evener.proto.sessions import Failures, HarnessExited, SessionCancelled, SessionStarted
from evener.proto.spec import Budgets, HarnessSpec, Quirks, TaskRef
from evener.proto.topics import Topic
from evener.sandbox_runner.config import Config
from evener.sandbox_runner.context import RUNNER_TIMINGS, RunnerTimings
from evener.sandbox_runner.service import open_service
from evener.sandboxes.config import SandboxesConfig
from evener.sandboxes.local import open_local
from evener.sandboxes.port import ChangeLimits, Changes, SandboxLost
from evener.sandboxes.registry import BACKENDS, Backend
from evener.service.auth import open_capability
from evener.service.context import Service, ServiceContext
from evener.service.events import EventLog
from evener.tasks.pack import pack
from evener.tokens.session import too_late

E = TypeVar("E")
EXAMPLE = Path(__file__).parents[2] / "examples" / "self_made" / "agent.py"
DEEP = "import os\nfor _ in range(1_100):\n    os.mkdir('d')\n    os.chdir('d')"
GIVES_UP = """
import sys, urllib.request
url, key, code = sys.argv[1:]
try:
    urllib.request.urlopen(urllib.request.Request(url, b"{}", {"authorization": "Bearer " + key}), timeout=3)
except OSError:
    sys.exit(int(code))
sys.exit(9)
"""
"""A harness that waits three seconds for an answer."""
AGENT_SECONDS = 5.0
"""More than an agent needs on any machine that only starts and asks once or twice."""
UNREADABLE = """
from evener.harnesses.script import ScriptHarness
class Unreadable(ScriptHarness):
    name = "unreadable"
    def exit_meaning(self, *_):
        raise AttributeError
HARNESS = Unreadable()
"""
"""A harness with a bug that its output finds."""
UNINSTALLED = """
from evener.harnesses.port import HarnessMissing
from evener.harnesses.script import ScriptHarness
class Uninstalled(ScriptHarness):
    name = "uninstalled"
    async def install(self, cache):
        raise HarnessMissing("npm is not in PATH")
HARNESS = Uninstalled()
"""
"""A harness that needs what this machine lacks."""
SLEEP = {"argv": '["sleep", "1000"]'}


class Bench:
    """A runner, and what stands around it."""

    def __init__(self, context: ServiceContext, service: Service, gateway: FramesGateway, url: str, task: TaskRef) -> None:
        self.bus = context.bus
        self.context = context
        self.service = service
        self.gateway = gateway
        self.url = url
        self.task = task
        self.events = EventLog(context.bus, context.blobs)

    def running(self) -> tuple[Running, ...]:
        """Return the attempts whose leases the runner renews."""
        assert self.service.leases is not None
        return self.service.leases().running

    async def dispatch(
        self,
        session_id: str = "t.0",
        *,
        attempt: int = 1,
        harness: HarnessSpec | None = None,
        budgets: Budgets | None = None,
        dispatched_at: float | None = None,
    ) -> None:
        """Hand the runner a session, as the scheduler does."""
        spec = alone(
            task=None if harness is not None and harness.sandbox == "none" else self.task,
            harness=harness or HarnessSpec(name="script"),
            budgets=budgets or Budgets(),
        )
        at = dispatched_at or time.time()
        event = dispatched(session_id, spec, attempt=attempt, at=at, runner_id="test-sandbox_runner")
        await self.events.send(Topic.DISPATCH, event.runner_id, event)

    async def cancel(self, session_id: str) -> None:
        """Have a session cancelled, as the scheduler does."""
        event = SessionCancelled(session_id=session_id, runner_id="test-sandbox_runner", reason="asked for")
        await self.events.send(Topic.DISPATCH, event.runner_id, event)

    async def log(self, session_id: str = "t.0") -> list[AnyEvent]:
        partition = self.bus.partition_of(Topic.SESSIONS, session_id)
        return [decode(r.value) async for r in self.bus.read(Topic.SESSIONS, partition) if r.key == session_id and r.value]

    async def until(self, kind: type[E], session_id: str = "t.0", *, attempt: int = 1) -> E:
        """Wait for an event of an attempt."""

        async def found() -> list[E]:
            return [
                event for event in await self.log(session_id) if isinstance(event, kind) and getattr(event, "attempt", attempt) == attempt
            ]

        return (await until(found))[0]

    async def artifact(self, exited: HarnessExited, name: str) -> bytes:
        [ref] = [artifact.blob for artifact in exited.artifacts if artifact.name == name]
        return await self.context.blobs.get(ref)

    async def changed(self, exited: HarnessExited, step: str = "") -> dict[str, bytes]:
        """Return the files that the harness left, by place."""
        with tarfile.open(fileobj=io.BytesIO(await self.artifact(exited, f"{step}changes.tar"))) as archive:
            return {member.name: file.read() for member in archive if (file := archive.extractfile(member)) is not None}


@asynccontextmanager
async def bench(
    folder: Path,
    *,
    store_usable: Callable[[], bool] = lambda: True,
    timings: RunnerTimings = RUNNER_TIMINGS,
    alone: bool = True,
    files: Mapping[str, str] = {},
    **settings: Any,
) -> AsyncIterator[Bench]:
    """Open a runner whose state lies in `folder`. `files` are of the task."""
    task = folder / "task"
    for name, text in {
        "instruction.md": "Write the answer.",
        "task.toml": "[environment.env]\nGIVEN = 'yes'\n",
        "environment/given.txt": "given",
        "tests/test.sh": "exit 0",
        **files,
    }.items():
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text(text)
    config = Config(state=str(folder), **settings)
    async with open_bus(f"embedded:{folder / 'bus'}", partitions=2) as bus, frames_gateway() as gateway:
        context = context_on(bus, folder, boot_id="b", store_usable=store_usable, alone=alone)
        packed = pack(task)
        await context.blobs.put(packed.data)
        sign = heartbeat("provider_gateway", "g", at=time.time(), address=gateway.url, partitions=(0, 1), epochs=((0, 1), (1, 1)))
        await EventLog(bus, context.blobs).send(Topic.FLEET, "g", sign)
        async with (
            open_service(config, context, timings=timings) as service,
            serving(service.routes) as url,
            running_service(service),
        ):
            yield Bench(context, service, gateway, url, packed.ref)


async def test_a_session_runs_from_its_dispatch_to_its_artifacts(tmp_path: Path) -> None:
    """The script harness asks through the relay, uses its tool, and leaves files."""
    async with bench(tmp_path) as b:
        b.gateway.script = [reply(tool=("write_file", {"path": "out/notes.txt", "content": "x"})), cut_after_admission, reply("42")]
        await b.dispatch()
        exited = await b.until(HarnessExited)
        started, *_ = await b.log()

        assert isinstance(started, SessionStarted)
        assert (exited.cause, exited.exit_code, exited.detail) == (ExitCause.EXITED, 0, "")
        assert exited.start_id == started.start_id
        assert started.quirks.retry_header == "x-retry-count"
        assert await b.changed(exited) == {"app/answer.txt": b"42", "app/out/notes.txt": b"x"}
        assert await b.artifact(exited, "removed.json") == b"[]"
        assert 0 < exited.agent_seconds <= exited.wall_seconds

        first, second, again = b.gateway.seen
        assert [message["content"] for message in first.body["messages"][1:]] == ["Write the answer."]
        assert second.body["messages"][-1] == {
            "role": "tool",
            "tool_call_id": f"call{first.request_id}",
            "content": "wrote 1 characters to out/notes.txt",
        }
        assert second.request_id == again.request_id
        capability = open_capability(b.context.secrets, first.capability)
        assert (capability.session_id, capability.attempt, capability.start_id) == ("t.0", 1, started.start_id)
        assert capability.partition == b.bus.partition_of(Topic.SESSIONS, "t.0")


async def test_the_script_harness_streams_and_takes_further_turns(tmp_path: Path) -> None:
    """A model of plain text has more than one turn."""
    async with bench(tmp_path) as b:
        b.gateway.script = [reply("41"), reply("42")]
        await b.dispatch(harness=HarnessSpec(name="script", options={"turns": "Check your answer.", "stream": "1"}))
        exited = await b.until(HarnessExited)

        assert (exited.exit_code, exited.detail) == (0, "")
        assert [message["role"] for message in b.gateway.seen[1].body["messages"]] == ["system", "user", "assistant", "user"]
        assert (await b.changed(exited))["app/answer.txt"] == b"42"


async def test_a_harness_finds_the_tasks_files_and_nothing_of_ours(tmp_path: Path) -> None:
    """What it prints is kept."""
    async with bench(tmp_path, trust_local=True) as b:
        argv = ["sh", "-c", "cat given.txt; echo $GIVEN $OPENAI_MODEL; rm given.txt; env | grep -c operator; exit 3"]
        await b.dispatch(harness=HarnessSpec(name="command", options={"argv": msgspec.json.encode(argv).decode()}))
        exited = await b.until(HarnessExited)

        assert (exited.cause, exited.exit_code) == (ExitCause.EXITED, 3)
        assert await b.artifact(exited, "harness.log") == b"givenyes policy\n0\n"
        assert await b.artifact(exited, "removed.json") == b'["app/given.txt"]'


async def test_what_a_task_removes_is_not_found_by_its_agent(tmp_path: Path) -> None:
    """And it is no change of the agent's, so that the tests have it."""
    clean = "[metadata.evener.clean]\nremoved = ['/app/hint.txt']\n"
    async with bench(tmp_path, files={"environment/hint.txt": "42", "task.toml": clean}, trust_local=True) as b:
        await b.dispatch(harness=HarnessSpec(name="command", options={"argv": '["sh", "-c", "cat hint.txt given.txt; true"]'}))
        exited = await b.until(HarnessExited)

        assert (await b.artifact(exited, "harness.log")).endswith(b"given")
        assert b"42" not in await b.artifact(exited, "harness.log")
        assert (await b.changed(exited), await b.artifact(exited, "removed.json")) == ({}, b"[]")


async def test_harness_that_its_agent_kills_has_exited(tmp_path: Path) -> None:
    """By that signal, and what it left is kept to be graded: no sandbox was lost."""
    async with bench(tmp_path, trust_local=True) as b:
        await b.dispatch(harness=HarnessSpec(name="command", options={"argv": '["sh", "-c", "echo 1 > done.txt; kill -9 $$"]'}))
        exited = await b.until(HarnessExited)

        assert (exited.cause, exited.exit_code) == (ExitCause.EXITED, -9)
        assert await b.changed(exited) == {"app/done.txt": b"1\n"}


async def test_sandbox_that_cannot_be_cleaned_starts_no_agent(tmp_path: Path) -> None:
    """By name: another attempt would meet the same."""
    clean = "[metadata.evener.clean]\nrepositories = ['/app']\n"
    async with bench(tmp_path, files={"task.toml": clean}, trust_local=True) as b:
        await b.dispatch(harness=HarnessSpec(name="command", options={"argv": '["true"]'}))
        exited = await b.until(HarnessExited)

        assert exited.cause is ExitCause.NO_START
        assert "the sandbox is not clean: " in exited.detail
        assert "/app is no repository" in exited.detail


@pytest.mark.parametrize(
    ("harness", "reason"),
    [
        (HarnessSpec(name="command", options={"argv": '["true"]'}), "--trust-local"),
        (HarnessSpec(name="scrip"), "did you mean 'script'?"),
        (HarnessSpec(name="script", options={"turn": "x"}), "no option 'turn'"),
        (HarnessSpec(name="script", sandbox="chroot"), "sandbox 'chroot' is not known"),
    ],
)
async def test_what_cannot_start_says_why_at_once(tmp_path: Path, harness: HarnessSpec, reason: str) -> None:
    """Another attempt would meet the same: the task fails with this reason."""
    async with bench(tmp_path) as b:
        await b.dispatch(harness=harness)
        exited = await b.until(HarnessExited)

        assert [type(event) for event in await b.log()] == [SessionStarted, HarnessExited]
        assert exited.cause is ExitCause.NO_START
        assert reason in exited.detail


async def test_program_that_does_not_exist_fails_the_task_by_its_name(tmp_path: Path) -> None:
    """Not a session that ran and failed: nothing was ever asked of the model."""
    async with bench(tmp_path, trust_local=True) as b:
        await b.dispatch(harness=HarnessSpec(name="command", options={"argv": '["no-such-program"]'}))
        exited = await b.until(HarnessExited)

        assert exited.cause is ExitCause.NO_START
        assert "there is no program no-such-program" in exited.detail


async def test_harness_that_cannot_be_installed_here_is_run_again_elsewhere(tmp_path: Path) -> None:
    """This machine lacks something, not the task."""
    install(tmp_path, "uninstalled_harness", "uninstalled = uninstalled_harness:HARNESS", UNINSTALLED)
    with packages_in(tmp_path):
        async with bench(tmp_path) as b:
            await b.dispatch(harness=HarnessSpec(name="uninstalled"))
            exited = await b.until(HarnessExited)

            assert exited.cause is ExitCause.SANDBOX_LOST
            assert exited.detail.startswith("harness uninstalled cannot be installed: npm is not in PATH. ")


async def test_harness_on_a_disk_without_room_is_not_started(tmp_path: Path) -> None:
    """It would fail by no doing of the agent: the session is run again elsewhere."""
    async with bench(tmp_path, sandboxes=SandboxesConfig(free_bytes=1 << 60)) as b:
        await b.dispatch()
        exited = await b.until(HarnessExited)

        assert exited.cause is ExitCause.SANDBOX_LOST
        assert "that programs need" in exited.detail
        assert b.gateway.seen == []


async def test_harness_during_which_the_disk_became_full_lost_its_sandbox(tmp_path: Path) -> None:
    """Whatever its exit says."""
    fill = HarnessSpec(name="command", options={"argv": '["sh", "-c", "head -c 6000000 /dev/zero > work; exit 1"]'})
    with disk_of(tmp_path / "disk", 8 << 20) as disk:
        async with bench(disk, sandboxes=SandboxesConfig(free_bytes=4 << 20), trust_local=True) as b:
            await b.dispatch(harness=fill)
            exited = await b.until(HarnessExited)

            assert exited.cause is ExitCause.SANDBOX_LOST
            assert exited.artifacts == ()


async def test_a_task_whose_archive_is_gone_is_run_again(tmp_path: Path) -> None:
    """The blob store failed, not the task."""
    async with bench(tmp_path) as b:
        for path in (tmp_path / "blobs").rglob("*"):
            if path.is_file():
                path.unlink()
        await b.dispatch()

        assert (await b.until(HarnessExited)).cause is ExitCause.SANDBOX_LOST


async def test_the_agents_time_ends_the_harness_and_keeps_its_work(tmp_path: Path) -> None:
    """Sampling counts; the call that was open is reported as left."""
    async with bench(tmp_path) as b:
        b.gateway.script = [reply(tool=("write_file", {"path": "a", "content": "x"})), admitted_silence]
        await b.dispatch(budgets=Budgets(agent_seconds=AGENT_SECONDS))
        exited = await b.until(HarnessExited)

        assert exited.cause is ExitCause.AGENT_TIME
        assert exited.agent_seconds >= AGENT_SECONDS
        assert await b.changed(exited) == {"app/a": b"x"}
        assert b.gateway.disconnected == [b.gateway.seen[-1].request_id]


async def test_wall_time_ends_the_harness_that_only_waits_and_keeps_its_work(tmp_path: Path) -> None:
    """The agent's clock stands still meanwhile."""
    async with bench(tmp_path) as b:
        b.gateway.script = [reply(tool=("write_file", {"path": "a", "content": "x"})), reply("y", waits=600.0)]
        await b.dispatch(budgets=Budgets(agent_seconds=300.0, wall_seconds=AGENT_SECONDS))
        exited = await b.until(HarnessExited)

        assert exited.cause is ExitCause.WALL_TIME
        assert await b.changed(exited) == {"app/a": b"x"}


async def test_waits_do_not_spend_the_agents_time(tmp_path: Path) -> None:
    """A weight update that takes longer than the whole budget."""
    async with bench(tmp_path) as b:
        b.gateway.script = [reply("x", waits=AGENT_SECONDS + 0.5)]
        await b.dispatch(budgets=Budgets(agent_seconds=AGENT_SECONDS))

        assert (await b.until(HarnessExited)).cause is ExitCause.EXITED


async def test_a_cancelled_session_ends_its_harness(tmp_path: Path) -> None:
    """And its lease is not renewed any more."""
    async with bench(tmp_path, trust_local=True) as b:
        await b.dispatch(harness=HarnessSpec(name="command", options=SLEEP))
        await b.until(SessionStarted)
        assert b.running() == (Running(session_id="t.0", attempt=1),)
        await b.cancel("t.0")

        assert (await b.until(HarnessExited)).cause is ExitCause.CANCELLED
        await eventually(lambda: not b.running())


async def test_a_repeated_dispatch_starts_nothing(tmp_path: Path) -> None:
    """Neither while the attempt runs nor after its end."""
    async with bench(tmp_path) as b:
        await b.dispatch()
        await b.dispatch()
        await b.until(HarnessExited)
        await b.dispatch()
        await b.dispatch("t.2")
        await b.until(HarnessExited, "t.2")

        assert len([event for event in await b.log() if isinstance(event, SessionStarted)]) == 1


@pytest.mark.parametrize("behind_seconds", [-61 * 60, 61 * 60])
async def test_a_scheduler_whose_clock_is_wrong_loses_no_start(tmp_path: Path, behind_seconds: float) -> None:
    """How late a start is follows from the log's own times: that of the dispatch comes with the start."""
    async with bench(tmp_path) as b:
        before = time.time()
        await b.dispatch(dispatched_at=before - behind_seconds)
        started = await b.until(SessionStarted)

        assert started.dispatch_recorded_at is not None
        assert before - 1 < started.dispatch_recorded_at < time.time() + 1
        assert not too_late(started, time.time())


async def test_a_start_that_would_be_void_is_left_to_its_lease(tmp_path: Path) -> None:
    """The session waited too long for a place or its harness; another attempt may run elsewhere."""
    with capture_logs() as logs:
        async with bench(tmp_path, timings=RunnerTimings(start_limit_seconds=-1.0)) as b:
            await b.dispatch()
            await eventually(lambda: [entry for entry in logs if entry["event"] == "start_too_late"])
            await eventually(lambda: not b.running())

            assert await b.log() == []


async def test_a_further_attempt_ends_the_one_before(tmp_path: Path) -> None:
    """Its lease ran out, although it still runs here."""
    async with bench(tmp_path, trust_local=True) as b:
        await b.dispatch(harness=HarnessSpec(name="command", options=SLEEP))
        await b.until(SessionStarted)
        await b.dispatch(attempt=2)

        assert (await b.until(HarnessExited, attempt=1)).cause is ExitCause.STOPPED
        assert (await b.until(HarnessExited, attempt=2)).cause is ExitCause.EXITED


async def test_sessions_beyond_the_capacity_wait_and_are_held(tmp_path: Path) -> None:
    """Their leases do not run out."""
    async with bench(tmp_path, trust_local=True, capacity=1) as b:
        await b.dispatch(harness=HarnessSpec(name="command", options=SLEEP))
        await b.until(SessionStarted)
        await b.dispatch("t.1")
        await eventually(lambda: len(b.running()) == 2)
        assert await b.log("t.1") == []
        await b.cancel("t.0")

        assert (await b.until(HarnessExited, "t.1")).cause is ExitCause.EXITED


async def test_a_stop_lets_sessions_end(tmp_path: Path) -> None:
    """There are no free places any more, and what comes all the same is handed back, so that it is run elsewhere at once."""
    async with bench(tmp_path, trust_local=True, stop_seconds=100_000.0) as b:
        held = tmp_path / "held"
        os.mkfifo(held)
        await b.dispatch(harness=HarnessSpec(name="command", options={"argv": msgspec.json.encode(["cat", str(held)]).decode()}))
        await b.until(SessionStarted)
        draining = asyncio.ensure_future(b.service.drain())
        await asyncio.sleep(0)
        beat = b.service.heartbeat()
        assert (beat.stopping, beat.capacity, len(b.running())) == (True, 0, 1)
        await b.dispatch("t.1")
        assert (await b.until(HarnessExited, "t.1")).cause is ExitCause.STOPPED
        assert not draining.done()

        await asyncio.to_thread(held.write_text, "enough")
        assert (await b.until(HarnessExited)).cause is ExitCause.EXITED
        await asyncio.wait_for(draining, 60)


async def test_a_stop_hands_back_what_has_not_ended_in_time(tmp_path: Path) -> None:
    """Half of a short time is left for that."""
    async with bench(tmp_path, trust_local=True, stop_seconds=0.2) as b:
        await b.dispatch(harness=HarnessSpec(name="command", options=SLEEP))
        await b.until(SessionStarted)
        await asyncio.wait_for(b.service.drain(), 60)
        [exited] = [event for event in await b.log() if isinstance(event, HarnessExited)]

        assert exited.cause is ExitCause.STOPPED


async def test_a_stop_of_all_services_hands_back_at_once(tmp_path: Path) -> None:
    """The gateway stops too: nothing can end well any more."""
    async with bench(tmp_path, trust_local=True, alone=False, stop_seconds=100_000.0) as b:
        await b.dispatch(harness=HarnessSpec(name="command", options=SLEEP))
        await b.until(SessionStarted)
        await asyncio.wait_for(b.service.drain(), 60)
        [exited] = [event for event in await b.log() if isinstance(event, HarnessExited)]

        assert exited.cause is ExitCause.STOPPED
        assert b.service.heartbeat().stopping


async def test_too_many_changes_are_excluded_with_the_reason(tmp_path: Path) -> None:
    """The session's calls are kept all the same."""
    async with bench(tmp_path, changes_bytes=10) as b:
        b.gateway.script = [reply("more than ten bytes")]
        await b.dispatch()
        exited = await b.until(HarnessExited)

        assert (exited.cause, exited.exit_code) == (ExitCause.EXITED, 0)
        assert "19 bytes, 10 are allowed" in exited.detail
        assert [artifact.name for artifact in exited.artifacts] == ["harness.log"]


HOSTILE: Final[dict[str, tuple[str, str]]] = {
    "deep": (DEEP, "nested deeper than 100 folders"),
    "sparse": ("truncate -s 1T sparse", "1099511627776 bytes, 268435456 are allowed"),
    "many": ("i=0; while [ $i -lt 60 ]; do : > $i; i=$((i+1)); done", "more than 50 files and folders"),
    "pipe": ("mkfifo pipe", "'app/pipe': a pipe"),
    "name": ("mkdir -p $(printf 'n%.0s' $(seq 250)); touch $(printf '\\377'); mkfifo $(printf '\\376')", "'app/\\udcfe': a pipe"),
    "itself": ('rm -rf "${HOME%/home/agent}"', "is gone. The program removed or moved its own sandbox"),
    "places": ("rm -rf ../logs ../app; mkfifo ../logs", "'logs': a pipe"),
}
"""Files that an agent leaves, and how the runner reports them."""


@pytest.mark.parametrize("kind", HOSTILE)
async def test_whatever_tree_an_agent_leaves_its_exit_is_reported_with_what_was_not_kept(kind: str) -> None:
    """It is the agent's doing: its session is not run again, and the runner goes on, also after a restart."""
    script, reason = HOSTILE[kind]
    harness = HarnessSpec(
        name="command", options={"argv": json.dumps([sys.executable, "-c", script] if kind == "deep" else ["sh", "-c", script])}
    )
    with scratch() as folder:
        async with bench(folder, trust_local=True, changes_entries=50 if kind == "many" else 50_000) as b:
            await b.dispatch(harness=harness)
            exited = await b.until(HarnessExited)
            await b.dispatch("t.1")
            assert (await b.until(HarnessExited, "t.1")).cause is ExitCause.EXITED

            assert (exited.cause, exited.exit_code) == (ExitCause.EXITED, 0)
            assert reason in exited.detail
            kept = {artifact.name for artifact in exited.artifacts}
            assert kept - {"harness.log"} in (set(), {"changes.tar", "removed.json", "excluded.json"})
        async with open_local(folder / "sandboxes" / "test" / "local"):
            pass


class Instead:
    """Something of which a part is replaced."""

    def __init__(self, whole: object, **parts: object) -> None:
        self._whole = whole
        vars(self).update(parts)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._whole, name)


@asynccontextmanager
async def open_unreadable(root: Path) -> AsyncIterator[Any]:
    """Open sandboxes whose changes find a bug in us."""

    async def changes(_: ChangeLimits) -> Changes:
        raise RecursionError

    async with open_local(root.with_name("unreadable")) as sandboxes:

        @asynccontextmanager
        async def opened(name: str, spec: SandboxSpec) -> AsyncIterator[Any]:
            async with sandboxes.open(name, spec) as sandbox:
                yield Instead(sandbox, changes=changes)

        yield Instead(sandboxes, open=opened)


@asynccontextmanager
async def open_without_files(root: Path) -> AsyncIterator[Any]:
    """Yield sandboxes that no process can be given a connection to."""
    async with open_local(root.with_name("crowded")) as sandboxes:

        async def listen() -> Any:
            doing = "its listener"
            raise SandboxLost(doing) from OSError(errno.EMFILE, "Too many open files")

        @asynccontextmanager
        async def opened(name: str, spec: SandboxSpec) -> AsyncIterator[Any]:
            async with sandboxes.open(name, spec) as sandbox:
                yield Instead(sandbox, listen=listen)

        yield Instead(sandboxes, open=opened)


async def test_attempt_for_which_no_file_could_be_opened_is_handed_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another session had used up the descriptors; it cost this one all of its attempts."""
    monkeypatch.setitem(BACKENDS, "crowded", Backend(open=lambda root, _: open_without_files(root), lacks=lambda _: ()))
    async with bench(tmp_path) as b:
        await b.dispatch(harness=HarnessSpec(name="script", sandbox="crowded"))
        exited = await b.until(HarnessExited)

        assert exited.cause is ExitCause.STOPPED
        assert "its listener" in exited.detail


async def test_bug_that_a_tree_finds_in_us_costs_no_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It once had no exit, and was run again and again."""
    monkeypatch.setitem(BACKENDS, "unreadable", Backend(open=lambda root, _: open_unreadable(root), lacks=lambda _: ()))
    async with bench(tmp_path) as b:
        await b.dispatch(harness=HarnessSpec(name="script", sandbox="unreadable"))
        exited = await b.until(HarnessExited)

        assert (exited.cause, exited.exit_code) == (ExitCause.EXITED, 0)
        assert "changed files were not kept: they could not be read (RecursionError: )" in exited.detail
        assert [artifact.name for artifact in exited.artifacts] == ["harness.log"]


async def test_bug_that_an_output_finds_in_us_costs_no_session(tmp_path: Path) -> None:
    """Its exit is reported with the files that were kept, and is not taken for a success."""
    install(tmp_path, "unreadable_harness", "unreadable = unreadable_harness:HARNESS", UNREADABLE)
    with packages_in(tmp_path):
        async with bench(tmp_path) as b:
            await b.dispatch(harness=HarnessSpec(name="unreadable"))
            exited = await b.until(HarnessExited)

            assert (exited.cause, exited.exit_code) == (ExitCause.EXITED, 1)
            assert exited.detail == "what it printed could not be read (AttributeError: )"
            assert [artifact.name for artifact in exited.artifacts] == ["harness.log", "changes.tar", "removed.json"]


async def test_artifacts_wait_for_a_blob_store_that_is_away(tmp_path: Path) -> None:
    """The agent's work is done: it is not thrown away and done again."""
    go, away = tmp_path / "go", tmp_path / "away"
    argv = ["sh", "-c", f"until [ -e {go} ]; do sleep 0.01; done; echo x > left"]
    with capture_logs() as logs:
        async with bench(tmp_path, trust_local=True) as b:
            await b.dispatch(harness=HarnessSpec(name="command", options={"argv": json.dumps(argv)}))
            await b.until(SessionStarted)
            await eventually(lambda: list((tmp_path / "sandboxes" / "test" / "local").glob("t.0*/app")))
            (tmp_path / "blobs").rename(away)
            go.touch()
            await eventually(lambda: [entry for entry in logs if entry["event"] == "blob_store_away"])
            away.rename(tmp_path / "blobs")
            exited = await b.until(HarnessExited)

            assert exited.cause is ExitCause.EXITED
            assert await b.changed(exited) == {"app/left": b"x\n"}


RECORDING = HarnessSpec(name="external", sandbox="none")


async def opened(b: Bench, http: aiohttp.ClientSession) -> dict[str, Any]:
    """Wait until the recording is open, and return where it is."""

    async def asked() -> dict[str, Any]:
        async with http.get(f"{b.url}/recordings/t.0") as response:
            assert response.status in {200, 404}
            found: dict[str, Any] = await response.json() if response.status == 200 else {}
            return found

    return await until(asked)


def operator(b: Bench) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(headers={"authorization": f"Bearer {b.context.secrets.operator_token}"})


async def test_a_recording_gives_any_program_a_session(tmp_path: Path) -> None:
    """Its own process, its own exit code, a reward given by hand."""
    async with bench(tmp_path) as b, operator(b) as http:
        await b.dispatch(harness=RECORDING)
        found = await opened(b, http)
        environment = found["environment"]
        assert environment["OPENAI_BASE_URL"] == environment["ANTHROPIC_BASE_URL"] + "/v1" == found["base_url"] + "/v1"
        headers = {"authorization": f"Bearer {environment['OPENAI_API_KEY']}"}
        url = f"{environment['OPENAI_BASE_URL']}/chat/completions"
        async with http.post(url, json={"model": "gpt", "messages": [{"role": "user", "content": "hi"}]}, headers=headers) as response:
            assert response.status == 200
        async with http.post(f"{b.url}/recordings/t.0/heartbeat") as response:
            assert response.status == 204
        async with http.post(f"{b.url}/recordings/t.0/exited", json={"exit_code": 0, "rewrd": 1}) as response:
            assert (response.status, "rewrd" in (await response.json())["error"]["message"]) == (400, True)
        async with http.post(f"{b.url}/recordings/t.0/exited", json={"exit_code": 0, "reward": 0.5}) as response:
            assert response.status == 204
        exited = await b.until(HarnessExited)

        assert (exited.cause, exited.exit_code, exited.reward) == (ExitCause.EXITED, 0, 0.5)
        async with http.get(f"{b.url}/recordings/t.0") as response:
            assert response.status == 404


async def test_the_smallest_harness_of_the_examples_can_be_recorded(tmp_path: Path) -> None:
    """It knows nothing but the usual variables."""
    async with bench(tmp_path) as b, operator(b) as http:
        b.gateway.script = [reply("blue"), reply("in short: blue")]
        await b.dispatch(harness=RECORDING)
        environment = (await opened(b, http))["environment"]
        agent = await asyncio.create_subprocess_exec(
            sys.executable, str(EXAMPLE), "Why?", "Shorter.", env=environment, stdout=asyncio.subprocess.PIPE
        )
        said, _ = await agent.communicate()

        assert (agent.returncode, said) == (0, b"blue\nin short: blue\n")
        assert len(b.gateway.seen[1].body["messages"]) == 3


@pytest.mark.parametrize(
    ("harness", "quirks"),
    [
        (RECORDING, Quirks()),
        (structs.replace(RECORDING, name="hermes"), harness_named("hermes").quirks),
        (structs.replace(RECORDING, quirks=Quirks(compacted="^Summary")), Quirks(compacted="^Summary")),
        (structs.replace(RECORDING, name="hermes", quirks=Quirks()), Quirks()),
    ],
    ids=["nothing_known", "a_known_harness", "given", "given_instead"],
)
async def test_a_recording_starts_with_the_quirks_of_its_harness(tmp_path: Path, harness: HarnessSpec, quirks: Quirks) -> None:
    """Those that its run gives, else those of the harness of its name."""
    async with bench(tmp_path, recording_seconds=0.1) as b:
        await b.dispatch(harness=harness)
        started = await b.until(SessionStarted)

        assert started.quirks == quirks


async def test_a_recording_without_a_sign_of_life_ends(tmp_path: Path) -> None:
    """Its owner was killed; of its exit nothing is known."""
    async with bench(tmp_path, recording_seconds=0.3) as b:
        await b.dispatch(harness=RECORDING)
        exited = await b.until(HarnessExited)

        assert (exited.cause, exited.exit_code, exited.reward) == (ExitCause.EXITED, None, None)


async def test_recordings_want_the_operators_token(tmp_path: Path) -> None:
    """They hand out a key."""
    async with bench(tmp_path) as b, aiohttp.ClientSession() as http, http.get(f"{b.url}/recordings/t.0") as response:
        assert response.status == 401


async def test_runner_that_cannot_use_the_blob_store_offers_no_place(tmp_path: Path) -> None:
    """It would fail every session that it gets, faster than any other runner serves its own."""
    usable = [True]
    async with bench(tmp_path, store_usable=lambda: usable[0], capacity=3) as b:
        assert (b.service.heartbeat().capacity, b.service.ready()) == (3, {"taking": True, "sandboxes": True})
        usable[0] = False
        assert (b.service.heartbeat().capacity, b.service.ready()) == (0, {"taking": False, "sandboxes": True})


async def test_runner_that_can_open_no_sandbox_offers_no_place_and_says_why(tmp_path: Path) -> None:
    """Its folder is gone, as a mount is; once it is back, so are the places."""
    async with bench(tmp_path, capacity=3) as b:
        (root,) = (tmp_path / "sandboxes").iterdir()
        root.rename(tmp_path / "away")
        ready = b.service.ready()
        assert (b.service.heartbeat().capacity, ready["taking"], ready["sandboxes"]) == (0, True, False)
        assert f"sandboxes local: {root / 'local'} is gone, or cannot be written" in ready
        (tmp_path / "away").rename(root)
        assert (b.service.heartbeat().capacity, b.service.ready()) == (3, {"taking": True, "sandboxes": True})


async def test_blob_store_that_is_away_while_a_session_is_prepared_costs_no_attempt(tmp_path: Path) -> None:
    """It is asked again until it answers."""
    folder, away = tmp_path / "blobs", tmp_path / "away"
    async with bench(tmp_path) as b:
        folder.rename(away)
        folder.write_text("no folder: reading fails, and does not say that the object is missing")
        with capture_logs() as logs:
            await b.dispatch()
            await eventually(lambda: [entry for entry in logs if entry["event"] == "blob_store_away"])
        assert not any(isinstance(event, HarnessExited) for event in await b.log())
        folder.unlink()
        away.rename(folder)
        assert (await b.until(HarnessExited)).cause is ExitCause.EXITED


@pytest.mark.parametrize("code", [0, 1])
async def test_harness_that_gives_up_a_request_that_no_gateway_admits_ended_for_a_reason_of_ours(tmp_path: Path, code: int) -> None:
    """Its own time-out is shorter than the relay's, and it may exit with 0 all the same."""
    argv = [sys.executable, "-c", GIVES_UP, "{base_url}/v1/chat/completions", "{key}", str(code)]
    async with bench(tmp_path, timings=RunnerTimings(in_vain_seconds=0.1), trust_local=True) as b:
        b.gateway.script = [told(401, "capability with a wrong signature")]
        await b.dispatch(harness=HarnessSpec(name="command", options={"argv": msgspec.json.encode(argv).decode()}))
        exited = await b.until(HarnessExited)
        assert (exited.exit_code, exited.unanswered) == (code, CallFailure.OVERLOADED)


async def test_requests_that_got_no_answer_are_reported_with_the_exit(tmp_path: Path) -> None:
    """What was refused before it was placed stands nowhere else."""
    async with bench(tmp_path) as b:
        b.gateway.script = [refuse(400, "stop: not served", failure=CallFailure.REFUSED)]
        await b.dispatch()
        exited = await b.until(HarnessExited)
        assert exited.exit_code != 0
        assert exited.failures == (Failures(reason=CallFailure.REFUSED, count=1, detail="stop: not served"),)


STEPS = """
[[steps]]
name = "one"
[[steps]]
name = "two"
[steps.healthcheck]
command = "[ -e app.txt ] || [ -e one.txt ]"
retries = 1
"""
"""A task of two steps. The second needs what the first leaves."""
OF_STEPS = {
    "task.toml": STEPS,
    "steps/one/instruction.md": "one",
    "steps/two/instruction.md": "two",
    "steps/two/workdir/staged.txt": "staged",
}


def doing(script: str) -> HarnessSpec:
    return HarnessSpec(name="command", options={"argv": json.dumps(["sh", "-c", script, "{instruction}"])})


async def test_steps_of_a_task_run_one_after_the_other_in_one_sandbox(tmp_path: Path) -> None:
    """Each with its own instruction and files; what there is after each is kept."""
    async with bench(tmp_path, files=OF_STEPS, trust_local=True) as b:
        await b.dispatch(harness=doing('ls > "$0.txt"'))
        exited = await b.until(HarnessExited)

        one, two = await b.changed(exited, "steps/one/"), await b.changed(exited, "steps/two/")
        assert (exited.cause, exited.exit_code) == (ExitCause.EXITED, 0)
        assert one == {"app/one.txt": b"given.txt\none.txt\n"}
        assert two == {
            "app/one.txt": b"given.txt\none.txt\n",
            "app/staged.txt": b"staged",
            "app/two.txt": b"given.txt\none.txt\nstaged.txt\ntwo.txt\n",
        }
        assert [event for event in await b.log() if isinstance(event, SessionStarted)] != []


async def test_requests_say_in_which_step_they_are(tmp_path: Path) -> None:
    """The agent's last message is then known to be the last step's."""
    async with bench(tmp_path, files=OF_STEPS | {"task.toml": STEPS.partition("[steps.healthcheck]")[0]}) as b:
        b.gateway.script = [reply("41"), reply("42")]
        await b.dispatch()
        await b.until(HarnessExited)

        assert [(seen.body["messages"][-1]["content"], seen.headers[STEP]) for seen in b.gateway.seen] == [("one", "1"), ("two", "2")]


async def test_step_that_the_agent_made_impossible_ends_the_task_with_what_was_done(tmp_path: Path) -> None:
    """The first step counts: another attempt would find the same."""
    async with bench(tmp_path, files=OF_STEPS, trust_local=True) as b:
        await b.dispatch(harness=doing("true"))
        exited = await b.until(HarnessExited)

        assert exited.cause is ExitCause.EXITED
        assert exited.detail.startswith("the further steps were left out: step 'two': health check")
        assert {artifact.name.rpartition("/")[0] for artifact in exited.artifacts} == {"steps/one"}


async def test_step_in_which_the_harness_fails_is_the_last(tmp_path: Path) -> None:
    async with bench(tmp_path, files=OF_STEPS, trust_local=True) as b:
        await b.dispatch(harness=doing("exit 3"))
        exited = await b.until(HarnessExited)

        assert (exited.cause, exited.exit_code) == (ExitCause.EXITED, 3)
        assert {artifact.name.rpartition("/")[0] for artifact in exited.artifacts} == {"steps/one"}


async def test_time_limit_of_a_step_is_its_own(tmp_path: Path) -> None:
    """The second step has its seconds from its own beginning."""
    manifest = STEPS.replace('name = "one"', 'name = "one"\nagent = { timeout_sec = 60 }').replace(
        'name = "two"', 'name = "two"\nagent = { timeout_sec = 0.3 }'
    )
    async with bench(tmp_path, files={**OF_STEPS, "task.toml": manifest}, trust_local=True) as b:
        await b.dispatch(harness=doing('touch one.txt; [ "$0" = one ] && sleep 0.5 || sleep 1000'))
        exited = await b.until(HarnessExited)

        assert exited.cause is ExitCause.AGENT_TIME
        assert (await b.changed(exited, "steps/two/")).keys() == {"app/one.txt", "app/staged.txt"}


async def test_sandbox_that_never_becomes_healthy_is_lost_before_the_harness_starts(tmp_path: Path) -> None:
    """Another attempt may be luckier: that is no doing of the agent."""
    check = {"task.toml": "[environment.healthcheck]\ncommand = 'echo ill; false'\nretries = 2\ninterval_sec = 0.01\n"}
    async with bench(tmp_path, files=check) as b:
        await b.dispatch()
        exited = await b.until(HarnessExited)

        assert exited.cause is ExitCause.SANDBOX_LOST
        assert "health check 'echo ill; false' failed 2 times: exit code 1; ill" in exited.detail
        assert b.gateway.seen == []


async def test_mcp_servers_for_a_harness_that_takes_none_are_refused(tmp_path: Path) -> None:
    """The agent would work without tools that its task counts on."""
    server = {"task.toml": '[[environment.mcp_servers]]\nname = "search"\ntransport = "stdio"\ncommand = "python3"\n'}
    async with bench(tmp_path, files=server) as b:
        await b.dispatch()
        exited = await b.until(HarnessExited)

        assert exited.cause is ExitCause.NO_START
        assert "the MCP server 'search' (stdio), which the harness script does not take" in exited.detail
