"""Warm sandboxes in a whole Evener: prepared for what the scheduler has queued, clean until a session has them, and none stays."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from prometheus_client import CollectorRegistry
from tests.support.engines import smollm
from tests.support.together import submit, together
from tests.support.waiting import eventually, until

from evener.client.client import Client
from evener.engines.scripted import Rule, Script, ScriptedServer, scripted_engine
from evener.proto.reasons import TerminationReason
from evener.proto.sandbox import SandboxSpec
from evener.proto.spec import GraderSpec, HarnessSpec, Sampling
from evener.proto.tasks import TaskOptions
from evener.sandboxes.bubblewrap import works
from evener.sandboxes.config import DockerConfig, SandboxesConfig
from evener.sandboxes.local import open_local
from evener.sandboxes.port import ANY_SANDBOX, Sandbox, Sandboxes
from evener.sandboxes.registry import BACKENDS, Backend
from evener.service.state_folder import TOKEN_FILE

SCRIPT: Final = Script(default=Rule(say="one two three four five six seven eight nine ten", wait="each"))


def options(sandbox: str, samples: int = 4, **given: Any) -> TaskOptions:
    harness = HarnessSpec(name="script", sandbox=sandbox)
    return TaskOptions(samples=samples, harness=harness, grader=GraderSpec(name="none"), sampling=Sampling(max_tokens=64), **given)


def count(registry: CollectorRegistry, name: str, **labels: str) -> float:
    return registry.get_sample_value(name, labels) or 0.0


async def finished(client: Client) -> None:
    """Wait for the end of the task, whose sessions all ran to their ends."""
    detail = await until(lambda: client.task("t"), lambda detail: detail.task.outcome is not None)
    assert detail.task.ends == {TerminationReason.FINISHED: detail.task.samples}
    assert detail.task.attempts == detail.task.samples


def warm_folders(state: Path, backend: str) -> list[Path]:
    """Return the folders of the warm sandboxes."""
    return [folder for folder in (state / "sandboxes").glob(f"*/{backend}/warm-*") if folder.is_dir()]


def files_below(folder: Path) -> set[str]:
    """Return the files of a sandbox, apart from what `bubblewrap` prepares for this machine's own."""
    found = (path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir() and not path.is_symlink())
    return {str(path) for path in found if path.parts[0] != "etc"}


@asynccontextmanager
async def evener(state: Path, engine: ScriptedServer, **of_runner: Any) -> AsyncIterator[tuple[CollectorRegistry, Client]]:
    async with (
        together(state, engine, capacity=1, of_runner=of_runner) as context,
        Client(context.address, (state / TOKEN_FILE).read_text().strip()) as client,
    ):
        yield context.registry, client


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> str:
    """A backend of plain processes that says that it takes long to prepare, and is prepared ahead therefore."""
    monkeypatch.setitem(BACKENDS, "slowly", Backend(open=lambda root, _: open_local(root), lacks=lambda _: ()))
    return "slowly"


async def test_sessions_get_sandboxes_that_were_prepared_while_others_ran(tmp_path: Path, slowly: str) -> None:
    """There is one slot: the first session prepares its own, the others do not. Nothing of them is there before or after."""
    async with scripted_engine(SCRIPT, smollm()) as engine, evener(tmp_path, engine, warm_sandboxes=2) as (registry, client):
        await submit(client, "ten-words", options(slowly))
        await eventually(lambda: count(registry, "evener_warm_sandboxes", state="ready") == 2)
        assert count(registry, "evener_sandbox_starts_total", prepared="cold") == 1
        assert [files_below(folder) for folder in warm_folders(tmp_path, slowly)] == [set(), set()]
        fleet = await until(client.fleet, lambda fleet: any(beat.warm for beat in fleet.instances))
        assert [(one.kind.backend, one.kind.harness, one.ready) for beat in fleet.instances for one in beat.warm] == [(slowly, "script", 2)]

        engine.go(times=None)
        await finished(client)
        assert count(registry, "evener_sandbox_starts_total", prepared="warm") == 3
        assert count(registry, "evener_warming_seconds_count") >= 3

    assert warm_folders(tmp_path, slowly) == []


async def test_kind_that_is_queued_no_more_is_not_prepared_for(tmp_path: Path, slowly: str) -> None:
    """A run that was cancelled leaves its warm sandboxes for a while, then none."""
    async with scripted_engine(SCRIPT, smollm()) as engine, evener(tmp_path, engine, warm_seconds=0.5) as (registry, client):
        await submit(client, "ten-words", options(slowly, samples=8))
        await eventually(lambda: count(registry, "evener_warm_sandboxes", state="ready") == 4)
        await client.cancel("t")

        await eventually(lambda: count(registry, "evener_warm_sandboxes", state="ready") == 0)
        await eventually(lambda: warm_folders(tmp_path, slowly) == [])


async def test_plain_processes_are_not_prepared_ahead(tmp_path: Path) -> None:
    """A folder is made at once."""
    async with scripted_engine(SCRIPT, smollm()) as engine, evener(tmp_path, engine) as (registry, client):
        await submit(client, "ten-words", options("local", samples=3))
        engine.go(times=None)
        await finished(client)

        assert count(registry, "evener_sandbox_starts_total", prepared="cold") == 3
        assert count(registry, "evener_warming_seconds_count") == 0


class Failing:
    """A backend whose sandboxes cannot be opened ahead: only by a session."""

    def __init__(self, sandboxes: Sandboxes) -> None:
        self._sandboxes = sandboxes

    def trouble(self) -> str:
        return self._sandboxes.trouble()

    @asynccontextmanager
    async def open(self, name: str, spec: SandboxSpec = ANY_SANDBOX) -> AsyncIterator[Sandbox]:
        if name.startswith("warm-"):
            msg = "no space left on device"
            raise OSError(msg)
        async with self._sandboxes.open(name, spec) as sandbox:
            yield sandbox


@asynccontextmanager
async def open_failing(root: Path) -> AsyncIterator[Failing]:
    async with open_local(root) as sandboxes:
        yield Failing(sandboxes)


async def test_sandboxes_that_cannot_be_prepared_ahead_cost_no_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each session prepares its own, as it would without a pool."""
    monkeypatch.setitem(BACKENDS, "failing", Backend(open=lambda root, _: open_failing(root), lacks=lambda _: ()))
    async with scripted_engine(SCRIPT, smollm()) as engine, evener(tmp_path, engine) as (registry, client):
        await submit(client, "ten-words", options("failing", samples=3))
        engine.go(times=None)
        await finished(client)

        assert count(registry, "evener_sandbox_starts_total", prepared="cold") == 3


async def test_warm_sandboxes_of_bubblewrap_serve_sessions(tmp_path: Path) -> None:
    """Their networks are there already, and nothing else."""
    if not works():
        pytest.fail("bubblewrap does not work on this machine (Debian, Ubuntu: apt install bubblewrap; it needs user namespaces)")
    async with scripted_engine(SCRIPT, smollm()) as engine, evener(tmp_path, engine) as (registry, client):
        await submit(client, "ten-words", options("bubblewrap"))
        await eventually(lambda: count(registry, "evener_warm_sandboxes", state="ready") == 3)
        assert [files_below(folder) for folder in warm_folders(tmp_path, "bubblewrap")] == [set(), set(), set()]
        engine.go(times=None)
        await finished(client)

        assert count(registry, "evener_sandbox_starts_total", prepared="warm") == 3


@pytest.mark.docker
async def test_warm_containers_serve_sessions(tmp_path: Path, docker_host: str) -> None:
    """They run already, without a network, and end with their sessions."""
    config = SandboxesConfig(docker=DockerConfig(host=docker_host, image="evener-base"))
    async with scripted_engine(SCRIPT, smollm()) as engine, evener(tmp_path, engine, sandboxes=config) as (registry, client):
        await submit(client, "ten-words", options("docker"))
        await eventually(lambda: count(registry, "evener_warm_sandboxes", state="ready") == 3)
        engine.go(times=None)
        await finished(client)

        assert count(registry, "evener_sandbox_starts_total", prepared="warm") == 3
    assert str(tmp_path) not in await docker(docker_host, "ps", "--all", "--format", '{{.Label "evener.sandboxes"}}')


@pytest.mark.docker
async def test_warm_container_in_which_nothing_waits_any_more_is_replaced(tmp_path: Path, docker_host: str) -> None:
    """No session meets it: all run once."""
    config = SandboxesConfig(docker=DockerConfig(host=docker_host, image="evener-base"))
    async with scripted_engine(SCRIPT, smollm()) as engine, evener(tmp_path, engine, sandboxes=config) as (registry, client):
        await submit(client, "ten-words", options("docker", samples=2))
        await eventually(lambda: count(registry, "evener_warm_sandboxes", state="ready") == 1)
        listed = await docker(docker_host, "ps", "--format", '{{.Names}} {{.Label "evener.sandboxes"}}')
        [warm] = [line.split()[0] for line in listed.splitlines() if str(tmp_path) in line and "-warm-" in line]
        await docker(docker_host, "exec", "--user", "1000", warm, "sh", "-c", "kill -9 -1")
        engine.go(times=None)
        await finished(client)

        assert count(registry, "evener_warm_sandboxes_lost_total") == 1


async def docker(host: str, *words: str) -> str:
    """Return what the client of Docker prints."""
    client = await asyncio.create_subprocess_exec("docker", "--host", host, *words, stdout=asyncio.subprocess.PIPE)
    printed, _ = await client.communicate()
    assert client.returncode == 0
    return printed.decode()
