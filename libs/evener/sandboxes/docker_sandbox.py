"""One container of the `docker` backend, and the programs in it."""

import asyncio
import io
import socket
import tarfile
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from evener.proto.sandbox import NetworkMode, SandboxSpec
from evener.sandboxes.apply_changes import APPLY_SECONDS, parts_of
from evener.sandboxes.config import DockerConfig
from evener.sandboxes.docker_api import Docker, DockerError
from evener.sandboxes.docker_container import has_read_only_root, user_of, workdir_of
from evener.sandboxes.docker_files import (
    LINK_MODE,
    Before,
    ContainerEntry,
    ContainerFiles,
    before_of,
    changes_of,
    given_to,
    tar_of_entries,
    tar_of_folder,
)
from evener.sandboxes.docker_shell import NotBegun, WaitingShell, open_shell
from evener.sandboxes.folders import Deadline, OutOfTime
from evener.sandboxes.forward_proxy import ForwardProxy, variables
from evener.sandboxes.memory_kills import check_memory, memory_kills
from evener.sandboxes.network_namespace import listen_in
from evener.sandboxes.output_log import BoundedLog
from evener.sandboxes.port import (
    AGENT_LOGS,
    ARTIFACTS,
    HOME,
    LOGS,
    SIGNALLED,
    SOLUTION,
    TEMPORARY,
    TESTS,
    VERIFIER_LOGS,
    ChangeLimits,
    Changes,
    ImageMissing,
    NotAFile,
    Program,
    ProgramMissing,
    SandboxError,
    SandboxLost,
    Unstartable,
)
from evener.sandboxes.read_only_root import make_root_read_only
from evener.sandboxes.tracked import tracked

ARGUMENT_BYTES: Final = 1 << 17
"""The most bytes of one argument."""
ARGUMENTS_BYTES: Final = 3 << 19
"""The most bytes of a program's arguments and variables together. The kernel takes 2 MiB, with what the image adds."""
NAMES_BYTES: Final = 1 << 16
"""The most bytes of names that one `rm` is given."""
WRITABLE: Final = (HOME, TEMPORARY, TESTS, SOLUTION, LOGS)
"""Where programs write, besides the working directory, if the root is read-only."""


Rest = ParamSpec("Rest")
ResultT = TypeVar("ResultT")


class DockerProcess:
    """A program in a container. With its end the container is killed."""

    def __init__(self, sandbox: "DockerSandbox", shell: WaitingShell, printed: BoundedLog) -> None:
        """`shell`: what has become the program."""
        self._sandbox = sandbox
        self._exec_id = shell.exec_id
        self._printed = printed
        self._reading = asyncio.create_task(shell.read())
        self._user = shell.user
        self._kills = memory_kills()

    async def wait(self) -> int:
        await asyncio.shield(self._reading)
        code = await self._sandbox.exit_code(self._exec_id)
        await self._sandbox.check_alive()
        await self._sandbox.kill()
        check_memory(code, self._kills)
        return code

    async def end(self, grace_seconds: float = 2.0) -> int:
        if grace_seconds > 0 and not self._reading.done():
            try:
                async with asyncio.timeout(grace_seconds):
                    await self._sandbox.ask_to_end(self._user)
                    await asyncio.shield(self._reading)
            except (TimeoutError, SandboxError):  # it has ended, does not react, or has not left room for another process
                pass
        code = await self._sandbox.exit_code(self._exec_id) if self._reading.done() else None
        await self._sandbox.kill()
        await asyncio.shield(self._reading)
        return await self._sandbox.exit_code(self._exec_id) if code is None else code

    def log(self) -> bytes:
        return self._printed.read()


class DockerSandbox:
    """One container."""

    def __init__(self, docker: Docker, container: str, image: Mapping[str, Any], spec: SandboxSpec, config: DockerConfig) -> None:
        self._docker = docker
        self._container = container
        self._path = f"/containers/{container}"
        self._files = ContainerFiles(docker, container)
        self._config = config
        self._network = spec.network
        self._user = user_of(image, spec, config)
        self._has_read_only_root = has_read_only_root(image, spec, config)
        self._owner = (0, 0)
        self._before = Before()
        self._seen: Before | None = None
        """The state now. None: it was not looked at, or has changed since."""
        self._has_links = False
        """Whether places are reached by links, so that what is written there is elsewhere."""
        self._runs = False
        self._shell: WaitingShell | None = None
        """What waits for the first program."""
        self._proxy: ForwardProxy | None = None
        self._environment: dict[str, str] = {}
        self.workdir = workdir_of(image, spec)

    def inside(self, place: str) -> str:
        return place

    async def prepare(self) -> None:
        """Make the places, for the user of the sandbox."""
        self._owner = await self._ids_of(self._user)
        places = (self.workdir, HOME, TEMPORARY, TESTS, VERIFIER_LOGS, AGENT_LOGS, ARTIFACTS)
        folders = sorted({str(folder) for place in map(PurePosixPath, places) for folder in (place, *place.parents[:-1])})
        modes = dict(zip(folders, await asyncio.gather(*map(self._files.mode, folders)), strict=True))
        self._has_links = any(mode is not None and mode & LINK_MODE for mode in modes.values())
        made = {
            folder[1:]: ContainerEntry(kind=tarfile.DIRTYPE, mode=0o777 if folder == TEMPORARY else 0o755)
            for folder, mode in modes.items()
            if mode is None
        }
        if made:
            await self._put(await asyncio.to_thread(tar_of_entries, made, self._owner))

    async def warm(self) -> None:
        await self._run_container()
        self._seen = await self._look()
        self._shell = await open_shell(self._docker, self._container, self._user, self.workdir)
        await self._shell.ready()

    async def usable(self) -> bool:
        try:
            state = (await self._docker.get(f"{self._path}/json"))["State"]
        except DockerError as cause:
            if cause.status == HTTPStatus.NOT_FOUND:
                return False
            raise
        if not self._runs:
            return bool(state["Status"] == "created")
        return bool(state["Running"] and not state["Paused"]) and (self._shell is None or self._shell.waits)

    async def bring(self, folder: Path, place: str) -> None:
        try:
            tar = await asyncio.to_thread(tar_of_folder, folder, self._owner)
        except OSError as cause:
            msg = f"cannot read {folder}: {cause}"
            raise SandboxError(msg) from cause
        await self._put(tar, place)

    async def write(self, files: Mapping[str, bytes]) -> None:
        entries: dict[str, ContainerEntry] = {}
        for place, content in files.items():
            entries |= {name: ContainerEntry(kind=tarfile.DIRTYPE, mode=0o755) for name in self._folders_above(place)}
            entries[place[1:]] = ContainerEntry(kind=tarfile.REGTYPE, mode=0o644, content=content)
        if entries:
            tar = await asyncio.to_thread(tar_of_entries, dict(sorted(entries.items())), self._owner)
            await self._put(tar, changes_tracked=self._has_links or any(map(tracked, entries)))

    async def apply(self, changes: Changes) -> None:
        removed = [f"/{'/'.join(parts_of(name, tracked))}" for name in changes.removed]
        try:
            tar, names = await asyncio.to_thread(given_to, changes.archive, self._owner, Deadline(APPLY_SECONDS))
        except tarfile.TarError as cause:
            msg = f"damaged archive of changes: {cause}"
            raise SandboxError(msg) from cause
        except OutOfTime as cause:
            msg = f"changes were not applied within {APPLY_SECONDS:g} s"
            raise SandboxError(msg) from cause
        for name in names:
            parts_of(name, tracked)
        for batch in _batches(removed):
            await self._run(("rm", "-rf", "--", *batch))
        await self._put(tar)
        await self.prepare()

    async def check_room(self) -> None:
        """Nothing is known: the disk is the daemon's."""

    async def settle(self) -> None:
        self._before = self._seen or await self._look()

    async def start(self, program: Program) -> DockerProcess:
        words = (*program.argv, *(f"{name}={value}" for name, value in program.environment.items()))
        sizes = [len(word.encode(errors="surrogateescape")) for word in words]
        if max(sizes) >= ARGUMENT_BYTES or sum(sizes) >= ARGUMENTS_BYTES:
            longest = max(range(len(program.argv)), key=sizes.__getitem__)
            msg = (
                f"cannot start {program.argv[0]!r}: its arguments and variables are longer than the system takes "
                f"(the longest is argument {longest} with {len(program.argv[longest])} characters; give a long instruction in a file)"
            )
            raise Unstartable(msg)
        if any("\0" in word for word in words):
            msg = f"cannot start {program.argv[0]!r}: embedded null byte"
            raise Unstartable(msg)
        await self._run_container()
        printed = BoundedLog(program.log_bytes)
        try:
            shell = await self._begin(program.argv, program.environment, program.user or self._user, printed)
        except Unstartable:
            await self.kill()
            raise
        return DockerProcess(self, shell, printed)

    async def changes(self, limits: ChangeLimits) -> Changes:
        await self.kill()
        return await asyncio.to_thread(changes_of, await self._files.look(limits), self._before, limits)

    async def read(self, place: str, limit_bytes: int = 1 << 20) -> bytes | None:
        return await read_file(self._files, place, limit_bytes)

    async def listen(self) -> socket.socket:
        await self._run_container()
        return await self._listen()

    async def kill(self) -> None:
        """Kill everything in the container at once."""
        if not self._runs:
            return
        self._close_shell()
        try:
            await self._docker.post(f"{self._path}/kill")
        except DockerError as cause:
            if cause.status not in {HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND}:  # it has ended by itself
                raise
        self._runs = False
        await self._close_proxy()

    async def ask_to_end(self, user: str) -> None:
        """Send SIGTERM to the programs of a user."""
        await self._run(("sh", "-c", "kill -TERM -1"), user)

    async def exit_code(self, exec_id: str) -> int:
        """Return the exit code of a program that has ended."""
        code = (await self._docker.get(f"/exec/{exec_id}/json"))["ExitCode"]
        if code is None:
            msg = f"the container of {exec_id[:12]} ended before its program"
            raise SandboxLost(msg)
        return 128 - int(code) if code in SIGNALLED else int(code)

    async def check_alive(self) -> None:
        """Raise SandboxLost if the container has ended, which no program in it can do: signals do not reach its first process."""
        state = (await self._docker.get(f"{self._path}/json"))["State"]
        if self._runs and not state["Running"]:
            msg = f"the container ended while its program ran{', when its memory had ended' if state['OOMKilled'] else ''}"
            raise SandboxLost(msg)

    async def remove(self) -> None:
        """Remove the container, with everything in it."""
        self._close_shell()
        await self._close_proxy()
        await self._docker.delete(self._path, force="true", v="true")

    async def _look(self) -> Before:
        return await asyncio.to_thread(before_of, await self._files.look(ChangeLimits()))

    async def _put(self, tar: bytes, place: str = "/", *, changes_tracked: bool = True) -> None:
        if changes_tracked:
            self._seen = None
        await self._files.put(tar, place)

    async def _run_container(self) -> None:
        if self._runs:
            return
        await self._docker.post(f"{self._path}/start")
        self._runs = True
        if self._has_read_only_root:
            await self._from_outside(make_root_read_only, (self.workdir, *WRITABLE))
        if self._network is not None and self._network.mode is not NetworkMode.NONE and not self._has_network_of_its_own:
            self._proxy = ForwardProxy(self._network, self._config.private_hosts)
            self._environment = variables(await self._proxy.serve(await self._listen()))

    @property
    def _has_network_of_its_own(self) -> bool:
        return self._config.public_network is not None and self._network is not None and self._network.mode is NetworkMode.PUBLIC

    async def _listen(self) -> socket.socket:
        return await self._from_outside(listen_in)

    async def _from_outside(self, work: Callable[Concatenate[int, Rest], ResultT], *given: Rest.args, **named: Rest.kwargs) -> ResultT:
        """Do something in the container's namespaces. Raises SandboxError, SandboxLost."""
        pid = (await self._docker.get(f"{self._path}/json"))["State"]["Pid"]
        try:
            return await asyncio.to_thread(work, pid, *given, **named)
        except PermissionError as cause:
            msg = "this process may not enter the container's namespaces: it needs CAP_SYS_ADMIN"
            raise SandboxError(msg) from cause
        except OSError as cause:
            msg = f"cannot work in the container's namespaces: {cause}"
            raise SandboxLost(msg) from cause

    def _close_shell(self) -> None:
        if self._shell is not None:
            self._shell.close()
            self._shell = None

    async def _close_proxy(self) -> None:
        if self._proxy is not None:
            await self._proxy.aclose()
            self._proxy = None

    async def _run(self, argv: Sequence[str], user: str | None = None) -> None:
        """Run a program of ours to its end, beside what else runs. Raises SandboxError if it fails."""
        await self._run_container()
        printed = BoundedLog(1 << 12)
        shell = await self._begin(argv, {}, user or self._user, printed)
        await shell.read()
        if (code := await self.exit_code(shell.exec_id)) != 0:
            msg = f"{argv[0]} exited with {code}: {printed.read().decode(errors='replace')}"
            raise SandboxError(msg)

    async def _begin(self, argv: Sequence[str], environment: Mapping[str, str], user: str, printed: BoundedLog) -> WaitingShell:
        """Return what has become a program. Raises ProgramMissing, Unstartable, SandboxLost, DockerError."""
        self._seen = None
        shell = await self._take_shell(user)
        was_ready = shell.is_ready
        try:
            begins = await shell.become(argv, self._environment | dict(environment), printed)
        except NotBegun as cause:
            await self.check_alive()
            if was_ready:
                msg = f"what was prepared for {argv[0]} has ended: {cause.args[0]}"
                raise SandboxLost(msg) from cause
            msg = f"cannot start {argv[0]}: {cause.args[0]}"
            raise Unstartable(msg) from cause
        except BaseException:
            shell.close()
            raise
        if not begins:
            shell.close()
            msg = f"there is no program {argv[0]}"
            raise ProgramMissing(msg)
        return shell

    async def _take_shell(self, user: str) -> WaitingShell:
        """Return the shell that waits, if it is the user's, or a new one. There is none afterwards."""
        shell, self._shell = self._shell, None
        if shell is not None and shell.user == user:
            return shell
        if shell is not None:
            shell.close()
        return await open_shell(self._docker, self._container, user, self.workdir)

    def _folders_above(self, place: str) -> list[str]:
        """Return the names of the folders above a place that are below one of ours."""
        ours = max((one for one in (HOME, TEMPORARY, TESTS, self.workdir) if place.startswith(f"{one}/")), key=len, default=None)
        return [] if ours is None else [str(above)[1:] for above in PurePosixPath(place).parents if str(above).startswith(f"{ours}/")]

    async def _ids_of(self, user: str) -> tuple[int, int]:
        """Return the ids of a user, whom the image may know by name."""
        name, _, group = user.partition(":")
        if name.isdecimal():
            return int(name), int(group) if group.isdecimal() else int(name)
        known = (await self.read("/etc/passwd") or b"").decode(errors="replace")
        for line in known.splitlines():
            fields = line.split(":")
            if fields[0] == (name or "root") and len(fields) > 3:  # noqa: PLR2004 - name, password, user, group
                return int(fields[2]), int(fields[3])
        msg = f"the image knows no user {name}"
        raise ImageMissing(msg)


async def read_file(files: ContainerFiles, place: str, limit_bytes: int) -> bytes | None:
    """Return the content of a regular file. Raises NotAFile, DockerError."""
    mode = await files.mode(place)
    if mode is None:
        return None
    if mode >> 26:  # Go's bits of everything that is no regular file are above
        msg = f"{place} is not read: not a regular file"
        raise NotAFile(msg)
    try:
        tar = await files.archive(place, limit_bytes + (64 << 10))
    except SandboxError as cause:
        if isinstance(cause, DockerError):
            raise
        msg = f"{place} is not read: more than {limit_bytes} bytes"
        raise NotAFile(msg) from cause
    if tar is None:
        return None
    with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as read:
        member = read.next()
        content = read.extractfile(member) if member is not None and member.isreg() else None
        if content is None:
            msg = f"{place} is not read: not a regular file"
            raise NotAFile(msg)
        found = content.read()
    if len(found) > limit_bytes:
        msg = f"{place} is not read: more than {limit_bytes} bytes"
        raise NotAFile(msg)
    return found


def _batches(names: Sequence[str]) -> list[list[str]]:
    """Return names in lists, each of which fits in the arguments of a program."""
    batches: list[list[str]] = []
    size = NAMES_BYTES
    for name in names:
        if size + len(name.encode(errors="surrogateescape")) > NAMES_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(name)
        size += len(name.encode(errors="surrogateescape")) + 8
    return batches
