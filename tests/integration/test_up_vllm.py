"""`evener up --engine vllm`: started, supervised and ended with us. `vllm` is the scripted engine as a program, and real vLLM."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from tests.contract.test_weights import tiny
from tests.support.commands import evener
from tests.support.forks import Forked, start
from tests.support.updates import scored, state
from tests.support.waiting import eventually, until

from evener.proto.spec import Purpose

SECONDS: Final = 900.0
"""Longer than real vLLM takes on a busy machine."""
PROGRAM: Final = """#!/bin/sh
echo "INFO starting"
for word in "$@"; do case "$word" in --port=*) port=${word#--port=};; --served-model-name=*) name=${word#*=};; esac; done
exec PYTHON -m evener.cli engine scripted --port $port --policy $name --source "hf:$2"
"""


class Up:
    """An `evener up` with vLLM, and commands beside it."""

    def __init__(self, folder: Path, process: Process | Forked) -> None:
        self.folder = folder
        self.process = process

    @property
    def url(self) -> str:
        return str(json.loads((self.folder / "evener.json").read_bytes())["url"])

    async def ready(self) -> None:
        async with aiohttp.ClientSession() as http:

            async def answers() -> bool:
                assert self.process.returncode is None, (self.folder / "up.log").read_text()
                with contextlib.suppress(aiohttp.ClientConnectionError, OSError):
                    async with http.get(f"{self.url}/readyz") as answer:
                        return answer.ok
                return False

            await until(answers, seconds=SECONDS)

    async def engine(self, *, after: str = "") -> str:
        """Wait for an engine in the fleet that is not at `after`; return its URL."""
        headers = {"authorization": f"Bearer {(self.folder / 'operator-token').read_text().strip()}"}
        async with aiohttp.ClientSession(headers=headers) as http:

            async def engines() -> list[str]:
                async with http.get(f"{self.url}/fleet") as answer:
                    return [str(engine["url"]) for engine in (await answer.json())["engines"]]

            return (await until(engines, lambda urls: urls and urls != [after], seconds=SECONDS))[0]

    async def run(self, *words: str) -> str:
        """Run a command; return what it said."""
        ended = await evener(*words, "--state", str(self.folder))
        assert ended.code == 0, ended.errors
        return ended.out


@asynccontextmanager
async def up(folder: Path, *options: str) -> AsyncIterator[Up]:
    """Run `evener up` inside this block."""
    folder.mkdir()  # noqa: ASYNC240 (nothing else runs yet)
    words = ("--port", "0", "--state", str(folder), "--instance", "local", "--engine", "vllm", *options)
    with (folder / "up.log").open("ab") as log:
        process = await start(("-m", "evener.cli", "up", *words), log, os.environ)
    try:
        yield Up(folder, process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        async with asyncio.timeout(SECONDS):
            await process.wait()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny(tmp_path / "tiny", 0)


@pytest.fixture
def program(tmp_path: Path) -> str:
    """A `vllm` that is the scripted engine, and a Python beside it that knows its version."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "vllm").write_text(PROGRAM.replace("PYTHON", sys.executable))
    (folder / "python").write_text("#!/bin/sh\necho 0.32.0+cpu\n")
    for name in ("vllm", "python"):
        (folder / name).chmod(0o755)
    return str(folder / "vllm")


def processes_with(word: str) -> list[int]:
    """Return the processes that have a word in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and int(entry.name) != os.getpid() and word.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


async def until_gone(word: str) -> None:
    await eventually(lambda: not processes_with(word))


async def lives_through(tmp_path: Path, model: Path, task: Path, options: Sequence[str]) -> None:
    """Rollouts, an update, rollouts, a killed engine that comes back with the version, a killed `up` that leaves nothing behind."""
    folder, later = tmp_path / "state", tiny(tmp_path / "step-1", 1)
    async with up(folder, "--model", str(model), *options) as running:
        await running.ready()
        first = await running.engine()
        versions = [await sampled_versions(running, task, "one", tmp_path)]
        said = json.loads(await running.run("policy", "publish", str(later), "--version", "1"))
        assert [update["engine_id"] for update in said["engines"]] == ["local-engine"]
        assert json.loads(await running.run("policy", "list")) == {"policy": "policy", "newest": 1, "engines": ["local-engine"]}
        assert json.loads(await running.run("policy", "show"))["state"] == "published"
        new = await scored(first)
        versions.append(await sampled_versions(running, task, "two", tmp_path))
        port = first.rpartition(":")[2]
        (engine,) = set(processes_with(port)) & set(processes_with(str(model))) - set(processes_with("keeper.py"))
        os.kill(engine, signal.SIGKILL)
        second = await running.engine(after=first)
        await running.ready()
        versions.append(await sampled_versions(running, task, "three", tmp_path))

        assert versions == [{0}, {1}, {1}]
        assert await state(second) == ("policy@1", False)
        assert await scored(second) == pytest.approx(new, abs=1e-4)
        running.process.kill()
        await running.process.wait()
        await until_gone(str(model))


async def sampled_versions(running: Up, task: Path, run_id: str, tmp_path: Path) -> set[int]:
    """Run a task; return the versions of its trained tokens. All rows are `fed`."""
    await running.run("run", str(task), "--harness", "script", "--samples", "2", "--run-id", run_id, "--sampling.max-tokens", "12")
    out = tmp_path / f"{run_id}.jsonl"
    await running.run("groups", "export", "--out", str(out), "--run-id", run_id, "--purpose", Purpose.TRAIN)
    rows: list[dict[str, Any]] = [json.loads(line) for line in out.read_text().splitlines()]
    assert {row["fidelity"] for row in rows} == {"fed"}
    return {version for row in rows for version, mask in zip(row["versions"], row["loss_mask"], strict=True) if mask}


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "instruction.md").write_text("Say anything.\n")
    (folder / "task.toml").write_text('[metadata.evener]\ngrader = "answer"\nexpected = "."\nmatch = "regex"\n')
    return folder


async def test_up_lives_through_an_update_and_a_killed_engine(tmp_path: Path, model: Path, task: Path, program: str) -> None:
    """With the scripted engine as `vllm`."""
    await lives_through(tmp_path, model, task, ("--vllm", program))


@pytest.mark.vllm
@pytest.mark.slow
async def test_real_vllm_lives_through_an_update_and_is_started_again(tmp_path: Path, model: Path, task: Path) -> None:
    """The one in PATH, or the one that scripts/vllm_cpu.py installed."""
    await lives_through(tmp_path, model, task, ("--vllm-options=--max-model-len=2048",))


async def test_a_start_that_fails_ends_up_by_name(tmp_path: Path, model: Path) -> None:
    """The last words of vLLM are the reason."""
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\necho 'ValueError: no room for the model' >&2\nexit 3\n")
    (tmp_path / "python").write_text("#!/bin/sh\necho 0.32.0\n")
    for name in ("vllm", "python"):
        (tmp_path / name).chmod(0o755)
    async with up(tmp_path / "state", "--model", str(model), "--vllm", str(program)) as running:
        async with asyncio.timeout(SECONDS):
            assert await running.process.wait() == 1
        last = (running.folder / "up.log").read_text().splitlines()[-1]
    assert last.startswith("evener: vLLM ended with exit status 3: ValueError: no room for the model")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ((), "--engine vllm needs --model, a Hugging Face folder"),
        (("--model", "/nowhere"), "model /nowhere: No such file or directory"),
        (("--model", "{model}", "--vllm", "/nowhere/vllm"), "there is no program /nowhere/vllm"),
    ],
)
async def test_what_cannot_be_served_is_named(tmp_path: Path, model: Path, options: Sequence[str], says: str) -> None:
    async with up(tmp_path / "state", *(option.replace("{model}", str(model)) for option in options)) as running:
        async with asyncio.timeout(SECONDS):
            assert await running.process.wait() in {1, 2}
        assert says in (running.folder / "up.log").read_text().splitlines()[-1]
