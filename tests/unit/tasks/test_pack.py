"""Packed tasks: equal bytes for equal files, and nothing written outside."""

import io
import os
import shutil
import tarfile
from pathlib import Path

import pytest
from tests.support.spent import descriptors_used_up

from evener.tasks.directory import bundled, find, load
from evener.tasks.errors import TaskError
from evener.tasks.pack import pack, unpack


def archive(*members: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def test_same_files_give_the_same_digest(tmp_path: Path) -> None:
    """Times, owners and modes of the copy do not matter; only whether a file can be run."""
    task = find(bundled())[0]
    copy = shutil.copytree(task, tmp_path / "copy")
    for path in copy.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o700 if path.is_dir() or os.access(path, os.X_OK) else 0o600)
    (copy / "__pycache__").mkdir()

    assert pack(copy).data == pack(task).data
    assert pack(copy).ref == pack(task).ref


def test_other_files_give_another_digest(tmp_path: Path) -> None:
    task = find(bundled())[0]
    copy = shutil.copytree(task, tmp_path / "copy")
    (copy / "more").write_text("")

    assert pack(copy).ref.digest != pack(task).ref.digest


@pytest.mark.parametrize("path", find(bundled()), ids=lambda path: path.name)
def test_unpacked_task_is_the_same_task(tmp_path: Path, path: Path) -> None:
    packed = pack(path)
    unpack(packed.data, tmp_path)

    assert pack(tmp_path).data == packed.data
    assert load(tmp_path).instruction == load(path).instruction


def test_links_inside_are_kept(tmp_path: Path) -> None:
    task = shutil.copytree(find(bundled())[0], tmp_path / "task")
    (task / "again.md").symlink_to("instruction.md")
    unpack(pack(task).data, tmp_path / "out")

    assert (tmp_path / "out" / "again.md").readlink() == Path("instruction.md")


@pytest.mark.parametrize(
    "members",
    [
        [member("/etc/evil")],
        [member("../evil")],
        [member("a/../../evil")],
        [member("out", tarfile.SYMTYPE, "/etc")],
        [member("out", tarfile.SYMTYPE, "..")],
        [member("up", tarfile.SYMTYPE, "a/b/z/.."), member("a/b/z", tarfile.SYMTYPE, "../..")],
        [member("out", tarfile.SYMTYPE, ".."), member("out/evil")],
        [member("hard", tarfile.LNKTYPE, "/etc/passwd")],
        [member("device", tarfile.CHRTYPE)],
    ],
    ids=["absolute", "parent", "hidden-parent", "link-absolute", "link-parent", "link-chain", "through-link", "hard-link", "device"],
)
def test_archive_that_leaves_its_folder_is_refused(tmp_path: Path, members: list[tarfile.TarInfo]) -> None:
    """Whatever the names and links say, nothing is written next to the folder, and no link out stays behind."""
    into = tmp_path / "into"
    into.mkdir()

    with pytest.raises(TaskError):
        unpack(archive(*members), into)
    assert not (tmp_path / "evil").exists()
    assert not any(path.is_symlink() for path in into.rglob("*"))


def test_archive_deeper_than_the_stack_is_refused(tmp_path: Path) -> None:
    """Neither a runner nor an evaluator ends with a RecursionError over it."""
    with pytest.raises(TaskError, match="nested deeper than 50"):
        unpack(archive(member("d/" * 1_100 + "file")), tmp_path)


def test_sparse_member_is_refused_unread(tmp_path: Path) -> None:
    """It may say that it is a terabyte, and its map may be rubbish."""
    hole = tarfile.TarInfo("hole")
    hole.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "hole", "GNU.sparse.realsize": str(1 << 40)}

    with pytest.raises(TaskError, match="packed task of"):
        unpack(archive(hole), tmp_path)


def test_bytes_that_are_no_archive_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="packed task of 7 bytes"):
        unpack(b"rubbish", tmp_path)


def test_names_that_no_file_can_have_are_refused(tmp_path: Path) -> None:
    """Another machine could not write them either."""
    with pytest.raises(TaskError, match="File name too long"):
        unpack(archive(member("n" * 300)), tmp_path)
    with pytest.raises(TaskError, match="packed task of"):
        unpack(archive(member("a"), member("a/b")), tmp_path)


def test_machine_at_its_limit_is_not_the_fault_of_a_packed_task(tmp_path: Path) -> None:
    """The session is run on another machine, instead of failing its whole group."""
    data = pack(find(bundled())[0]).data

    with descriptors_used_up(), pytest.raises(OSError, match="Too many open files"):
        unpack(data, tmp_path)
