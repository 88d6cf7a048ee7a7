"""Whatever a sandbox leaves: it ends, the backend starts again, and what cannot be removed is set aside and told."""

import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Final

import pytest
from structlog.testing import capture_logs
from tests.support.trees import dig, mounted, scratch, unmount_below
from tests.unit.sandboxes.test_local import PATIENT, left_in

from evener.sandboxes import removal
from evener.sandboxes.local import LocalSandbox, LocalSandboxes, LocalTimings, open_local
from evener.sandboxes.port import ChangeLimits
from evener.sandboxes.work import file_work


@pytest.fixture
async def root() -> AsyncIterator[Path]:
    """A folder for sandboxes."""
    with scratch() as folder:
        yield folder / "sandboxes"


@pytest.mark.parametrize("depth", [1_100, 5_000])
async def test_sandbox_with_a_tree_deeper_than_a_path_is_gathered_and_ends(root: Path, depth: int) -> None:
    """In every place, also in those that are no part of the changes."""
    async with open_local(root, PATIENT) as sandboxes, sandboxes.open("s") as sandbox:
        await sandbox.settle()
        for place in ("/app", "/home/agent", "/tmp", "/logs/verifier"):  # noqa: S108
            dig(Path(sandbox.inside(place)), depth)
        changes = await sandbox.changes(ChangeLimits())

    assert list(changes.excluded.values()) == ["nested deeper than 100 folders"]
    assert left_in(root) == []


async def test_start_removes_a_deep_tree_that_a_dead_runner_left(root: Path) -> None:
    """Once it stopped every start."""
    (root / "dead" / "app").mkdir(parents=True)
    dig(root / "dead" / "app", 1_100)
    async with open_local(root, PATIENT):
        pass
    async with open_local(root, PATIENT):
        assert left_in(root) == []


async def test_start_waits_for_no_removal(root: Path) -> None:
    """It puts aside, opens sandboxes under the same names, and removes meanwhile; what is left the next start goes on with."""
    for name in ("a", "b"):
        (root / name / "app").mkdir(parents=True)
        dig(root / name / "app", 5_000)
    go_on = threading.Event()
    async with file_work() as work:
        work.removals.begin(go_on.wait)  # the one thread that removes is busy
        sandboxes = LocalSandboxes(root, work, LocalTimings(start_seconds=0.0, close_seconds=0.0), LocalSandbox)
        await sandboxes.reap()
        async with sandboxes.open("a") as sandbox:
            await sandbox.write({"/app/new": b"x"})
            assert await sandbox.read("/app/new") == b"x"
            assert sorted(path.name[:2] for path in (root / ".removed").iterdir()) == ["a.", "b."]
        go_on.set()
    async with open_local(root, PATIENT):
        assert left_in(root) == []


async def test_what_cannot_be_removed_is_set_aside_told_once_and_tried_again(root: Path) -> None:
    """A mount point, here. All else starts, ends and is removed."""
    (root / "dead" / "app" / "mounted").mkdir(parents=True)
    (root / "dead" / "app" / "file").touch()
    outside = root.parent / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    with mounted(outside, root / "dead" / "app" / "mounted"), capture_logs() as logs:
        async with open_local(root, PATIENT) as sandboxes, sandboxes.open("dead") as sandbox:
            await sandbox.write({"/app/new": b"x"})
        (left,) = left_in(root)
        (told,) = [entry for entry in logs if entry["event"] == "sandbox_not_removed"]
        assert told["folder"] == str(root / ".removed" / left)
        assert "busy" in told["error"]
        assert "unmount" in told["mend"]
        assert (outside / "precious").exists()
        assert not list((root / ".removed").rglob("file"))
        unmount_below(root)
    async with open_local(root, PATIENT):
        assert left_in(root) == []


async def test_root_may_be_a_link_of_the_users_own(root: Path) -> None:
    """To a larger disk, say."""
    (root.parent / "disk").mkdir()
    root.symlink_to(root.parent / "disk")  # noqa: ASYNC240
    async with open_local(root, PATIENT) as sandboxes, sandboxes.open("s") as sandbox:
        await sandbox.write({"/app/a": b"x"})
        assert await sandbox.read("/app/a") == b"x"

    assert left_in(root.parent / "disk") == []


MAKE: Final[dict[str, Callable[[Path], None]]] = {
    "pipe": os.mkfifo,
    "folder": lambda path: (path / "full").mkdir(parents=True),
    "link": lambda path: path.symlink_to("/dev/null"),
    "file": Path.touch,
}


@pytest.mark.parametrize("name", [".held", removal.ASIDE])
@pytest.mark.parametrize("kind", MAKE)
async def test_whatever_stands_in_the_place_of_our_own_files_is_replaced(root: Path, name: str, kind: str) -> None:
    """A program of a sandbox has the rights of its runner. Opening a pipe would wait for ever."""
    (root / "dead").mkdir(parents=True)
    MAKE[kind](root / name)
    async with open_local(root, PATIENT) as sandboxes, sandboxes.open("s"):
        pass

    assert left_in(root) == []
