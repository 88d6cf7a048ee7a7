"""Limits for all processes of a sandbox together, by control groups of Linux (version 2, or 1), where this process may make some.

Version 2 takes limits only in groups whose parent holds no processes. So a process in a delegated group (`systemd-run --user --scope -p
Delegate=yes`) moves itself, and what else is in that group, one group down.
"""

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import Struct

from evener.proto.sandbox import SandboxLimits

NEEDED: Final = ("memory", "pids")
CONTROLLERS: Final = (*NEEDED, "cpu")
RUNNER_GROUP: Final = "evener-runner"
"""The group into which a process moves itself."""
PERIOD_US: Final = 100_000
EMPTYING_SECONDS: Final = 2.0
"""How long dead processes may stay in a group."""
JOIN_SCRIPT: Final = 'while [ "$1" != -- ]; do echo $$ > "$1" || exit 125; shift; done; shift; exec "$@"'
"""Enters groups, whose files come before `--`, and becomes the program that comes after it."""


class ControlGroup(Struct, frozen=True, kw_only=True):
    """The group of one sandbox, which is a folder for each hierarchy that has one of the controllers."""

    folders: tuple[Path, ...]

    def joining(self) -> list[str]:
        """Return the words before a program that let it run in the group."""
        return ["sh", "-c", JOIN_SCRIPT, "sh", *(str(folder / "cgroup.procs") for folder in self.folders), "--"]

    def remove(self) -> None:
        """Remove the group, whose processes are dead. Blocks."""
        deadline = time.monotonic() + EMPTYING_SECONDS
        for folder in self.folders:
            while folder.is_dir():
                try:
                    folder.rmdir()
                except OSError:
                    if time.monotonic() > deadline:
                        break  # the next start removes it
                    time.sleep(0.02)


class ControlGroups(Struct, frozen=True, kw_only=True):
    """Where this process may make groups."""

    version: int
    parents: Mapping[str, Path]
    """Controller to the folder in which groups with it are made."""

    def make(self, name: str, limits: SandboxLimits) -> ControlGroup:
        """Make a group with limits, of which memory and pids are given. Raises OSError. Blocks."""
        folders = tuple(dict.fromkeys(parent / name for parent in self.parents.values()))
        group = ControlGroup(folders=folders)
        try:
            for folder in folders:
                folder.mkdir()
            for controller, parent in self.parents.items():
                for file, value in settings(self.version, controller, limits).items():
                    if (parent / name / file).exists():  # swap may not be counted
                        (parent / name / file).write_text(value)
        except OSError:
            group.remove()
            raise
        return group

    def remove_all(self, prefix: str) -> None:
        """Remove the groups that a dead process left. Blocks."""
        for parent in set(self.parents.values()):
            for folder in parent.glob(f"{prefix}*"):
                ControlGroup(folders=(folder,)).remove()

    @property
    def limits_cpus(self) -> bool:
        """Whether groups limit CPUs too."""
        return "cpu" in self.parents


def find_control_groups(proc: Path = Path("/proc/self")) -> ControlGroups | None:
    """Return where this process may make groups that limit memory and processes. None: nowhere. Blocks."""
    for found in (_version_2(proc), _version_1(proc)):
        if found is not None and _can_make(found):
            return found
    return None


def settings(version: int, controller: str, limits: SandboxLimits) -> dict[str, str]:
    """Return what is written into the files of a group with a controller."""
    quota = None if limits.cpus is None else str(int(limits.cpus * PERIOD_US))
    memory = str(limits.memory_bytes)
    match version, controller:
        case _, "pids":
            return {"pids.max": str(limits.pids)}
        case 2, "memory":
            return {"memory.max": memory, "memory.swap.max": "0", "memory.oom.group": "1"}
        case 2, "cpu":
            return {"cpu.max": f"{quota or 'max'} {PERIOD_US}"}
        case 1, "memory":
            return {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory}
        case _:
            return {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": quota or "-1"}


def _version_2(proc: Path) -> ControlGroups | None:
    """Return this process's own group of version 2, if it may have groups below it with limits."""
    mount = next((place for kind, place, _ in _mounts(proc) if kind == "cgroup2"), None)
    own = next((path for number, _, path in _memberships(proc) if number == "0"), None)
    if mount is None or own is None:
        return None
    folder = Path(mount, own.strip("/"))
    folder = folder.parent if folder.name == RUNNER_GROUP else folder
    with suppress(OSError):
        offered = (folder / "cgroup.controllers").read_text().split()
        wanted = [name for name in CONTROLLERS if name in offered]
        if not set(NEEDED) <= set(wanted):
            return None
        _enable(folder, wanted)
        return ControlGroups(version=2, parents=dict.fromkeys(wanted, folder))
    return None


def _enable(folder: Path, controllers: Sequence[str]) -> None:
    """Let groups below one have controllers. Raises OSError if this process may not."""
    missing = set(controllers) - set((folder / "cgroup.subtree_control").read_text().split())
    if not missing:
        return
    if (folder / "cgroup.type").exists():  # not the root, which may hold processes
        if not _is_delegated(folder):
            msg = f"{folder} is not delegated to this process"
            raise PermissionError(msg)
        (folder / RUNNER_GROUP).mkdir(exist_ok=True)
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                (folder / RUNNER_GROUP / "cgroup.procs").write_text(pid)
    (folder / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in sorted(missing)))


def _is_delegated(folder: Path) -> bool:
    """Return whether systemd says that a group is its processes' own."""
    for name in ("user.delegate", "trusted.delegate"):
        with suppress(OSError):
            if os.getxattr(folder, name) == b"1":
                return True
    return False


def _version_1(proc: Path) -> ControlGroups | None:
    """Return this process's own groups of version 1, if the controllers that are needed are there."""
    mounts = {name: place for kind, place, options in _mounts(proc) if kind == "cgroup" for name in options.split(",")}
    parents = {
        name: Path(mounts[name], path.strip("/"))
        for _, names, path in _memberships(proc)
        for name in names.split(",")
        if name in CONTROLLERS and name in mounts
    }
    return ControlGroups(version=1, parents=parents) if set(NEEDED) <= parents.keys() else None


def _can_make(groups: ControlGroups) -> bool:
    """Try it: who may not is told by the kernel alone."""
    try:
        groups.make(f"evener-try-{os.getpid()}-{time.monotonic_ns()}", SandboxLimits(memory_bytes=64 << 20, pids=16, cpus=1.0)).remove()
    except OSError:
        return False
    return True


def _mounts(proc: Path) -> list[tuple[str, str, str]]:
    """Return the kind, place and options of each mount."""
    fields = [line.split(" ") for line in (proc / "mounts").read_text().splitlines()]
    return [(kind, place, options) for _, place, kind, options, *_ in fields]


def _memberships(proc: Path) -> list[tuple[str, str, str]]:
    """Return the hierarchy's number, its controllers, and the path of each group that this process is in."""
    split = [line.split(":", 2) for line in (proc / "cgroup").read_text().splitlines()]
    return [(number, names, path) for number, names, path in split]
