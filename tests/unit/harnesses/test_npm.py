"""Bundles of npm packages: whole or not at all, with all that the lock says, and with a Node that runs them."""

import json
import platform
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from evener.harnesses import npm
from evener.harnesses.install import locked
from evener.harnesses.npm_lock import CPUS
from evener.harnesses.port import HarnessMissing
from evener.harnesses.registry import harness

BRINGS = pytest.mark.skipif(not npm.brings_node(), reason="there is no Node to be brought for this machine")


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in PATH before the machine's shell tools."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/bin")
    for name in ("npm", "node"):
        program(folder, name, "exit 127")
    return folder


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def package(folder: Path, entries: Any = None, *, node: tuple[int, int] = (0, 0), programs: str | None = None) -> npm.NpmPackage:
    """Return a package `a` of version 1, with a lock that says so and these entries."""
    lock = folder / "package-lock.json"
    lock.write_text(json.dumps({"packages": {"": {"dependencies": {"a": "1"}}, **(entries or {})}}))
    return npm.NpmPackage(name="a", version="1", lock=lock, node=node, programs=programs)


async def test_a_machine_without_npm_is_told_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that says what to install; nothing half-made stays."""
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(HarnessMissing, match="npm is needed to install @anthropic-ai"):
        await harness("claude_code").install(tmp_path / "cache")

    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("no network", "no network"),
        ("npm error code E404\nnpm error 404 Not Found - a\nnpm error 404\nnpm error A complete log is", "code E404; 404 Not Found - a"),
        ("npm ERR! code X\nnpm ERR! errno X\nnpm ERR! failed, reason: X\nnpm ERR!     at a.js:1", "code X; failed, reason: X"),
    ],
)
async def test_an_installation_that_fails_leaves_no_bundle(programs: Path, tmp_path: Path, said: str, told: str) -> None:
    """The next try starts anew; why it failed is told in a line."""
    (tmp_path / "said").write_text(said)
    program(programs, "npm", f"cat {tmp_path / 'said'}; exit 1")

    with pytest.raises(HarnessMissing) as failed:
        await package(tmp_path).install(tmp_path / "cache", "a")

    assert failed.value.args == (f"npm could not install a@1: {told}",)
    assert list((tmp_path / "cache").iterdir()) == []


async def test_an_installed_bundle_is_not_installed_again(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where npm is gone."""
    program(programs, "npm", 'mkdir "$3/node_modules"')
    wanted = package(tmp_path)
    bundle = await wanted.install(tmp_path / "cache", "a")
    monkeypatch.setenv("PATH", str(tmp_path))

    assert await wanted.install(tmp_path / "cache", "a") == bundle


@pytest.mark.parametrize("change", ["content", "new", "removed", "link", "permission"])
async def test_a_bundle_that_has_changed_is_installed_again(programs: Path, tmp_path: Path, change: str) -> None:
    """Whatever changed: it runs in every sandbox."""
    program(programs, "npm", 'mkdir "$3/node_modules" && echo 1 > "$3/node_modules/a" && ln -s a "$3/node_modules/b"')
    wanted = package(tmp_path)
    folder = await wanted.install(tmp_path / "cache", "a") / "node_modules"
    match change:
        case "content":
            (folder / "a").write_text("2\n")
        case "new":
            (folder / "c").touch()
        case "removed":
            (folder / "a").unlink()
        case "link":
            (folder / "b").unlink()
            (folder / "b").symlink_to("c")
        case _:
            (folder / "a").chmod(0o755)

    with capture_logs() as logs:
        await wanted.install(tmp_path / "cache", "a")

    assert [line["event"] for line in logs] == ["bundle_changed"]
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b"]
    assert (folder / "b").read_text() == "1\n"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [folder.parent.name]


async def test_a_bundle_is_readable_by_every_user(programs: Path, tmp_path: Path) -> None:
    """Programs in a sandbox are somebody else."""
    program(programs, "npm", 'umask 077; mkdir "$3/node_modules" && echo > "$3/node_modules/a" && chmod 700 "$3/node_modules/a"')

    bundle = await package(tmp_path).install(tmp_path / "cache", "a")

    for path, mode in (
        (bundle, 0o555),
        (bundle / "node_modules", 0o555),
        (bundle / "node_modules/a", 0o555),
        (bundle / "package.json", 0o444),
    ):
        assert path.stat().st_mode & mode == mode


async def test_a_bundle_from_before_there_were_locks_is_not_taken_for_a_locked_one(programs: Path, tmp_path: Path) -> None:
    """Nor one of another lock."""
    program(programs, "npm", 'mkdir "$3/node_modules"')
    wanted = package(tmp_path)
    for old in ("a-1", "a-1+00000000"):
        (tmp_path / "cache" / old).mkdir(parents=True)

    bundle = await wanted.install(tmp_path / "cache", "a")

    assert bundle == tmp_path / "cache" / f"a-{locked('1', wanted.lock)}"
    assert json.loads((bundle / "package.json").read_text()) == {"dependencies": {"a": "1"}}


async def test_npm_gets_the_lock_and_installs_as_it_says(programs: Path, tmp_path: Path) -> None:
    """`npm ci`, without scripts, whatever the user's npm is told to leave out."""
    program(programs, "npm", 'echo "$@" > "$3/asked"')
    wanted = package(tmp_path)

    bundle = await wanted.install(tmp_path / "cache", "a")
    asked = (bundle / "asked").read_text().split()

    assert asked[0] == "ci"
    assert (bundle / "package-lock.json").read_bytes() == wanted.lock.read_bytes()
    assert {"--ignore-scripts", "--include=optional"} <= set(asked)


async def test_programs_that_npm_leaves_without_the_right_to_run_get_it(programs: Path, tmp_path: Path) -> None:
    """Qwen Code's ripgrep is one."""
    program(programs, "npm", 'mkdir -p "$3/node_modules/a/vendor/x" && echo > "$3/node_modules/a/vendor/x/rg"')

    bundle = await package(tmp_path, programs="vendor/*/rg").install(tmp_path / "cache", "a")

    assert (bundle / "node_modules/a/vendor/x/rg").stat().st_mode & 0o111 == 0o111


async def test_a_package_for_this_machine_that_npm_went_on_without_is_missed(programs: Path, tmp_path: Path) -> None:
    """npm takes it for optional: also where its hash is wrong, and then the program is not there."""
    program(programs, "npm", 'mkdir -p "$3/node_modules/a"')
    native = {"os": [platform.system().lower()], "cpu": CPUS[platform.machine()], "optional": True}

    with pytest.raises(HarnessMissing, match="a@1: node_modules/a-native could not be fetched, or differs from the lock"):
        await package(tmp_path, {"node_modules/a-native": native}).install(tmp_path / "cache", "a")

    assert list((tmp_path / "cache").iterdir()) == []


async def test_a_package_for_another_machine_is_not_missed(programs: Path, tmp_path: Path) -> None:
    """A lock has those of all."""
    program(programs, "npm", 'mkdir -p "$3/node_modules/a"')
    native = {"os": [platform.system().lower()], "cpu": ["s390x"], "optional": True}

    assert (await package(tmp_path, {"node_modules/a-native": native}).install(tmp_path / "cache", "a")).is_dir()


@BRINGS
async def test_a_bundle_that_needs_node_gets_its_own(programs: Path, tmp_path: Path) -> None:
    """Whatever is in PATH: an image has none. All bundles share its bytes."""
    node = f"node_modules/{npm.NODES[platform.machine()]}/bin"
    program(programs, "npm", f'case "$3" in */.node-*) mkdir -p "$3/{node}" && echo > "$3/{node}/node";; esac')
    program(programs, "node", "echo v99.1.0")

    bundle = await package(tmp_path, node=(22, 19)).install(tmp_path / "cache", "a")

    assert npm.node_of(bundle) == str(bundle / npm.NODE_FOLDER / node / "node")
    assert (bundle / npm.NODE_FOLDER / node / "node").samefile(tmp_path / "cache" / npm.NODE_FOLDER / node / "node")


async def test_a_node_that_is_too_old_is_told_where_none_can_be_brought(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is installed, and of a bundle that is there too."""
    program(programs, "node", "echo v18.20.4")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    wanted = package(tmp_path, node=(22, 19))

    for _ in ("new", "there"):
        with pytest.raises(HarnessMissing, match=r"a needs Node 22\.19 or newer, and PATH has 18\.20"):
            await wanted.install(tmp_path / "cache", "a")
        (tmp_path / "cache" / f"a-{wanted.locked}").mkdir(parents=True, exist_ok=True)
