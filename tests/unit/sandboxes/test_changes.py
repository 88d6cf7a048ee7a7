"""Changes of one folder, made again in another, give the same folder."""

import io
import os
import stat
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evener.sandboxes.apply_changes import apply
from evener.sandboxes.changes import changes_since, state_of
from evener.sandboxes.port import ChangeLimits, Changes, ChangesTooLarge, SandboxError

LIMITS = ChangeLimits(bytes=1 << 20)
NAMES = st.sampled_from(["a", "b", "c/d", "c/e", "c/f/g", "a b", "ü", "x.sh"])
CONTENTS = st.one_of(
    st.tuples(st.just("file"), st.binary(max_size=40), st.sampled_from([0o644, 0o600, 0o755])),
    st.tuples(st.just("link"), st.sampled_from([b"a", b"../out", b"/etc/hostname", b"missing", b"./c"]), st.just(0)),
    st.tuples(st.just("dir"), st.just(b""), st.sampled_from([0o755, 0o700])),
)
TREES = st.dictionaries(NAMES, CONTENTS, max_size=6)


def everything(_: str) -> bool:
    return True


def make(root: Path, tree: dict[str, tuple[str, bytes, int]]) -> None:
    for name, (kind, content, mode) in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "link":
            path.symlink_to(content.decode())
        elif kind == "dir":
            path.mkdir(mode=mode, exist_ok=True)
        else:
            path.write_bytes(content)
            path.chmod(mode)


def picture(root: Path) -> dict[str, tuple[int, bytes]]:
    seen = {}
    for path in sorted(root.rglob("*")):
        mode = path.lstat().st_mode
        content = bytes(path.readlink()) if stat.S_ISLNK(mode) else path.read_bytes() if stat.S_ISREG(mode) else b""
        seen[str(path.relative_to(root))] = (stat.S_IFMT(mode) if stat.S_ISLNK(mode) else mode, content)
    return seen


@given(before=TREES, after=TREES)
@settings(max_examples=150)
def test_changes_of_any_tree_into_any_other_are_made_again(
    before: dict[str, tuple[str, bytes, int]], after: dict[str, tuple[str, bytes, int]]
) -> None:
    """Files become links, directories become files, modes change: the copy ends up equal."""
    with TemporaryDirectory() as folder:
        agent, grader = Path(folder, "agent"), Path(folder, "grader")
        for root in (agent, grader):
            root.mkdir()
            make(root, before)
        state = state_of(agent, everything)
        apply(agent, Changes(archive=empty_tar(), removed=tuple(sorted(state))), everything)
        make(agent, after)

        changes = changes_since(agent, state, everything, LIMITS)
        apply(grader, changes, everything)

        assert picture(grader) == picture(agent)


def empty_tar(*members: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member in members:
            archive.addfile(member)
    return buffer.getvalue()


def test_equal_changes_give_equal_bytes(tmp_path: Path) -> None:
    """The archive holds no time and no owner."""
    archives: list[bytes] = []
    for name in ("one", "two"):
        root = tmp_path / name
        root.mkdir()
        state = state_of(root, everything)
        make(root, {"c/d": ("file", b"x", 0o644), "a": ("link", b"c/d", 0)})
        os.utime(root / "c/d", (len(archives), len(archives)))
        archives.append(changes_since(root, state, everything, LIMITS).archive)

    assert archives[0] == archives[1]


def test_a_file_written_again_with_its_old_time_and_size_is_a_change(tmp_path: Path) -> None:
    """An agent cannot hide a change from the grader by setting times."""
    path = tmp_path / "a"
    path.write_bytes(b"old")
    state = state_of(tmp_path, everything)
    times = path.stat().st_mtime_ns
    path.write_bytes(b"new")
    os.utime(path, ns=(times, times))

    changes = changes_since(tmp_path, state, everything, LIMITS)

    with tarfile.open(fileobj=io.BytesIO(changes.archive)) as archive:
        assert archive.getnames() == ["a"]


def test_touching_a_file_is_no_change(tmp_path: Path) -> None:
    """Only content and mode count."""
    (tmp_path / "a").write_bytes(b"same")
    state = state_of(tmp_path, everything)
    os.utime(tmp_path / "a", (1, 1))

    changes = changes_since(tmp_path, state, everything, LIMITS)

    assert changes == Changes(archive=empty_tar())


def test_too_much_is_refused_with_its_size(tmp_path: Path) -> None:
    """A sparse file of a terabyte is not read."""
    state = state_of(tmp_path, everything)
    (tmp_path / "a").write_bytes(b"x" * 101)

    with pytest.raises(ChangesTooLarge, match="101 bytes, 100 are allowed"):
        changes_since(tmp_path, state, everything, ChangeLimits(bytes=100))


@pytest.mark.parametrize("name", ["../out", "/etc/passwd", "a/../../out"])
def test_a_name_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    """Changes come from a sandbox: their names are not trusted."""
    with pytest.raises(SandboxError, match="not allowed"):
        apply(tmp_path, Changes(archive=empty_tar(tarfile.TarInfo(name))), everything)


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    """A link that points out of the sandbox is replaced, not followed."""
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    (root / "door").symlink_to(outside)

    apply(root, Changes(archive=empty_tar(tarfile.TarInfo("door/written"))), everything)

    assert list(outside.iterdir()) == []
    assert (root / "door" / "written").is_file()


def test_a_link_to_its_own_sandbox_leads_to_the_other_one_there(tmp_path: Path) -> None:
    """The grader must not look into the agent's sandbox."""
    agent, grader = tmp_path / "agent", tmp_path / "grader"
    agent.mkdir()
    grader.mkdir()
    state = state_of(agent, everything)
    make(agent, {"a": ("file", b"x", 0o644), "l": ("link", str(agent / "a").encode(), 0)})

    apply(grader, changes_since(agent, state, everything, LIMITS), everything)

    assert (grader / "l").resolve() == grader / "a"
