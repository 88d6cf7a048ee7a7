"""What a harness is made of is locked: versions and hashes of all of it, for every machine, and no word of where it comes from."""

import json
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from evener.harnesses import npm, pip
from evener.harnesses.install import locked
from evener.harnesses.port import bundle_of
from evener.harnesses.python_tree import TOOLS_LOCK
from evener.harnesses.registry import BUNDLED, harness, names

MODULES = {name: import_module(f"evener.harnesses.{name}") for name in names()}
PACKAGES: dict[str, Any] = {name: module.PACKAGE for name, module in MODULES.items() if hasattr(module, "PACKAGE")}
NPM = {name: package.lock for name, package in PACKAGES.items() if isinstance(package, npm.NpmPackage)} | {"node": npm.NODE_LOCK}
PIP = {name: package for name, package in PACKAGES.items() if isinstance(package, pip.PypiPackage)}
LOCKS = [*BUNDLED.glob("*/package-lock.json"), *BUNDLED.glob("*/*.txt")]


def entries(lock: Path) -> dict[str, dict[str, Any]]:
    packages: dict[str, dict[str, Any]] = json.loads(lock.read_text())["packages"]
    return packages


def requirements(lock: Path) -> list[str]:
    return lock.read_text().replace("\\\n", "").splitlines()


def test_every_harness_that_is_brought_is_locked() -> None:
    """There are no other locks."""
    assert {name for name in names() if harness(name).package} == PACKAGES.keys()
    assert {*NPM.values(), *(lock for package in PIP.values() for lock in package.locks), TOOLS_LOCK} == set(LOCKS)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.parent.name)
def test_a_lock_names_no_registry_and_stays_small(lock: Path) -> None:
    """Packages come from where the user's npm and pip are told to look."""
    told = lock.read_text()

    assert not re.search(r"://|\bresolved\b|index-url|find-links", told)
    assert len(told) < 500_000


@pytest.mark.parametrize("name", NPM)
def test_npms_locks_have_all_of_it_with_hashes(name: str) -> None:
    """What is named is there, or `npm ci` refuses; what lies inside another package comes with that one's hash."""
    locked_, there = entries(NPM[name]), {place.rpartition("node_modules/")[2] for place in entries(NPM[name])}
    named = {wanted for entry in locked_.values() for kind in ("dependencies", "optionalDependencies") for wanted in entry.get(kind, ())}

    assert named <= there
    assert [place for place, entry in locked_.items() if place and not entry.get("inBundle") and "integrity" not in entry] == []


@pytest.mark.parametrize("name", sorted(PACKAGES.keys() & NPM.keys()))
def test_npms_locks_are_of_the_pinned_version(name: str) -> None:
    assert entries(NPM[name])[""]["dependencies"] == {PACKAGES[name].name: PACKAGES[name].version}


def test_nodes_lock_is_of_the_pinned_version() -> None:
    assert entries(npm.NODE_LOCK)[""]["optionalDependencies"] == dict.fromkeys(npm.NODES.values(), npm.NODE)


@pytest.mark.parametrize("name", ["claude_code", "codex", "gemini_cli", "pi"])
def test_npms_locks_serve_other_machines_too(name: str) -> None:
    """Native programs for each come as packages of their own."""
    machines = {(system, cpu) for entry in entries(NPM[name]).values() for system in entry.get("os", ()) for cpu in entry.get("cpu", ())}

    assert machines >= {("linux", "x64"), ("linux", "arm64"), ("darwin", "arm64")}


@pytest.mark.parametrize("name", PIP)
def test_requirements_are_exact_and_have_hashes(name: str) -> None:
    """Those of sources too; what builds these is among the others."""
    package = PIP[name]
    asked = [line for lock in package.locks for line in requirements(lock)]
    exact = {line.split(" ")[0] for line in asked}

    assert exact >= {f"{own}=={package.version}" for own in (package.name, *package.beside)}
    assert [line for line in asked if not re.fullmatch(r"[\w.-]+==[\w.+]+ (; [^#]+?)?( *--hash=sha256:[0-9a-f]{64})+", line)] == []
    assert not package.sources or any(line.startswith("setuptools==") for line in exact)


def test_another_lock_is_another_bundle(tmp_path: Path) -> None:
    """Its name says what it was made of, and sessions record that."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("a==1")
    second.write_text("a==2")

    assert re.fullmatch(r"1\.2\+[0-9a-f]{8}", locked("1.2", first))
    assert len({locked("1.2", first), locked("1.2", second), locked("1.2", first, second)}) == 3
    assert bundle_of(harness("pi"), tmp_path) == tmp_path / f"pi-{PACKAGES['pi'].locked}"
