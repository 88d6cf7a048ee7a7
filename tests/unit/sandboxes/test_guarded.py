"""What of an agent's changes is not taken over into the sandbox of its tests. The folder of a `local` sandbox is the image here."""

from pathlib import Path

import pytest
from tests.support.grading import archive_of

from evener.sandboxes.guarded import apply_guarded
from evener.sandboxes.local import open_local
from evener.sandboxes.port import Changes, SandboxError

IMAGE = (
    "/usr/bin/cat",
    "/usr/lib/python3.11/json/__init__.py",
    "/usr/lib/libc.so.6",
    "/usr/local/lib/python3.11/site-packages/numpy/core.py",
)


async def taken(folder: Path, changes: Changes, *image: str) -> tuple[tuple[str, ...], list[str]]:
    """Return the names that were not taken over, and those whose content is the agent's then."""
    async with open_local(folder / "sandboxes") as sandboxes, sandboxes.open("tests") as sandbox:
        await sandbox.write(dict.fromkeys((*IMAGE, *image), b"image"))
        dropped = await apply_guarded(sandbox, changes)
        found = [path for path in sandboxes_files(folder) if path.read_bytes() == b"agent"]
        return dropped, [str(path.relative_to(folder / "sandboxes" / "tests")) for path in found]


def sandboxes_files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "sandboxes" / "tests").rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "name",
    [
        "usr/bin/cat",
        "usr/local/bin/cat",
        "usr/local/sbin/cat",
        "usr/lib/python3.11/json/__init__.py",
        "usr/lib/libc.so.6",
        "usr/lib/python3/dist-packages/sitecustomize.py",
        "usr/local/lib/python3.11/site-packages/_pytest/runner.py",
        "usr/lib/python311.zip",
        "usr/lib/glibc-hwcaps/x86-64-v3/libc.so.6",
        "etc/ld.so.preload",
        "etc/profile.d/own.sh",
        "app/sitecustomize.py",
        "app/__pycache__/calc.cpython-311.pyc",
        "app/pytest.py",
        "app/_pytest/__init__.py",
    ],
)
async def test_what_grades_the_agent_is_not_the_agents(tmp_path: Path, name: str) -> None:
    """Programs, libraries and modules of the image, and what is loaded by itself."""
    dropped, agents = await taken(tmp_path, Changes(archive=archive_of({name: "agent", "app/answer.txt": "agent"})))

    assert (dropped, agents) == ((name,), ["app/answer.txt"])


@pytest.mark.parametrize(
    "name",
    [
        "usr/local/bin/own-tool",
        "usr/lib/python3.11/own.py",
        "usr/local/lib/python3.11/site-packages/numpy/core.py",
        "etc/nginx/nginx.conf",
        "app/conftest.py",
        "app/json.py",
        "opt/tool/bin/run",
    ],
)
async def test_all_else_is_its_work(tmp_path: Path, name: str) -> None:
    """What it installed and configured, packages that it upgraded, and everything in its folder. Graders of repositories restore more."""
    assert await taken(tmp_path, Changes(archive=archive_of({name: "agent"}))) == ((), [name])


async def test_repository_of_the_test_runner_itself_is_the_agents_work(tmp_path: Path) -> None:
    changes = Changes(archive=archive_of({"app/_pytest/runner.py": "agent", "app/_pytest/new.py": "agent"}))

    dropped, agents = await taken(tmp_path, changes, "/app/_pytest/runner.py")

    assert (dropped, agents) == ((), ["app/_pytest/new.py", "app/_pytest/runner.py"])


@pytest.mark.parametrize(
    ("name", "text"),
    [("usr/lib/python3/dist-packages/own.pth", "import own\n"), ("app/own-1.dist-info/entry_points.txt", "[pytest11]\nown = own\n")],
)
async def test_packages_that_start_something_do_not(tmp_path: Path, name: str, text: str) -> None:
    """A .pth file that runs code, a plugin that pytest finds by itself. The same files that only name things are taken."""
    harmless = {"usr/lib/python3/dist-packages/fine.pth": "agent", "app/fine-1.dist-info/entry_points.txt": "agent"}

    dropped, agents = await taken(tmp_path, Changes(archive=archive_of({name: text, **harmless})))

    assert (dropped, agents) == ((name,), sorted(harmless))


async def test_programs_of_the_image_cannot_be_removed(tmp_path: Path) -> None:
    dropped, _ = await taken(tmp_path, Changes(archive=archive_of({}), removed=("app/gone.txt", "usr/bin/cat")))

    assert dropped == ("usr/bin/cat",)


async def test_damaged_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="damaged archive"):
        await taken(tmp_path, Changes(archive=b"\0garbage" * 100))
