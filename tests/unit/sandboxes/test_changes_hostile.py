"""Whatever tree an agent leaves: its changes are kept in bounded time and space, or what is not kept is named with the reason."""

import io
import os
import tarfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.support.spent import descriptors_used_up, next_descriptor
from tests.support.trees import NOBODY, dig, make_specials, plain_user, scratch

from evener.sandboxes.apply_changes import apply
from evener.sandboxes.changes import MAX_FOLDER_DEPTH, changes_since, state_of
from evener.sandboxes.port import ChangeLimits, Changes, ChangesTooLarge

LIMITS = ChangeLimits(bytes=1 << 20)


def everything(_: str) -> bool:
    return True


def names(changes: Changes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(changes.archive)) as archive:
        return archive.getnames()


@pytest.mark.parametrize("depth", [1_100, 5_000])
def test_tree_deeper_than_a_path_is_kept_as_far_as_it_can_be_made_again(depth: int) -> None:
    """The rest is left out by name; what lies beside it is kept."""
    with scratch() as folder:
        agent, grader = folder / "agent", folder / "grader"
        agent.mkdir()
        grader.mkdir()
        dig(agent, depth)
        (agent / "answer.txt").write_text("42")
        changes = changes_since(agent, {}, everything, LIMITS)
        apply(grader, changes, everything)

        assert (grader / "answer.txt").read_text() == "42"
        assert names(changes)[-1] == "/".join("d" * MAX_FOLDER_DEPTH)
        assert list(changes.excluded.items()) == [("/".join("d" * (MAX_FOLDER_DEPTH + 1)), "nested deeper than 100 folders")]


def test_name_that_is_too_long_is_excluded() -> None:
    with scratch() as folder:
        long = folder.joinpath(*["n" * 255] * 9)
        long.mkdir(parents=True)
        changes = changes_since(folder, {}, everything, LIMITS)

        assert [len(name) for name in names(changes)][-1] == 8 * 256 - 1
        assert list(changes.excluded.values()) == ["a name of more than 2048 bytes"]


@pytest.mark.parametrize("size", [6 << 30, 1 << 40], ids=["6 GB", "1 TB"])
def test_sparse_file_is_refused_by_its_size(size: int) -> None:
    """Not a byte of it is read."""
    with scratch() as folder:
        with (folder / "sparse").open("wb") as file:
            file.truncate(size)
        began = time.process_time()
        with pytest.raises(ChangesTooLarge, match=f"hold {size} bytes, 1048576 are allowed"):
            changes_since(folder, {}, everything, LIMITS)

        assert time.process_time() - began < 1.0


def test_one_large_file_under_many_names_is_refused() -> None:
    """The archive would hold it once for each."""
    with scratch() as folder:
        (folder / "0").write_bytes(bytes(200_000))
        for number in range(1, 6):
            os.link(folder / "0", folder / str(number))
        with pytest.raises(ChangesTooLarge, match="1200000 bytes"):
            changes_since(folder, {}, everything, LIMITS)


def test_too_many_entries_are_refused_before_all_are_seen() -> None:
    """A million files cost what the limit costs."""
    seen: list[str] = []

    def note(name: str) -> bool:
        seen.append(name)
        return True

    with scratch() as folder:
        for number in range(100):
            (folder / str(number)).touch()
        with pytest.raises(ChangesTooLarge, match="more than 10 files and folders"):
            changes_since(folder, {}, note, ChangeLimits(entries=10))

    assert len(seen) == 11


def test_gathering_ends_at_its_deadline() -> None:
    with scratch() as folder:
        (folder / "a").touch()
        with pytest.raises(ChangesTooLarge, match="could not be read within 0 s"):
            changes_since(folder, {}, everything, ChangeLimits(seconds=0.0))


def test_pipes_and_sockets_are_excluded_by_name() -> None:
    """Reading a pipe would wait for ever. A prepared file that a pipe replaced is gone."""
    with scratch() as folder:
        (folder / "pipe").touch()
        state = state_of(folder, everything)
        (folder / "pipe").unlink()
        make_specials(folder)
        changes = changes_since(folder, state, everything, LIMITS)

        assert changes.excluded == {"pipe": "a pipe", "socket": "a socket"}
        assert changes.removed == ("pipe",)
        assert names(changes) == []


def test_of_very_many_excluded_names_the_first_are_told_and_all_are_counted() -> None:
    with scratch() as folder:
        for number in range(1_100):
            os.mkfifo(folder / str(number))
        changes = changes_since(folder, {}, everything, LIMITS)

        assert (len(changes.excluded), changes.excluded_count) == (1_000, 1_100)


def test_names_are_any_bytes() -> None:
    """Line ends, bytes that are no UTF-8, names of 255 bytes; as link targets too."""
    with scratch() as folder:
        agent, grader = folder / "agent", folder / "grader"
        odd = [os.fsdecode(name) for name in (b"new\nline", b"\xff\xfe", b"n" * 255, b" ", b"-rf", "ü".encode())]
        for root in (agent, grader):
            root.mkdir()
        for name in odd:
            (agent / name).mkdir()
            (agent / name / name).write_text("x")
            (agent / name / "link").symlink_to(name)
        state = state_of(agent, everything)
        apply(grader, changes_since(agent, {}, everything, LIMITS), everything)

        assert state_of(grader, everything).keys() == state.keys()
        assert all((grader / name / "link").read_text() == "x" for name in odd)


def test_plain_users_files_without_rights_are_kept() -> None:
    """Their owner is who gathers them: he may give himself what he took."""
    with scratch(NOBODY if os.geteuid() == 0 else None) as folder, plain_user():
        agent, grader = folder / "agent", folder / "grader"
        for root in (agent, grader):
            root.mkdir()
        for number, mode in enumerate((0o000, 0o400, 0o600, 0o300)):
            closed = agent / str(number)
            closed.mkdir()
            (closed / "file").write_text("x")
            (closed / "file").chmod(0o000)
            closed.chmod(mode)
        changes = changes_since(agent, {}, everything, LIMITS)
        apply(grader, changes, everything)

        assert changes.excluded == {}
        assert [(grader / str(number) / "file").stat().st_mode & 0o777 for number in range(4)] == [0] * 4


def grow(path: Path) -> None:
    path.write_bytes(bytes(1000))


def shrink(path: Path) -> None:
    path.write_bytes(b"")


def vanish(path: Path) -> None:
    path.unlink()


def become_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def become_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/hostname")


@pytest.mark.parametrize("happen", [grow, shrink, vanish, become_pipe, become_link])
def test_file_that_changes_while_it_is_gathered_is_excluded(happen: Callable[[Path], None]) -> None:
    """A process that nobody could kill still writes. The archive stays whole."""
    with scratch() as folder:
        (folder / "file").write_text("0123456789")
        (folder / "d").mkdir()
        (folder / "d" / "late").write_text("x")

        def strike(name: str) -> bool:
            if name == "d/late":  # the folder above has been looked at, and nothing read
                happen(folder / "file")
            return True

        changes = changes_since(folder, {}, strike, LIMITS)

        assert names(changes) == ["d", "d/late"]
        assert changes.excluded == {"file": "changed while it was read"}


@pytest.mark.parametrize("last", ["file", "link", "folder"])
def test_machine_at_its_limit_leaves_nothing_out(last: str) -> None:
    """What an agent left is whole, or its session is run again: it is not graded without a file of its own."""
    with scratch() as folder:
        {
            "file": lambda path: path.write_text("x"),
            "link": lambda path: path.symlink_to("x"),
            "folder": lambda path: path.mkdir(),
        }[last](folder / last)
        spent, lowest = ExitStack(), next_descriptor()

        def strike(name: str) -> bool:
            spent.enter_context(descriptors_used_up(lowest))  # it has been found, and is not opened yet
            return bool(name)

        with pytest.raises(OSError, match="Too many open files"), spent:
            changes_since(folder, {}, strike, LIMITS)


def test_folder_that_becomes_a_link_while_it_is_gathered_is_not_entered() -> None:
    """What lies outside of the sandbox stays outside of its changes."""
    with scratch() as folder:
        root, outside = folder / "root", folder / "outside"
        for path in (root / "one", root / "two", outside):
            path.mkdir(parents=True)
            (path / "file").write_text("secret")

        def strike(name: str) -> bool:
            if name.endswith("/file"):
                other = root / ("two" if name.startswith("one") else "one")
                if not other.is_symlink():
                    (other / "file").unlink()
                    other.rmdir()
                    other.symlink_to(outside)
            return True

        changes = changes_since(root, {}, strike, LIMITS)

        assert len([name for name in names(changes) if name.endswith("/file")]) == 1
        assert list(changes.excluded.values()) == ["Not a directory"]


def test_touched_files_of_the_task_do_not_count_as_changed_bytes() -> None:
    """`chmod` and back, or `touch`, of all of them leaves the whole limit to the agent."""
    with scratch() as folder:
        (folder / "given").write_bytes(bytes(900))
        state = state_of(folder, everything)
        os.utime(folder / "given", (1, 1))
        (folder / "new").write_bytes(bytes(900))

        assert names(changes_since(folder, state, everything, ChangeLimits(bytes=1000))) == ["new"]
