"""What every sandbox backend promises, and what those promise beside that which keep programs from the rest of the machine."""

import abc
import asyncio
import io
import os
import re
import secrets
import signal
import subprocess
import tarfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

import pytest
from aiohttp import web
from tests.support.capabilities import CAP_SYS_RESOURCE, has_capability
from tests.support.waiting import eventually, until

from evener.proto.sandbox import ImageBuild, Mount, Network, NetworkMode, SandboxLimits, SandboxSpec
from evener.sandboxes.bubblewrap import open_bubblewrap, works
from evener.sandboxes.config import BubblewrapConfig, DockerConfig
from evener.sandboxes.control_groups import find_control_groups
from evener.sandboxes.docker import open_docker_sandboxes
from evener.sandboxes.docker_container import container_name
from evener.sandboxes.local import open_local
from evener.sandboxes.port import (
    ANY_SANDBOX,
    ChangeLimits,
    Changes,
    ChangesTooLarge,
    ImageMissing,
    NotAFile,
    Program,
    ProgramMissing,
    Sandbox,
    SandboxError,
    Sandboxes,
    SandboxLost,
    Unstartable,
)
from evener.sandboxes.registry import troubles, usable

LIMITS = ChangeLimits()
ASKED = (
    "import sys, urllib.request as r; sys.stdout.write(r.build_opener(r.ProxyHandler({})).open(sys.argv[1], timeout=20).read().decode())"
)
"""Prints what an HTTP server answers."""
PROXIED = "import sys, urllib.request as r; sys.stdout.write(r.urlopen(sys.argv[1], timeout=20).read().decode())"
LISTED = """
cd "$HOME/../.."
find . \\( -path ./proc -o -path ./sys -o -path ./dev -o -path ./usr \\) -prune -o ! -type d -print 2> /dev/null | sort
env | cut -d= -f1 | sort
"""
"""Prints the files and variables of a sandbox."""
CONNECTED = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=5)"


def given(folder: Path, **files: str) -> Path:
    """Make a folder with files, which everybody may read and change."""
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    for one in (folder.parent, folder):
        one.chmod(0o777)
    return folder


def sh(script: str, **given: str) -> Program:
    return Program(argv=("sh", "-c", script), environment=given)


async def ran(sandbox: Sandbox, program: Program) -> tuple[int, str]:
    """Return a program's exit code and output."""
    process = await sandbox.start(program)
    return await process.wait(), process.log().decode()


def files_in(changes: Changes) -> dict[str, str]:
    """Return what changes hold: a file's text, a link's target after an arrow, and nothing for a folder."""
    found: dict[str, str] = {}
    with tarfile.open(fileobj=io.BytesIO(changes.archive)) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isreg() else None
            found[member.name] = f"-> {member.linkname}" if member.issym() else content.read().decode() if content else ""
    return found


def all_processes() -> list[int]:
    """Return the ids of the processes of this machine."""
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]


def folder_of(pid: int) -> str | None:
    """Return the working directory of a process. None: it is gone, or another user's."""
    try:
        return str(Path(f"/proc/{pid}/cwd").readlink())
    except OSError:
        return None


def runs(words: str) -> bool:
    """Return whether any process of this machine has these words in its command line."""
    for pid in all_processes():
        try:
            if words.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                return True
        except OSError:
            continue
    return False


async def ended(words: str) -> None:
    await eventually(lambda: not runs(words))


@asynccontextmanager
async def answering(host: str = "127.0.0.1") -> AsyncIterator[int]:
    """Serve on this machine; yield the port."""
    application = web.Application()

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="reached")

    application.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, host, 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


class SandboxesContract(abc.ABC):
    """Behaviour that is the same on every backend."""

    @abc.abstractmethod
    def opened(self, root: Path, docker_host: str) -> AbstractAsyncContextManager[Sandboxes]:
        """Open the backend."""

    @pytest.fixture
    async def sandboxes(self, tmp_path: Path, host: str) -> AsyncIterator[Sandboxes]:
        async with self.opened(tmp_path / "sandboxes", host) as sandboxes:
            yield sandboxes

    @pytest.fixture
    def host(self) -> str:
        return ""

    async def test_a_program_sees_its_own_environment_and_nothing_of_ours(
        self, sandboxes: Sandboxes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A key in the runner's environment must not reach what a model drives."""
        monkeypatch.setenv("SECRET_KEY", "x")
        async with sandboxes.open("s") as sandbox:
            code, said = await ran(sandbox, sh("echo $GIVEN-$SECRET_KEY-; pwd; echo $HOME; test -w . -a -w $HOME -a -w $TMPDIR", GIVEN="1"))

            assert (code, said.splitlines()) == (0, ["1--", sandbox.inside("/app"), sandbox.inside("/home/agent")])

    @pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -9 $$", -9), ("cat", 0), ("nosuchcommand", 127)])
    async def test_exit_codes(self, sandboxes: Sandboxes, script: str, code: int) -> None:
        """A signal is negative; a program that reads stdin finds it closed."""
        async with sandboxes.open("s") as sandbox:
            assert (await ran(sandbox, sh(script)))[0] == code

    async def test_a_program_that_no_try_can_start_says_so(self, sandboxes: Sandboxes) -> None:
        """Another attempt would meet it again."""
        async with sandboxes.open("s") as sandbox:
            with pytest.raises(ProgramMissing, match="there is no program nosuchcommand"):
                await sandbox.start(Program(argv=("nosuchcommand",)))
            with pytest.raises(Unstartable, match=r"longer than the system takes \(the longest is argument 1 with 200000 characters"):
                await sandbox.start(Program(argv=("true", "x" * 200_000)))
            with pytest.raises(Unstartable, match="embedded null byte"):
                await sandbox.start(Program(argv=("true", "a\0b")))

    async def test_output_is_kept_to_its_limit(self, sandboxes: Sandboxes) -> None:
        """Half from the beginning and half from the end."""
        async with sandboxes.open("s") as sandbox:
            script = "echo begun; head -c 3000000 /dev/zero | tr '\\0' x; echo ended"
            process = await sandbox.start(Program(argv=("sh", "-c", script), log_bytes=1000))
            assert await process.wait() == 0
            said = process.log()

        assert len(said) < 1100
        assert (said[:6], said[-6:]) == (b"begun\n", b"ended\n")

    async def test_both_streams_of_output_are_kept(self, sandboxes: Sandboxes) -> None:
        async with sandboxes.open("s") as sandbox:
            process = await sandbox.start(sh("echo said; echo complained >&2"))
            assert await process.wait() == 0
            lines = process.log().splitlines()

        assert sorted(lines) == [b"complained", b"said"]

    async def test_changes_are_what_differs_from_the_settled_state(self, sandboxes: Sandboxes, tmp_path: Path) -> None:
        """New, changed and removed files, links as links; neither what was prepared nor a harness's own state."""
        given = tmp_path / "given"
        (given / "src").mkdir(parents=True)
        for name in ("kept.txt", "src/changed.txt", "src/removed.txt"):
            (given / name).write_text("given")
        async with sandboxes.open("s") as sandbox:
            await sandbox.bring(given, "/app")
            await sandbox.write({"/home/agent/.conf/a.json": b"{}", "/app/harness.txt": b"x"})
            await sandbox.settle()
            script = """
                cat kept.txt harness.txt $HOME/.conf/a.json
                echo new > src/changed.txt; rm src/removed.txt; mkdir -p new/deep; echo 1 > new/deep/one; ln -s /etc/passwd link
                ln new/deep/one new/two; echo state > $HOME/state; echo x > $TMPDIR/x; mkfifo new/pipe
            """
            assert await ran(sandbox, sh(script)) == (0, "givenx{}")
            changes = await sandbox.changes(LIMITS)

        expected = {
            "app/link": "-> /etc/passwd",
            "app/new": "",
            "app/new/deep": "",
            "app/new/deep/one": "1\n",
            "app/new/two": "1\n",
            "app/src/changed.txt": "new\n",
        }
        assert files_in(changes) == expected
        assert changes.removed == ("app/src/removed.txt",)
        assert changes.excluded == {"app/new/pipe": "a pipe"}

    async def test_changes_of_one_sandbox_are_applied_to_another(self, sandboxes: Sandboxes, tmp_path: Path) -> None:
        """As a fresh sandbox for grading gets them: over the same prepared files."""
        given = tmp_path / "given"
        (given / "tree/sub").mkdir(parents=True)
        (given / "tree/sub/file").write_text("given")
        (given / "other").write_text("given")
        async with sandboxes.open("agent") as sandbox:
            await sandbox.bring(given, "/app")
            await sandbox.settle()
            await ran(sandbox, sh("rm -rf tree; echo file > tree; rm other; mkdir other; echo 1 > other/one; chmod 755 other/one"))
            changes = await sandbox.changes(LIMITS)
        async with sandboxes.open("grading") as fresh:
            await fresh.bring(given, "/app")
            await fresh.apply(changes)
            said = await ran(fresh, sh("cat tree other/one; test -x other/one; ls; echo more > other/one"))

        assert said == (0, "file\n1\nother\ntree\n")

    async def test_folder_that_was_made_again_is_empty_elsewhere_too(self, sandboxes: Sandboxes, tmp_path: Path) -> None:
        """The old files of a folder do not come back in the sandbox that grades."""
        given = tmp_path / "given"
        (given / "tree").mkdir(parents=True)
        (given / "tree/file").write_text("given")
        async with sandboxes.open("agent") as sandbox:
            await sandbox.bring(given, "/app")
            await sandbox.settle()
            await ran(sandbox, sh("rm -rf tree; mkdir tree; echo 1 > tree/one"))
            changes = await sandbox.changes(LIMITS)
        async with sandboxes.open("grading") as fresh:
            await fresh.bring(given, "/app")
            await fresh.apply(changes)
            assert await ran(fresh, sh("ls tree")) == (0, "one\n")

    @pytest.mark.parametrize("limits", [ChangeLimits(bytes=1000), ChangeLimits(entries=20)], ids=["bytes", "entries"])
    async def test_changes_beyond_a_limit_are_refused(self, sandboxes: Sandboxes, limits: ChangeLimits) -> None:
        async with sandboxes.open("s") as sandbox:
            await sandbox.settle()
            await ran(sandbox, sh("for i in $(seq 40); do echo 0123456789012345678901234567890123456789 > $i; done"))
            with pytest.raises(ChangesTooLarge):
                await sandbox.changes(limits)

    @pytest.mark.parametrize("name", ["../x", "/etc/x", "tests/test.sh", "home/agent/.profile", "app/../../x"])
    async def test_changes_that_leave_the_sandbox_are_refused(self, sandboxes: Sandboxes, name: str) -> None:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            tar.addfile(tarfile.TarInfo(name))
        async with sandboxes.open("s") as sandbox:
            with pytest.raises(SandboxError, match="not allowed"):
                await sandbox.apply(Changes(archive=buffer.getvalue()))

    @pytest.mark.parametrize(
        ("kind", "sparse"),
        [
            (tarfile.CHRTYPE, {}),
            (tarfile.FIFOTYPE, {}),
            (tarfile.LNKTYPE, {}),
            (
                tarfile.REGTYPE,
                {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "app/x", "GNU.sparse.realsize": "1" * 12},
            ),
        ],
        ids=["device", "pipe", "hard link", "sparse"],
    )
    async def test_changes_hold_files_folders_and_links_alone(self, sandboxes: Sandboxes, kind: bytes, sparse: dict[str, str]) -> None:
        """No device that a daemon would make, and no file of 100 GB in 2 KB."""
        buffer, content = io.BytesIO(), b"1\n0\n0\n".ljust(512, b"\0") if sparse else b""
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
            member = tarfile.TarInfo("app/x")
            member.type, member.linkname, member.pax_headers, member.size = kind, "etc/passwd", sparse, len(content)
            tar.addfile(member, io.BytesIO(content))
        async with sandboxes.open("s") as sandbox:
            with pytest.raises(SandboxError, match="neither file, directory nor link"):
                await sandbox.apply(Changes(archive=buffer.getvalue()))

    async def test_rights_that_a_set_uid_program_has_are_not_applied(self, sandboxes: Sandboxes) -> None:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            member = tarfile.TarInfo("app/x")
            member.mode = 0o6755
            tar.addfile(member)
        async with sandboxes.open("s") as sandbox:
            await sandbox.apply(Changes(archive=buffer.getvalue()))
            assert await ran(sandbox, sh("stat -c %a x")) == (0, "755\n")

    async def test_files_are_read_without_following_links(self, sandboxes: Sandboxes) -> None:
        """What a verifier's log folder holds was left by programs that may want to be read something else."""
        async with sandboxes.open("s") as sandbox:
            logs = sandbox.inside("/logs/verifier")
            script = 'cd "$LOGS"; printf 1 > reward.txt; ln -s /etc/passwd link; mkdir folder; mkfifo pipe; head -c 3000 /dev/zero > large'
            assert await ran(sandbox, sh(script, LOGS=logs)) == (0, "")

            assert await sandbox.read("/logs/verifier/reward.txt") == b"1"
            assert await sandbox.read("/logs/verifier/nothing") is None
            for name in ("link", "folder", "pipe", "large"):
                with pytest.raises(NotAFile):
                    await sandbox.read(f"/logs/verifier/{name}", 1000)

    async def test_what_a_program_leaves_running_dies_with_it(self, sandboxes: Sandboxes) -> None:
        """A child in a session of its own, which has given its parents away."""
        mark = f"9{secrets.randbelow(10**9)}"
        async with sandboxes.open("s") as sandbox:
            process = await sandbox.start(
                sh(f"(setsid sleep {mark} </dev/null >/dev/null 2>&1 &) ; until ps -e >/dev/null; do break; done")
            )
            assert await process.wait() == 0
            await ended(f"sleep\0{mark}")

    async def test_a_program_is_asked_to_end_before_it_is_killed(self, sandboxes: Sandboxes) -> None:
        async with sandboxes.open("s") as sandbox:
            polite = await sandbox.start(sh("trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.1; done"))
            await eventually(lambda: b"ready" in polite.log())
            assert await polite.end(grace_seconds=60) == 5
            assert b"bye\n" in polite.log()  # the shell may say after that that its `sleep` was ended too

            stubborn = await sandbox.start(sh("trap '' TERM; echo ready; while :; do sleep 0.1; done"))
            await eventually(lambda: b"ready" in stubborn.log())
            assert await stubborn.end(grace_seconds=0.2) == -9

    async def test_programs_reach_what_listens_for_their_sandbox(self, sandboxes: Sandboxes) -> None:
        """The relay: the only way out of a sandbox without a network."""
        async with sandboxes.open("s") as sandbox:
            listening = await sandbox.listen()
            host, port = listening.getsockname()

            async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nrelay")
                await writer.drain()
                writer.close()

            async with await asyncio.start_server(answer, sock=listening):
                said = await ran(sandbox, Program(argv=("python3", "-c", ASKED, f"http://{host}:{port}/")))

        assert said == (0, "relay")

    async def test_folders_of_this_machine_are_found_at_their_place(self, sandboxes: Sandboxes, tmp_path: Path) -> None:
        """The bundle of a harness. It is none of what a program changes."""
        bundle = given(tmp_path / "bundle", program="echo bundled; echo 1 > one")
        async with sandboxes.open("s", SandboxSpec(mounts=(Mount(source=str(bundle), place="/opt/evener/bundle"),))) as sandbox:
            await sandbox.settle()
            assert await ran(sandbox, Program(argv=("sh", f"{sandbox.inside('/opt/evener/bundle')}/program"))) == (0, "bundled\n")
            assert files_in(await sandbox.changes(LIMITS)) == {"app/one": "1\n"}

    async def test_working_directory_is_the_specs(self, sandboxes: Sandboxes) -> None:
        async with sandboxes.open("s", SandboxSpec(workdir="/project/here")) as sandbox:
            assert sandbox.workdir == "/project/here"
            assert await ran(sandbox, sh("pwd; touch x")) == (0, f"{sandbox.inside('/project/here')}\n")

    async def test_warm_sandbox_is_as_clean_as_a_fresh_one(self, sandboxes: Sandboxes, tmp_path: Path) -> None:
        """Nothing has run in it, and nothing is in it: what comes later is its only content. Its changes are those of its program."""
        folder = given(tmp_path / "given", **{"a.txt": "a"})
        async with sandboxes.open("warm") as warm, sandboxes.open("fresh") as fresh:
            await warm.warm()
            assert await warm.usable()
            assert await ran(warm, sh(LISTED)) == await ran(fresh, sh(LISTED))
        async with sandboxes.open("again") as warm:
            await warm.warm()
            await warm.bring(folder, "/app")
            await warm.settle()
            assert await ran(warm, sh("cat a.txt; echo b > b.txt")) == (0, "a")
            assert files_in(await warm.changes(LIMITS)) == {"app/b.txt": "b\n"}

    async def test_warm_sandbox_is_reached_like_any_other(self, sandboxes: Sandboxes) -> None:
        """Its listener is opened when it is needed."""
        async with sandboxes.open("warm") as warm, sandboxes.open("fresh") as fresh:
            await warm.warm()
            for sandbox in (warm, fresh):
                listening = await sandbox.listen()
                with listening:
                    host, port = listening.getsockname()
                    script = f'python3 -c "$CONNECTED" {host} {port} && echo connected'
                    assert await ran(sandbox, sh(script, CONNECTED=CONNECTED)) == (0, "connected\n")

    async def test_sandbox_that_was_lost_while_it_waited_is_not_usable(self, sandboxes: Sandboxes, tmp_path: Path, host: str) -> None:
        """Whoever takes it asks first."""
        async with sandboxes.open("kept") as kept, sandboxes.open("lost") as lost:
            for sandbox in (kept, lost):
                await sandbox.warm()
                assert await sandbox.usable()
            self.lose(tmp_path / "sandboxes", "lost", host)

            await until(lost.usable, lambda usable: not usable)
            assert await kept.usable()

    @abc.abstractmethod
    def lose(self, root: Path, name: str, docker_host: str) -> None:
        """Break a warm sandbox from outside, as a machine on which something runs out does."""

    async def test_several_sandboxes_at_once_know_nothing_of_each_other(self, sandboxes: Sandboxes) -> None:
        async def one(name: str) -> Mapping[str, str]:
            async with sandboxes.open(name) as sandbox:
                await sandbox.settle()
                assert await ran(sandbox, sh(f"echo {name} > {name}; ls; ls $TMPDIR")) == (0, f"{name}\n")
                return files_in(await sandbox.changes(LIMITS))

        assert [*await asyncio.gather(one("a"), one("b"))] == [{"app/a": "a\n"}, {"app/b": "b\n"}]


class IsolatingContract(SandboxesContract):
    """Behaviour of backends that keep programs from the rest of the machine."""

    async def test_nothing_of_this_machine_is_reached(self, sandboxes: Sandboxes) -> None:
        """Its loopback is another one; no other network is there."""
        async with answering("0.0.0.0") as port, sandboxes.open("s") as sandbox:  # noqa: S104 - every address of this machine
            for host in ("127.0.0.1", "169.254.169.254", "10.0.0.1"):
                code, said = await ran(sandbox, Program(argv=("python3", "-c", CONNECTED, host, str(port))))
                assert code == 1, host
                assert "refused" in said or "unreachable" in said

    async def test_programs_have_no_rights_to_gain(self, sandboxes: Sandboxes) -> None:
        async with sandboxes.open("s") as sandbox:
            _, said = await ran(sandbox, sh("grep -E '^(CapEff|CapPrm|CapBnd|NoNewPrivs)' /proc/self/status; id -u"))

        assert said.split()[:-1] == [*("CapPrm:", "0" * 16, "CapEff:", "0" * 16, "CapBnd:", "0" * 16), "NoNewPrivs:", "1"]
        assert said.split()[-1] != "0"

    async def test_files_and_processes_of_this_machine_are_not_seen(self, sandboxes: Sandboxes, tmp_path: Path) -> None:
        secret = given(tmp_path / "folder", secret="x") / "secret"
        async with sandboxes.open("s") as sandbox:
            script = f"(cat {secret}; kill -0 {os.getpid()}; ls /proc | grep -c '^[0-9]') 2>&1"  # the order of two streams is nobody's
            _, said = await ran(sandbox, sh(script))

        assert "No such file" in said.splitlines()[0]
        assert int(said.splitlines()[-1]) < 10

    async def test_places_are_where_a_container_has_them(self, sandboxes: Sandboxes, tmp_path: Path) -> None:
        """Tests that compose a path as they run find it."""
        tests = tmp_path / "tests"
        tests.mkdir()
        (tests / "test.sh").write_text("cd /; cat tests/data.txt > logs/verifier/reward.txt")
        (tests / "data.txt").write_text("1")
        async with sandboxes.open("s") as sandbox:
            await sandbox.bring(tests, "/tests")
            assert await ran(sandbox, Program(argv=("sh", "/tests/test.sh"))) == (0, "")
            assert await sandbox.read("/logs/verifier/reward.txt") == b"1"

    async def test_bundles_cannot_be_changed(self, sandboxes: Sandboxes, tmp_path: Path) -> None:
        bundle = given(tmp_path / "bundle")
        async with sandboxes.open("s", SandboxSpec(mounts=(Mount(source=str(bundle), place="/opt/evener/bundle"),))) as sandbox:
            code, said = await ran(sandbox, sh("touch /opt/evener/bundle/x"))

        assert (code, "Read-only" in said) == (1, True)
        assert not list(bundle.iterdir())

    async def test_number_of_processes_is_limited(self, sandboxes: Sandboxes) -> None:
        """A fork bomb hits a wall, and dies with its program."""
        mark = f"9{secrets.randbelow(10**9)}"
        async with sandboxes.open("s", SandboxSpec(limits=SandboxLimits(pids=40))) as sandbox:
            process = await sandbox.start(sh(f"for i in $(seq 200); do sleep {mark} & done; echo all"))
            await process.wait()
            assert b"all" not in process.log()
            await ended(f"sleep\0{mark}")

    async def test_memory_is_limited(self, sandboxes: Sandboxes) -> None:
        """A container's program is killed; one in namespaces gets no more."""
        async with sandboxes.open("s", SandboxSpec(limits=SandboxLimits(memory_bytes=64 << 20))) as sandbox:
            process = await sandbox.start(Program(argv=("python3", "-c", "x = bytearray(300 << 20); print('had it')")))
            code = 1
            with suppress(SandboxLost):
                code = await process.wait()

        assert (code, b"had it" in process.log()) == (1, False)

    async def test_size_of_a_file_is_limited(self, sandboxes: Sandboxes) -> None:
        async with sandboxes.open("s", SandboxSpec(limits=SandboxLimits(disk_bytes=8 << 20))) as sandbox:
            _, said = await ran(sandbox, sh("head -c 32000000 /dev/zero > big; stat -c %s big"))

        assert int(said.split()[-1]) <= 8 << 20

    async def test_programs_end_before_others_when_memory_ends(self, sandboxes: Sandboxes) -> None:
        """The kernel ends processes with a higher score first. Nobody lowers it where somebody may set the bound."""
        script = "cd /proc/self; cat oom_score_adj; echo 99 > oom_score_adj; cat oom_score_adj"
        async with sandboxes.open("s") as sandbox:
            _, said = await ran(sandbox, sh(script))

        first, *_, last = said.split()
        assert first == "100"
        assert last == ("100" if has_capability(CAP_SYS_RESOURCE) else "99")

    async def test_declared_hosts_are_reached_and_no_others(self, sandboxes: Sandboxes) -> None:
        """By the variables that programs know. 127.0.0.0/8 is allowed to tasks by this test's configuration, and by nobody's else."""
        async with answering("127.0.0.5") as port:
            url = f"http://127.0.0.5:{port}/"
            said = {}
            for hosts in (("127.0.0.5",), ("127.0.0.6", "*.example.org")):
                spec = SandboxSpec(network=Network(mode=NetworkMode.ALLOWLIST, hosts=hosts))
                async with sandboxes.open("s", spec) as sandbox:
                    script = 'no_proxy= NO_PROXY= python3 -c "$PROXIED" "$URL" 2>&1 | tail -1'
                    said[hosts[0]] = (await ran(sandbox, sh(script, PROXIED=PROXIED, URL=url)))[1]

        assert said["127.0.0.5"] == "reached"
        assert "403" in said["127.0.0.6"]

    async def test_public_network_does_not_lead_into_this_machine(self, sandboxes: Sandboxes) -> None:
        """10.0.0.1 stands for what is not public: nothing allows it."""
        async with sandboxes.open("s", SandboxSpec(network=Network(mode=NetworkMode.PUBLIC))) as sandbox:
            _, said = await ran(sandbox, sh('python3 -c "$PROXIED" http://10.0.0.1/ 2>&1 | tail -1', PROXIED=PROXIED))

        assert "403" in said


class TestLocal(SandboxesContract):
    """Plain processes."""

    def opened(self, root: Path, docker_host: str) -> AbstractAsyncContextManager[Sandboxes]:  # noqa: ARG002 - it is for others
        return open_local(root)

    def lose(self, root: Path, name: str, docker_host: str) -> None:  # noqa: ARG002 - it is for others
        (root / name).rename(root / "away")


class TestBubblewrap(IsolatingContract):
    """Namespaces, without a daemon."""

    def opened(self, root: Path, docker_host: str) -> AbstractAsyncContextManager[Sandboxes]:  # noqa: ARG002 - it is for others
        if not works():
            pytest.fail("bubblewrap does not work on this machine (Debian, Ubuntu: apt install bubblewrap; it needs user namespaces)")
        return open_bubblewrap(root, BubblewrapConfig(private_hosts=("127.0.0.0/8",)))

    async def test_limits_hold_for_all_processes_together(self, sandboxes: Sandboxes) -> None:
        """Four processes of 40 MB are more than 100 MB, though none of them is."""
        one = "import sys, time; x = bytearray(40 << 20); print('had it', flush=True); time.sleep(3)"
        script = f'for i in 1 2 3 4; do python3 -c "{one}" & done; wait; echo "all"'
        async with sandboxes.open("s", SandboxSpec(limits=SandboxLimits(memory_bytes=100 << 20))) as sandbox:
            process = await sandbox.start(sh(script))
            with suppress(SandboxLost):
                await process.wait()

        if find_control_groups() is None:
            pytest.skip("NOT TESTED: this process may not make control groups")
        assert process.log().count(b"had it") < 4

    async def test_cpus_are_limited(self, sandboxes: Sandboxes) -> None:
        """The program is in a group with that quota, whatever a busy machine leaves it."""
        groups = find_control_groups()
        if groups is None or not groups.limits_cpus:
            pytest.skip("NOT TESTED: this process may not make control groups that limit CPUs")
        name = f"s-{secrets.token_hex(4)}"
        async with sandboxes.open(name, SandboxSpec(limits=SandboxLimits(cpus=0.2))) as sandbox:
            process = await sandbox.start(sh("echo begun; sleep 60"))
            await eventually(lambda: b"begun" in process.log())
            [group] = groups.parents["cpu"].glob(f"evener-*-{name}")
            assert (group / "cgroup.procs").read_text().split()
            quotas = [(group / file).read_text().split()[0] for file in ("cpu.max", "cpu.cfs_quota_us") if (group / file).exists()]
            await process.end(grace_seconds=0)

        assert quotas == ["20000"]

    async def test_groups_are_gone_with_their_sandboxes(self, sandboxes: Sandboxes) -> None:
        groups = find_control_groups()
        if groups is None:
            pytest.skip("NOT TESTED: this process may not make control groups")
        name = f"s-{secrets.token_hex(4)}"

        def made() -> set[str]:
            return {folder.name for parent in groups.parents.values() for folder in parent.glob(f"evener-*-{name}")}

        async with sandboxes.open(name) as sandbox:
            assert await ran(sandbox, sh("sleep 60 & echo left")) == (0, "left\n")
            assert len(made()) == 1
        assert made() == set()

    @pytest.mark.parametrize(
        "writes",
        [
            "open(str(n), 'wb').write(bytes(4 << 20))",
            "f = open('x', 'wb'); f.write(bytes(4 << 20)); f.flush(); kept.append(f); os.unlink('x')",
        ],
        ids=["many files", "files that are removed and still open"],
    )
    async def test_program_that_fills_the_disk_is_ended(self, sandboxes: Sandboxes, writes: str) -> None:
        """No file is above the limit; all together are."""
        code = f"import os, time\nkept = []\nfor n in range(100):\n    {writes}\n    time.sleep(0.1)\n"
        async with sandboxes.open("s", SandboxSpec(limits=SandboxLimits(disk_bytes=16 << 20))) as sandbox:
            process = await sandbox.start(Program(argv=("python3", "-c", code)))
            exited = await process.wait()

        assert exited == -signal.SIGKILL
        assert re.search(rb"ended, because its files take \d+ bytes, and 16777216 are allowed", process.log())

    async def test_shared_memory_is_limited_and_devices_are_read_only(self, sandboxes: Sandboxes) -> None:
        """Files there are memory of the machine."""
        async with sandboxes.open("s") as sandbox:
            _, said = await ran(sandbox, sh("head -c 200000000 /dev/zero > /dev/shm/x; stat -c %s /dev/shm/x; touch /dev/x; echo $?"))

        *_, size, refused, code = said.splitlines()
        assert int(size) <= 64 << 20
        assert ("Read-only" in refused or "denied" in refused, code) == (True, "1")

    def lose(self, root: Path, name: str, docker_host: str) -> None:  # noqa: ARG002 - it is for others
        [holder] = [pid for pid in all_processes() if folder_of(pid) == str(root / name)]
        os.kill(holder, signal.SIGKILL)


@pytest.mark.docker
class TestDocker(IsolatingContract):
    """Containers of a real daemon, in an image made of this machine's files."""

    @pytest.fixture
    def host(self, docker_host: str) -> str:
        return docker_host

    def opened(self, root: Path, docker_host: str) -> AbstractAsyncContextManager[Sandboxes]:
        return open_docker_sandboxes(root, configured(docker_host))

    def lose(self, root: Path, name: str, docker_host: str) -> None:
        subprocess.run(["docker", "--host", docker_host, "kill", container_name(str(root), name)], stdout=subprocess.DEVNULL, check=True)

    async def test_image_is_built_once_from_the_same_files(self, sandboxes: Sandboxes, tmp_path: Path) -> None:
        """The task's Dockerfile, with the files beside it, its user and its working directory."""
        context = tmp_path / "environment"
        context.mkdir()
        (context / "given.txt").write_text("given")
        (context / "Dockerfile").write_text(
            "FROM evener-base\nCOPY given.txt /srv/\nRUN chmod 777 /srv && date +%N > /srv/stamp\nWORKDIR /srv\nUSER 1234\n"
        )
        spec = SandboxSpec(image=ImageBuild(context=str(context)))
        said = []
        for name in ("a", "b"):
            async with sandboxes.open(name, spec) as sandbox:
                await sandbox.settle()
                said.append((await ran(sandbox, sh("pwd; id -u; cat given.txt stamp; rm given.txt; echo x > new")))[1])
                changes = await sandbox.changes(LIMITS)
                assert (files_in(changes), changes.removed) == ({"srv/new": "x\n"}, ("srv/given.txt",))

        assert said[0].startswith("/srv\n1234\ngiven")
        assert said[0] == said[1]

    async def test_image_that_cannot_be_had_says_why(self, sandboxes: Sandboxes, tmp_path: Path) -> None:
        (tmp_path / "Dockerfile").write_text("FROM evener-base\nRUN echo why it fails; exit 7\n")
        with pytest.raises(ImageMissing, match=r"why it fails.*returned a non-zero code: 7"):
            async with sandboxes.open("s", SandboxSpec(image=ImageBuild(context=str(tmp_path)))):
                pass
        with pytest.raises(ImageMissing, match="cannot pull the image"):
            async with sandboxes.open("s", SandboxSpec(image="127.0.0.1:1/nobody/nothing:here")):
                pass

    @pytest.mark.parametrize(
        ("spec", "read_only"),
        [
            (ANY_SANDBOX, True),
            (SandboxSpec(read_only_root=False), False),
            (SandboxSpec(user="0:0"), False),
            (SandboxSpec(image="evener-base"), False),
            (SandboxSpec(image="evener-base", workdir="/srv", read_only_root=True), True),
            (SandboxSpec(image="evener-base", workdir="/", read_only_root=True), False),
        ],
    )
    async def test_root_is_read_only_where_the_task_allows_it(self, sandboxes: Sandboxes, spec: SandboxSpec, *, read_only: bool) -> None:
        """For root too, and for the next program: by default where the task has no image or user of its own, and it works somewhere else.

        Its folders stay writable, what programs change there is kept, and the runner itself writes anywhere.
        """
        root = Program(argv=("sh", "-c", "for i in /usr/x /etc/x /x; do (: > $i) 2> /dev/null && echo wrote $i; done; true"), user="0:0")
        work = sh("date > kept && touch $HOME/x /tmp/x /logs/agent/x")
        async with sandboxes.open("s", spec) as sandbox:
            await sandbox.settle()
            said = [await ran(sandbox, root), await ran(sandbox, root)]
            assert await ran(sandbox, work) == (0, "")
            changes = await sandbox.changes(LIMITS)
            await sandbox.write({"/usr/brought": b"brought"})
            assert await sandbox.read("/usr/brought") == b"brought"

        everywhere = {"etc/x", "usr/x", "x"}
        assert said == [(0, "" if read_only else "wrote /usr/x\nwrote /etc/x\nwrote /x\n")] * 2
        names = {name for name in files_in(changes) if name.rpartition("/")[2] in {"x", "kept"}}
        assert names == {"logs/agent/x", f"{sandbox.workdir}/kept".strip("/")} | (set() if read_only else everywhere)

    @pytest.mark.parametrize("command", [("kill",), ("exec", "--user", "1000")], ids=["container", "shell"])
    async def test_what_was_prepared_and_has_ended_is_a_lost_sandbox(
        self, sandboxes: Sandboxes, tmp_path: Path, docker_host: str, command: tuple[str, ...]
    ) -> None:
        """The container, or the shell in it. Either is not usable, and if it ends after that question, another attempt may succeed."""
        async with sandboxes.open("lost") as lost:
            await lost.warm()
            assert await lost.usable()
            name = container_name(str(tmp_path / "sandboxes"), "lost")
            ending = ("sh", "-c", "kill -9 -1") if command[0] == "exec" else ()
            ended = await asyncio.create_subprocess_exec("docker", "--host", docker_host, *command, name, *ending)
            await ended.wait()

            await until(lost.usable, lambda usable: not usable)
            with pytest.raises(SandboxError) as raised:
                await lost.start(sh("true"))
            assert not isinstance(raised.value, Unstartable)

    async def test_nothing_of_the_shell_that_waited_is_beside_its_program(self, sandboxes: Sandboxes) -> None:
        """There is nobody to talk to: neither a process nor a descriptor."""
        async with sandboxes.open("warm") as sandbox:
            await sandbox.warm()
            seen = "import os; print(*sorted(os.listdir('/proc/self/fd'))); print(os.readlink('/proc/self/fd/0'))"
            others = "print(sum(name.isdigit() for name in os.listdir('/proc')), open('/proc/1/cmdline').read().split(chr(0))[0])"
            code, said = await ran(sandbox, Program(argv=("python3", "-c", f"{seen}; {others}")))

        assert (code, said.splitlines()) == (0, ["0 1 2 3", "/dev/null", "3 sh"])  # 3 lists the folder; sh, its sleep, and the program

    async def test_programs_get_their_words_as_they_are(self, sandboxes: Sandboxes) -> None:
        """Whatever a shell would make of them, and names that it knows no variable for."""
        words = ("a b", "", "$HOME", "`id`", "it's", "two\nlines\n", "-n", "\\", "*", "\udcff")
        variables = {"PLAIN": "a 'b' $c\n", "npm_config_//host:key": "x y", "A.B": "1"}
        async with sandboxes.open("s") as sandbox:
            shown = "import os, sys; print([sys.argv[1:], {name: os.environ.get(name) for name in sys.argv[-1].split()}])"
            names = " ".join(variables)
            code, said = await ran(sandbox, Program(argv=("python3", "-c", shown, *words, names), environment=variables))

        assert (code, said) == (0, f"{[[*words, names], variables]}\n")

    async def test_files_behind_links_of_the_image_are_part_of_the_settled_state(self, sandboxes: Sandboxes, tmp_path: Path) -> None:
        """A home that leads to another place is written to when the sandbox was already looked at."""
        linked = "mkdir -p /srv/homes && rmdir /home && ln -s /srv/homes /home"
        (tmp_path / "Dockerfile").write_text(f"FROM evener-base\nRUN {linked}\nUSER 1000\n")
        async with sandboxes.open("s", SandboxSpec(image=ImageBuild(context=str(tmp_path)))) as sandbox:
            await sandbox.warm()
            await sandbox.write({"/home/agent/given": b"given"})
            await sandbox.settle()
            assert await ran(sandbox, sh("cat $HOME/given; echo 1 > /app/one")) == (0, "given")
            assert files_in(await sandbox.changes(LIMITS)) == {"app/one": "1\n"}

    async def test_tests_that_drop_their_rights_keep_programs_from_the_reward(self, sandboxes: Sandboxes) -> None:
        """Root becomes somebody else, who does not become root again. Without the rights for it, nobody does."""
        become = "python3 -c 'import os, sys; os.setgroups([]); os.setgid(N); os.setuid(N); os.execvp(sys.argv[1], sys.argv[1:])'"
        drop, rise = become.replace("N", "65534"), become.replace("N", "0")
        tried = f"id -u; touch /logs/verifier/x; {rise} id -u".replace("'", '"')
        script = f"umask 077; {drop} sh -c '{tried}'; touch /logs/verifier/own && ls /logs/verifier"
        async with sandboxes.open("s", SandboxSpec(user="0:0", drops_rights=True)) as sandbox:
            _, dropped = await ran(sandbox, sh(f"({script}) 2>/dev/null"))
        async with sandboxes.open("s", SandboxSpec(user="0:0")) as sandbox:
            _, kept = await ran(sandbox, sh(f"{drop} id -u 2>/dev/null || echo no"))

        assert (dropped, kept) == ("65534\nown\n", "no\n")

    async def test_programs_run_as_the_tasks_user(self, sandboxes: Sandboxes) -> None:
        """Where the task has an image, root without any capability is the image's default."""
        for user, uid in (("daemon", "1"), ("4321", "4321"), (None, "0")):
            async with sandboxes.open("s", SandboxSpec(image="evener-base", user=user)) as sandbox:
                assert await ran(sandbox, sh("id -u; grep -c 'CapEff.*0000000000000000' /proc/self/status; touch x")) == (0, f"{uid}\n1\n")

    async def test_daemon_that_is_away_is_trouble_and_no_end(self, tmp_path: Path, docker_host: str) -> None:
        """Other backends go on; what can be opened is opened once it is back."""
        away = tmp_path / "docker.sock"
        async with open_docker_sandboxes(tmp_path / "mine", configured(f"unix://{away}")) as mine:
            assert str(away) in mine.trouble()
            assert usable({"docker": mine, "local": Fine()}) == {"sandboxes": True}
            assert [why.startswith("sandboxes docker: ") for why in troubles({"docker": mine, "local": Fine()})] == [True]
            assert usable({"docker": mine})["sandboxes"] is False
            with pytest.raises(SandboxError):
                async with mine.open("s"):
                    pass
            away.symlink_to(docker_host.removeprefix("unix://"))
            async with mine.open("s") as sandbox:
                assert await ran(sandbox, sh("echo back")) == (0, "back\n")
            await mine.look()
            assert mine.trouble() == ""

    async def test_what_a_dead_process_left_is_removed_at_the_next_start(self, tmp_path: Path, docker_host: str) -> None:
        """Only containers of the same folder: those of others live."""
        config = configured(docker_host)
        async with open_docker_sandboxes(tmp_path / "other", config) as others, others.open("o") as other:
            async with open_docker_sandboxes(tmp_path / "mine", config) as mine:
                stale, waiting = mine.open("m"), mine.open("warm")
                left, warm = await stale.__aenter__(), await waiting.__aenter__()
                await warm.warm()
                mark = f"9{secrets.randbelow(10**9)}"
                await left.start(sh(f"sleep {mark}"))
                await eventually(lambda: runs(f"sleep\0{mark}"))
            async with open_docker_sandboxes(tmp_path / "mine", config):
                await ended(f"sleep\0{mark}")
                names = containers(docker_host)
                assert container_name(str(tmp_path / "other"), "o") in names
                assert not {container_name(str(tmp_path / "mine"), name) for name in ("m", "warm")} & names
            assert await ran(other, sh("echo lives")) == (0, "lives\n")


def containers(docker_host: str) -> set[str]:
    """Return the names of all containers of a daemon."""
    listed = subprocess.run(["docker", "--host", docker_host, "ps", "--all", "--format", "{{.Names}}"], capture_output=True, check=True)
    return set(listed.stdout.decode().split())


class Fine:
    """A backend that can open sandboxes, as far as it says."""

    def trouble(self) -> str:
        return ""

    def open(self, name: str, spec: SandboxSpec = ANY_SANDBOX) -> AbstractAsyncContextManager[Sandbox]:
        raise NotImplementedError


def configured(docker_host: str) -> DockerConfig:
    return DockerConfig(host=docker_host, image="evener-base", private_hosts=("127.0.0.0/8",), build_network="none")
