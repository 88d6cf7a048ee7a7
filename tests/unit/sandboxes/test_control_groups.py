"""Where a process may make control groups: what it reads of the hierarchies, and what it does in a delegated one."""

import os
from pathlib import Path

import pytest

from evener.proto.sandbox import SandboxLimits
from evener.sandboxes.control_groups import RUNNER_GROUP, ControlGroups, find_control_groups, settings

LIMITS = SandboxLimits(cpus=1.5, memory_bytes=64 << 20, pids=40)


def machine(
    folder: Path, *, own: str = "/unit", controllers: str = "cpu io memory pids", enabled: str = "", delegated: bool = True
) -> Path:
    """Make the files of a machine with version 2, as far as they are read; return what stands for /proc/self."""
    proc, mount = folder / "proc", folder / "cgroup"
    group = mount / own.strip("/")
    proc.mkdir()
    group.mkdir(parents=True)
    (proc / "cgroup").write_text(f"1:name=systemd:/\n0::{own}\n")
    (proc / "mounts").write_text(f"proc /proc proc rw 0 0\ncgroup2 {mount} cgroup2 rw,nsdelegate 0 0\n")
    home = group.parent if group.name == RUNNER_GROUP else group
    (home / "cgroup.controllers").write_text(f"{controllers}\n")
    (home / "cgroup.subtree_control").write_text(enabled)
    (home / "cgroup.procs").write_text("17\n18\n")
    (home / "cgroup.type").write_text("domain\n")
    if delegated:
        os.setxattr(home, "user.delegate", b"1")
    return proc


def test_process_in_a_delegated_group_moves_down_and_lets_groups_have_limits(tmp_path: Path) -> None:
    """A group that holds processes passes no controllers on."""
    found = find_control_groups(machine(tmp_path))

    unit = tmp_path / "cgroup/unit"
    assert found == ControlGroups(version=2, parents=dict.fromkeys(("memory", "pids", "cpu"), unit))
    assert (unit / RUNNER_GROUP / "cgroup.procs").read_text() == "18"  # each was written; a file keeps the last
    assert (unit / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"


def test_process_that_has_moved_down_finds_its_groups_again(tmp_path: Path) -> None:
    """The runner and the evaluator of one process both look."""
    found = find_control_groups(machine(tmp_path, own=f"/unit/{RUNNER_GROUP}", enabled="cpu memory pids"))

    assert found is not None
    assert set(found.parents.values()) == {tmp_path / "cgroup/unit"}


@pytest.mark.parametrize("given", [{"delegated": False}, {"controllers": "cpu io"}])
def test_group_of_others_or_without_limits_is_left_alone(tmp_path: Path, given: dict[str, bool]) -> None:
    """Others' processes may be in it."""
    assert find_control_groups(machine(tmp_path, **given)) is None  # type: ignore[arg-type]
    assert not (tmp_path / "cgroup/unit" / RUNNER_GROUP).exists()


@pytest.mark.parametrize(
    ("version", "controller", "wanted"),
    [
        (2, "memory", {"memory.max": "67108864", "memory.swap.max": "0", "memory.oom.group": "1"}),
        (2, "cpu", {"cpu.max": "150000 100000"}),
        (2, "pids", {"pids.max": "40"}),
        (1, "memory", {"memory.limit_in_bytes": "67108864", "memory.memsw.limit_in_bytes": "67108864"}),
        (1, "cpu", {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "150000"}),
        (1, "pids", {"pids.max": "40"}),
    ],
)
def test_limits_are_written_as_each_version_wants_them(version: int, controller: str, wanted: dict[str, str]) -> None:
    assert settings(version, controller, LIMITS) == wanted
