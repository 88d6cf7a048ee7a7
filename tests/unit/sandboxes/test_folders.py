"""Any tree is removed, and nothing outside of it."""

import os
import threading
from pathlib import Path

import pytest
from tests.support.trees import NOBODY, SECONDS, dig, make_specials, mounted, plain_user, scratch

from evener.sandboxes.folders import Deadline, OutOfTime, empty, opened, remove


def clear(folder: Path) -> None:
    with opened(folder) as descriptor:
        empty(descriptor, Deadline(SECONDS))


@pytest.mark.parametrize("depth", [1_100, 5_000])
def test_tree_deeper_than_a_path_and_than_the_stack_is_removed(depth: int) -> None:
    """Neither Python's recursion nor PATH_MAX ends it."""
    with scratch() as folder:
        dig(folder, depth)
        clear(folder)

        assert list(folder.iterdir()) == []


def test_whatever_is_not_a_folder_is_removed_by_its_name() -> None:
    """Pipes are not opened, hard links lose one name, names are bytes."""
    with scratch() as folder:
        kept, tree = folder / "kept", folder / "tree"
        tree.mkdir()
        kept.write_text("x")
        make_specials(tree)
        os.link(kept, tree / "hard")
        for name in (b"new\nline", b"\xff\xfe", b"n" * 255, b"-rf"):
            Path(os.fsdecode(os.fsencode(tree) + b"/" + name)).mkdir()
        clear(tree)

        assert list(tree.iterdir()) == []
        assert kept.read_text() == "x"


def test_what_links_lead_to_stays() -> None:
    """Links to folders too, and a link in the place of the tree itself."""
    with scratch() as folder:
        outside, tree = folder / "outside", folder / "tree"
        (outside / "inner").mkdir(parents=True)
        tree.mkdir()
        (tree / "door").symlink_to(outside)
        (tree / "up").symlink_to("..")
        clear(tree)
        (folder / "swapped").symlink_to(outside)
        with opened(folder) as parent:
            remove("swapped", parent, Deadline(SECONDS))

        assert [path.name for path in outside.iterdir()] == ["inner"]


def test_plain_user_removes_folders_that_refuse_him() -> None:
    """Without list, enter and write rights, at any depth."""
    with scratch(NOBODY if os.geteuid() == 0 else None) as folder, plain_user():
        for mode in (0o000, 0o400, 0o500, 0o300):
            inner = folder / f"{mode:o}" / "inner" / "most"
            inner.mkdir(parents=True)
            (inner / "file").touch()
            for path in (inner, inner.parent, inner.parent.parent):
                path.chmod(mode)
        clear(folder)

        assert list(folder.iterdir()) == []


def test_nothing_is_removed_from_what_somebody_mounted() -> None:
    """All else goes, and the refusal is told."""
    with scratch() as folder:
        outside, tree = folder / "outside", folder / "tree"
        outside.mkdir()
        (outside / "precious").touch()
        (tree / "a" / "mounted").mkdir(parents=True)
        (tree / "z").touch()
        with mounted(outside, tree / "a" / "mounted"), pytest.raises(OSError, match="busy"):
            clear(tree)

        assert (outside / "precious").exists()
        assert not (tree / "z").exists()


def test_removal_ends_at_its_deadline_and_when_it_is_called_off() -> None:
    with scratch() as folder:
        (folder / "a").touch()
        called_off = threading.Event()
        called_off.set()
        with opened(folder) as descriptor:
            for deadline in (Deadline(-1.0), Deadline(SECONDS, called_off)):
                with pytest.raises(OutOfTime):
                    empty(descriptor, deadline)

        assert (folder / "a").exists()
