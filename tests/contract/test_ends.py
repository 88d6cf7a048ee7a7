"""How a program ends, in every backend: by its agent's own doing, or because its sandbox was lost."""

import abc
import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from tests.contract.test_sandboxes import configured, ran, runs, sh
from tests.support.waiting import eventually

from evener.proto.sandbox import SandboxLimits, SandboxSpec
from evener.sandboxes.bubblewrap import open_bubblewrap
from evener.sandboxes.config import BubblewrapConfig
from evener.sandboxes.docker import open_docker_sandboxes
from evener.sandboxes.local import open_local
from evener.sandboxes.port import ANY_SANDBOX, SandboxError, Sandboxes, SandboxLost

HOG = "exec python3 -c 'b = bytearray(1 << 30); b[::4096] = bytes(len(b[::4096]))'"
"""Takes 1 GiB."""


def processes_of(*words: str) -> list[int]:
    """Return the processes of this machine with these words in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if all(word.encode() in (folder / "cmdline").read_bytes() for word in words):
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


class EndsContract(abc.ABC):
    @abc.abstractmethod
    def opened(self, root: Path, docker_host: str) -> AbstractAsyncContextManager[Sandboxes]: ...

    @pytest.fixture
    def host(self) -> str:
        return ""

    @pytest.fixture
    async def sandboxes(self, tmp_path: Path, host: str) -> AsyncIterator[Sandboxes]:
        async with self.opened(tmp_path / "sandboxes", host) as sandboxes:
            yield sandboxes

    @pytest.mark.parametrize(
        ("script", "number"),
        [("kill -9 $$", signal.SIGKILL), ("kill -TERM $$", signal.SIGTERM), ("sh -c 'kill -9 $PPID'; sleep 100", signal.SIGKILL)],
        ids=["kill", "term", "by a child"],
    )
    async def test_agent_that_kills_its_own_harness_ends_it_by_that_signal(self, sandboxes: Sandboxes, script: str, number: int) -> None:
        """Its sandbox lives on: that is an exit like any other, which is graded."""
        async with sandboxes.open("s", ANY_SANDBOX) as sandbox:
            await sandbox.settle()
            assert (await ran(sandbox, sh(f"echo 1 > done; {script}")))[0] == -number
            assert await sandbox.read(f"{sandbox.workdir}/done") == b"1\n"

    async def test_exit_code_of_the_agents_choice_is_no_lost_sandbox(self, sandboxes: Sandboxes) -> None:
        async with sandboxes.open("s", ANY_SANDBOX) as sandbox:
            assert (await ran(sandbox, sh("exit 3")))[0] == 3


class TestLocalEnds(EndsContract):
    """The folder and a keeper are all that there is of a sandbox."""

    def opened(self, root: Path, docker_host: str) -> AbstractAsyncContextManager[Sandboxes]:  # noqa: ARG002 - it is for others
        return open_local(root)

    @pytest.fixture
    def group(self) -> Iterator[Path]:
        """A control group with 64 MiB of memory."""
        version_1 = Path("/sys/fs/cgroup/memory")
        folder = (version_1 if version_1.is_dir() else Path("/sys/fs/cgroup")) / f"evener-test-{os.getpid()}"
        try:
            folder.mkdir()
            (folder / ("memory.limit_in_bytes" if version_1.is_dir() else "memory.max")).write_text(str(64 << 20))
        except OSError as cause:
            pytest.skip(f"NOT TESTED: no control group of memory can be made here ({cause})")
        yield folder
        folder.rmdir()

    async def test_program_that_the_kernel_killed_for_memory_is_a_lost_sandbox(self, sandboxes: Sandboxes, group: Path) -> None:
        async with sandboxes.open("s", ANY_SANDBOX) as sandbox:
            with pytest.raises(SandboxLost, match="while the machine ended processes for memory"):
                await ran(sandbox, sh(f"echo $$ > {group}/cgroup.procs; {HOG}"))


class TestBubblewrapEnds(EndsContract):
    def opened(self, root: Path, docker_host: str) -> AbstractAsyncContextManager[Sandboxes]:  # noqa: ARG002 - it is for others
        return open_bubblewrap(root, BubblewrapConfig())

    async def test_namespaces_that_are_ended_from_outside_are_a_lost_sandbox(self, sandboxes: Sandboxes) -> None:
        words = "sleep 4242.42"
        async with sandboxes.open("s", ANY_SANDBOX) as sandbox:
            process = await sandbox.start(sh(f"{words}; true"))
            await eventually(lambda: runs(words))
            os.kill(min(await asyncio.to_thread(processes_of, "bwrap", words)), signal.SIGKILL)
            with pytest.raises(SandboxLost, match="ended from outside, by signal 9"):
                await process.wait()

    async def test_agent_that_kills_all_that_it_sees_ends_its_own_harness(self, sandboxes: Sandboxes) -> None:
        async with sandboxes.open("s", ANY_SANDBOX) as sandbox:
            assert (await ran(sandbox, sh("sh -c 'kill -9 -1'; sleep 100")))[0] == -signal.SIGKILL


@pytest.mark.docker
class TestDockerEnds(EndsContract):
    @pytest.fixture
    def host(self, docker_host: str) -> str:
        return docker_host

    def opened(self, root: Path, docker_host: str) -> AbstractAsyncContextManager[Sandboxes]:
        return open_docker_sandboxes(root, configured(docker_host))

    async def test_agent_that_kills_all_that_it_sees_ends_its_own_harness(self, sandboxes: Sandboxes) -> None:
        """The first process of the container is none of them."""
        async with sandboxes.open("s", ANY_SANDBOX) as sandbox:
            assert (await ran(sandbox, sh("kill -9 1; sh -c 'kill -9 -1'; sleep 100")))[0] == -signal.SIGKILL

    @pytest.mark.parametrize("end", [("kill",), ("rm", "-f")], ids=["killed", "removed"])
    async def test_container_that_is_ended_from_outside_is_a_lost_sandbox(
        self, sandboxes: Sandboxes, host: str, end: tuple[str, ...]
    ) -> None:
        words = f"sleep 4343.{len(end)}"
        async with sandboxes.open(f"lost-{len(end)}", ANY_SANDBOX) as sandbox:
            process = await sandbox.start(sh(f"{words}; true"))
            await eventually(lambda: runs(words))
            docker = ("docker", "-H", host)
            listed = await asyncio.to_thread(
                subprocess.run, (*docker, "ps", "-q", "--filter", f"name=lost-{len(end)}"), check=True, capture_output=True, text=True
            )
            await asyncio.to_thread(subprocess.run, (*docker, *end, listed.stdout.strip()), check=True, capture_output=True)
            with pytest.raises(SandboxError):
                await process.wait()

    async def test_program_that_is_killed_for_memory_is_a_lost_sandbox(self, sandboxes: Sandboxes) -> None:
        """What the limit of its container ended is not what the agent did."""
        spec = SandboxSpec(limits=SandboxLimits(memory_bytes=64 << 20))
        async with sandboxes.open("s", spec) as sandbox:
            with pytest.raises(SandboxLost, match="while the machine ended processes for memory"):
                await ran(sandbox, sh(HOG))
