"""The `bubblewrap` backend: a program in namespaces of its own, without a daemon and without an image.

The programs of this machine (`/usr`) are there, read-only, and of `/etc` what they need to run. Everything else is a folder of the runner,
which programs find as their root, so that places are where a container has them. The network has a loopback with the relay on it, and
nothing else. A user who is not root gets this by user namespaces; root needs none, and runs each sandbox as another user id.

Limits hold for all processes of a sandbox together where this process may make control groups, otherwise for each. What it cannot give:
images and a task's own user.
"""

import asyncio
import contextlib
import functools
import hashlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from io import FileIO
from pathlib import Path, PurePosixPath
from typing import Final

from evener.proto.sandbox import NetworkMode, SandboxLimits, SandboxSpec
from evener.sandboxes import processes
from evener.sandboxes.config import ROOM_BYTES, BubblewrapConfig
from evener.sandboxes.control_groups import ControlGroup, ControlGroups, find_control_groups
from evener.sandboxes.disk_watch import until_too_much
from evener.sandboxes.forward_proxy import ForwardProxy, variables
from evener.sandboxes.local import LOCAL_TIMINGS, LocalSandbox, LocalSandboxes, LocalTimings, door, open_folders
from evener.sandboxes.memory_kills import check_memory, memory_kills
from evener.sandboxes.output_log import BoundedLog
from evener.sandboxes.port import OOM_SCORE, SIGNALLED, Program, ProgramMissing, SandboxError, SandboxLost
from evener.sandboxes.spawn import Child, spawn
from evener.sandboxes.syscall_filter import system_call_filter
from evener.sandboxes.work import FileWork

NEEDED_TOOLS: Final = ("bwrap", "nsenter", "setpriv", "prlimit", "choom")
HOLDER: Final = Path(__file__).with_name("holder.py")
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SYSTEM_FOLDERS: Final = ("/usr",)
MERGED: Final = ("/bin", "/lib", "/lib32", "/lib64", "/sbin")
"""Links into /usr, or folders of their own on older systems."""
ETC: Final = (
    *("alternatives", "ca-certificates", "group", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "nsswitch.conf"),
    *("passwd", "pki", "protocols", "services", "ssl"),
)
INNER_USER: Final = 1000
"""The user and group in the namespaces of a user who is not root."""
FIRST_USER: Final = 1_900_000_000
"""The user ids of root's sandboxes begin here: no other process of the machine has them."""
USERS: Final = 50_000
SHARED_MEMORY_BYTES: Final = 64 << 20
"""The size of /dev/shm, as in containers."""
START_SECONDS: Final = 30.0
OWN_USERS: Final = itertools.count()


class BubblewrapProcess:
    """A program in namespaces of its own, which end with it."""

    def __init__(self, child: Child, inner: int | None, reading: asyncio.Task[None], printed: BoundedLog) -> None:
        """`inner`: the first process of the namespaces, as an open pidfd. None: it has ended."""
        self._child = child
        self._inner = inner
        self._reading = reading
        self._printed = printed
        self._code: int | None = None
        self._kills = memory_kills()
        self._is_asked_to_end = False
        self._watching: asyncio.Task[None] | None = None

    async def wait(self) -> int:
        if self._code is None:
            code = await self._child.wait()
            if self._watching is not None:
                self._watching.cancel()
            await self._all_dead()
            await asyncio.wait([self._reading], timeout=processes.OUTPUT_SECONDS)
            self._reading.cancel()
            self._code = 128 - code if code in SIGNALLED else code
            if not self._is_asked_to_end:
                if code < 0:  # no program in the namespaces can reach the one around them
                    msg = f"its namespaces were ended from outside, by signal {-code}"
                    raise SandboxLost(msg)
                check_memory(self._code, self._kills)
        return self._code

    def watch_disk(self, folder: Path, limit_bytes: int) -> None:
        """End the program when the files of its sandbox take too much."""
        self._watching = asyncio.create_task(self._end_when_full(folder, limit_bytes))

    async def end(self, grace_seconds: float = 2.0) -> int:
        self._is_asked_to_end = True
        if grace_seconds > 0:
            self._ask()
            with suppress(TimeoutError):
                async with asyncio.timeout(grace_seconds):
                    return await self.wait()
        self._kill()
        return await self.wait()

    def log(self) -> bytes:
        return self._printed.read()

    async def _end_when_full(self, folder: Path, limit_bytes: int) -> None:
        used = await until_too_much(folder, None if self._inner is None else pid_of(self._inner), limit_bytes)
        self._printed.add(f"\nevener: ended, because its files take {used} bytes, and {limit_bytes} are allowed\n".encode())
        self._is_asked_to_end = True
        self._kill()

    def _ask(self) -> None:
        """Send SIGTERM to the program: the child of the first process in its namespaces."""
        for first in _children(self._child.pid):
            for program in _children(first):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(os.getpgid(program), signal.SIGTERM)  # the first process ignores it

    def _kill(self) -> None:
        """Kill the first process of the namespaces; the kernel kills all others."""
        if self._inner is None:
            self._child.kill()
        else:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._inner, signal.SIGKILL)

    async def _all_dead(self) -> None:
        """Kill the processes that the program left, and wait until the namespaces are empty."""
        if self._inner is None:
            return
        inner, self._inner = self._inner, None
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(inner, signal.SIGKILL)
        await _readable(inner)
        os.close(inner)


class BubblewrapSandbox(LocalSandbox):
    """A folder, which is the root of the programs that run in it, and a network namespace."""

    def __init__(
        self,
        folder: Path,
        spec: SandboxSpec,
        work: FileWork,
        timings: LocalTimings,
        *,
        config: BubblewrapConfig,
        groups: ControlGroups | None = None,
        free_bytes: int = ROOM_BYTES,
    ) -> None:
        super().__init__(folder, spec, work, timings, free_bytes=free_bytes)
        self._groups = groups
        self._group: ControlGroup | None = None
        self._limits = SandboxLimits(
            cpus=spec.limits.cpus or config.cpus,
            memory_bytes=spec.limits.memory_bytes or config.memory_bytes,
            disk_bytes=spec.limits.disk_bytes or config.disk_bytes,
            pids=spec.limits.pids or config.pids,
        )
        self._spec = spec
        self._config = config
        self._user = FIRST_USER + next(OWN_USERS) % USERS if os.geteuid() == 0 else None
        self._runs: list[BubblewrapProcess] = []
        self._holder: Child | None = None
        self._asking: socket.socket | None = None
        self._proxy: ForwardProxy | None = None
        self._proxied: dict[str, str] = {}

    def inside(self, place: str) -> str:
        return place

    async def warm(self) -> None:
        await self._network()

    async def usable(self) -> bool:
        return (self._holder is None or not self._holder.ended) and await super().usable()

    async def start(self, program: Program) -> BubblewrapProcess:
        pid = (await self._network()).pid
        if self._user is not None:
            await self._work.files.begin(_give, self._folder, self._user)
        if not self._has(program.argv[0]):
            msg = f"there is no program {program.argv[0]}"
            raise ProgramMissing(msg)
        await self._make_group()
        environment = {**self._environment(), **self._proxied, **program.environment}
        printed = BoundedLog(program.log_bytes)
        with ExitStack() as ours, ExitStack() as theirs:
            output, printing = processes.pipe(ours, theirs)
            info, telling = processes.pipe(ours, theirs)
            refusing = _filter(theirs)
            argv = [*self._wrapped(pid, telling.fileno(), refusing), *program.argv]
            nothing = theirs.enter_context(FileIO(os.devnull))
            with processes.starting(program.argv, self._folder):
                child = await spawn(
                    argv, folder=self._folder, environment=environment, stdin=nothing, output=printing, passed=(telling.fileno(), *refusing)
                )
            theirs.close()
            with info:
                inner = await asyncio.to_thread(_first, info)
            ours.pop_all()
        reading = asyncio.create_task(processes.read_output(output, printed))
        process = BubblewrapProcess(child, inner, reading, printed)
        process.watch_disk(self._folder, self._limits.disk_bytes or 0)
        self._runs.append(process)
        return process

    async def _make_group(self) -> None:
        if self._groups is not None and self._group is None:
            with door("cannot make a control group"):
                self._group = await self._work.files.begin(self._groups.make, group_name(self._folder), self._limits)

    async def listen(self) -> socket.socket:
        await self._network()
        return await asyncio.to_thread(self._ask_for_listener)

    def make(self) -> None:
        super().make()
        for place in (*SYSTEM_FOLDERS, "/etc", "/proc", "/dev", *(mount.place for mount in self._spec.mounts)):
            self._path(place).mkdir(parents=True, exist_ok=True)
        for name in ETC:
            source, there = Path("/etc", name), self._path(f"/etc/{name}")
            if source.is_dir():
                there.mkdir()
            elif source.exists():
                there.touch()
        for name in MERGED:
            there, real = self._path(name), Path(name)
            if real.is_symlink():
                there.symlink_to(real.readlink())
            elif real.is_dir():
                there.mkdir()
        self._path("/tmp").chmod(0o1777)  # noqa: S108 - a place in the sandbox

    async def stop(self) -> None:
        for process in self._runs:
            await process.end(grace_seconds=0)
        if self._proxy is not None:
            await self._proxy.aclose()
        if self._asking is not None:
            self._asking.close()
        if self._holder is not None:
            self._holder.kill()
            await self._holder.wait()
        await super().stop()
        if self._group is not None:
            await self._work.files.begin(self._group.remove)

    def _bring(self, folder: Path, place: str) -> None:
        shutil.copytree(folder, self._path(place), symlinks=True, dirs_exist_ok=True)

    def _environment(self) -> dict[str, str]:
        return super()._environment() | {"PATH": PATH}

    def _has(self, program: str) -> bool:
        """Return whether a program is there. One that is named by a path may be a file of the sandbox."""
        if "/" not in program:
            return shutil.which(program, path=PATH) is not None
        path = str(PurePosixPath(self.workdir, program))
        mounted = any(path.startswith(f"{mount.place}/") for mount in self._spec.mounts)
        return mounted or os.path.lexists(self._path(path)) or path.startswith((*(f"{one}/" for one in (*SYSTEM_FOLDERS, *MERGED)),))

    def _wrapped(self, holder: int, info: int, refusing: Sequence[int]) -> list[str]:
        """Return the command before a program. `refusing`: the open file of its filter of system calls, if there is one."""
        root = self._user is not None
        argv = [] if self._group is None else self._group.joining()
        argv += ["nsenter", "--target", str(holder), "--net"]
        argv += ["--"] if root else ["--user", "--preserve-credentials", "--"]
        argv += ["bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
        argv += ["--die-with-parent", "--new-session", "--hostname", "sandbox", "--info-fd", str(info)]
        if not root:
            argv += ["--unshare-user", "--disable-userns", "--uid", str(INNER_USER), "--gid", str(INNER_USER), "--cap-drop", "ALL"]
        argv += ["--bind", str(self._folder), "/", "--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev"]
        argv += ["--perms", "1777", "--size", str(SHARED_MEMORY_BYTES), "--tmpfs", "/dev/shm"]  # noqa: S108 - a place in the sandbox
        for place in (*SYSTEM_FOLDERS, *(name for name in MERGED if not Path(name).is_symlink()), *(f"/etc/{name}" for name in ETC)):
            argv += ["--ro-bind-try", place, place]
        for mount in self._spec.mounts:
            argv += ["--ro-bind", mount.source, mount.place]
        argv += [word for number in refusing for word in ("--seccomp", str(number))]
        argv += ["--chdir", self.workdir, "--"]
        limits = self._limits
        if root:
            argv += ["choom", "--adjust", str(OOM_SCORE), "--"]
        argv += ["prlimit", f"--nproc={limits.pids}", f"--data={limits.memory_bytes}", f"--fsize={limits.disk_bytes}", "--core=0", "--"]
        argv += ["setpriv", "--no-new-privs", "--inh-caps=-all", "--ambient-caps=-all"]
        if root:
            argv += ["--bounding-set=-all", "--clear-groups", "--reuid", str(self._user), "--regid", str(self._user)]
        return [*argv, "--"]

    async def _network(self) -> Child:
        """Return the process that holds the network namespace."""
        if self._holder is not None:
            return self._holder
        ours, theirs = socket.socketpair()
        ours.settimeout(START_SECONDS)
        self._asking = ours
        with theirs, open(os.devnull, "wb", buffering=0) as nothing:  # noqa: ASYNC230, PTH123
            stdin = FileIO(os.dup(theirs.fileno()), "rb")
            with contextlib.closing(stdin):
                argv = [sys.executable, "-I", "-S", str(HOLDER)]
                self._holder = await spawn(argv, folder=self._folder, environment={}, stdin=stdin, output=nothing)
        if await asyncio.to_thread(_received, ours) != b"r":
            msg = "this user may not have a network namespace: see `sysctl user.max_user_namespaces`"
            raise SandboxError(msg)
        network = self._spec.network
        if network is not None and network.mode is not NetworkMode.NONE:
            self._proxy = ForwardProxy(network, self._config.private_hosts)
            self._proxied = variables(await self._proxy.serve(await asyncio.to_thread(self._ask_for_listener)))
        return self._holder

    def _ask_for_listener(self) -> socket.socket:
        if self._asking is None:
            msg = "the sandbox has no network"
            raise SandboxLost(msg)
        with door("cannot listen in the sandbox"):
            self._asking.sendall(b"l")
            _, descriptors, _, _ = socket.recv_fds(self._asking, 1, 1)
        if not descriptors:
            msg = "the holder of the sandbox's network has ended"
            raise SandboxLost(msg)
        return socket.socket(fileno=descriptors[0])


def works(_: object = None) -> bool:
    """Return whether this machine meets the backend's needs, and this user may use it. Blocks."""
    return all(shutil.which(tool) for tool in NEEDED_TOOLS) and _works()


@functools.cache
def _works() -> bool:
    own_network = ["unshare", "--net", *([] if os.geteuid() == 0 else ["--user", "--map-current-user"])]
    own_user = [] if os.geteuid() == 0 else ["--unshare-user", "--disable-userns"]
    tried = [*own_network, "bwrap", *own_user, "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "true"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


@asynccontextmanager
async def open_bubblewrap(
    root: Path, config: BubblewrapConfig, timings: LocalTimings = LOCAL_TIMINGS, *, free_bytes: int = ROOM_BYTES
) -> AsyncIterator[LocalSandboxes]:
    """Open the backend on a folder of its own. What a dead process left there is removed in the background.

    Raises SandboxHeld if a living process has the folder open, and SandboxError if the folder cannot be used.
    """
    groups = await asyncio.to_thread(find_control_groups)
    made = functools.partial(BubblewrapSandbox, config=config, groups=groups, free_bytes=free_bytes)
    async with open_folders(root, timings, made) as sandboxes:
        if groups is not None:
            await asyncio.to_thread(groups.remove_all, group_name(await asyncio.to_thread((root / "any").resolve)).removesuffix("any"))
        yield sandboxes


def lacks(spec: SandboxSpec) -> tuple[str, ...]:
    """Return what namespaces alone cannot give, in words."""
    wanted = {
        "an image of its own": spec.image is not None,
        "a user of its own": spec.user is not None and not spec.drops_rights,
        "tests that drop their rights": spec.drops_rights,
    }
    return tuple(want for want, is_wanted in wanted.items() if is_wanted)


def _filter(files: ExitStack) -> tuple[int, ...]:
    """Open the filter of system calls, as a file that a program inherits."""
    program = system_call_filter()
    if program is None:
        return ()
    file = files.enter_context(FileIO(os.memfd_create("filter"), "r+"))
    file.write(program)
    file.seek(0)
    return (file.fileno(),)


def group_name(folder: Path) -> str:
    """Return the name of a sandbox's control group, which no other sandbox of this machine has."""
    return f"evener-{hashlib.sha256(bytes(folder.parent)).hexdigest()[:12]}-{folder.name}"


def pid_of(process: int) -> int | None:
    """Return the id of a process that is open as a pidfd. None: it has ended."""
    with suppress(OSError):
        lines = Path(f"/proc/self/fdinfo/{process}").read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("Pid:") and int(line.split()[1]) > 0), None)
    return None


def _give(folder: Path, user: int) -> None:
    """Let the user of a sandbox own its files. Nothing runs in it."""
    os.chown(folder, user, user)
    for _, folders, files, descriptor in os.fwalk(folder):
        for name in (*folders, *files):
            os.chown(name, user, user, dir_fd=descriptor, follow_symlinks=False)


def _received(asked: socket.socket) -> bytes:
    with suppress(OSError):
        return asked.recv(1)
    return b""


def _first(info: FileIO) -> int | None:
    """Return the first process of new namespaces, which bwrap names, as an open pidfd. None: it has ended already."""
    said = info.readall()
    if not said:
        return None
    try:
        return os.pidfd_open(json.loads(said)["child-pid"])
    except ProcessLookupError:
        return None


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


async def _readable(descriptor: int) -> None:
    """Wait until a pidfd is readable: its process is dead."""
    loop = asyncio.get_running_loop()
    dead = asyncio.Event()
    loop.add_reader(descriptor, dead.set)
    try:
        await dead.wait()
    finally:
        loop.remove_reader(descriptor)
