"""Real npm and pip with a registry of the test's own: a package that differs from the lock does not become a bundle."""

import base64
import hashlib
import io
import json
import os
import platform
import tarfile
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from evener.harnesses import npm, pip
from evener.harnesses.npm_lock import CPUS
from evener.harnesses.port import HarnessMissing

REGISTRY = "npm_config_registry"
THIS = {"os": [platform.system().lower()], "cpu": [CPUS.get(platform.machine(), "none")]}
WITHOUT_PYTHON = pytest.mark.skipif(not pip.pythons(), reason=f"NOT TESTED WITH PACKAGES OF PYPI: Python {pip.PYTHON_VERSION} is missing")


class Silent(SimpleHTTPRequestHandler):
    """Serves the files of a folder."""

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that the user's npm has for its registry."""
    folder = tmp_path / "registry"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv(REGISTRY, f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("npm_config_cache", str(tmp_path / "cache of npm"))
        yield folder
        server.shutdown()


def publish(registry: Path, name: str, manifest: dict[str, Any]) -> str:
    """Publish version 1 of a package; return its hash."""
    packed = io.BytesIO()
    content = json.dumps(manifest | {"name": name, "version": "1.0.0"}).encode()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        entry = tarfile.TarInfo("package/package.json")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    (registry / f"{name}.tgz").write_bytes(packed.getvalue())
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(packed.getvalue()).digest()).decode()
    told = manifest | {"name": name, "version": "1.0.0", "dist": {"tarball": f"{os.environ[REGISTRY]}/{name}.tgz", "integrity": integrity}}
    (registry / name).write_text(json.dumps({"name": name, "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": told}}))
    return integrity


def published(registry: Path) -> dict[str, dict[str, Any]]:
    """Publish a program, a library of its, and its native part for this machine; return the entries of their lock."""
    needs = {"dependencies": {"library": "1.0.0"}, "optionalDependencies": {"native": "1.0.0"}}
    manifests: dict[str, dict[str, Any]] = {"program": needs, "library": {}, "native": THIS}
    entries: dict[str, dict[str, Any]] = {"": {"dependencies": {"program": "1.0.0"}}}
    for name, manifest in manifests.items():
        entries[f"node_modules/{name}"] = {"version": "1.0.0", "integrity": publish(registry, name, manifest), **manifest}
    entries["node_modules/native"]["optional"] = True
    return entries


def locked(folder: Path, entries: dict[str, dict[str, Any]]) -> npm.NpmPackage:
    lock = folder / "package-lock.json"
    lock.write_text(json.dumps({"lockfileVersion": 3, "requires": True, "packages": entries}))
    return npm.NpmPackage(name="program", version="1.0.0", lock=lock, node=(0, 0))


@pytest.mark.usefixtures("npm")
async def test_npm_brings_what_the_lock_says_from_the_users_registry(
    registry: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what the user's npm would leave out."""
    monkeypatch.setenv("npm_config_omit", "optional")
    bundle = await locked(tmp_path, published(registry)).install(tmp_path / "cache", "a")

    assert {path.name for path in (bundle / "node_modules").iterdir() if path.is_dir()} == {"program", "library", "native"}


@pytest.mark.usefixtures("npm")
@pytest.mark.parametrize(("changed", "told"), [("library", "EINTEGRITY"), ("native", "node_modules/native could not be fetched")])
async def test_a_package_that_has_changed_since_it_was_locked_is_refused(registry: Path, tmp_path: Path, changed: str, told: str) -> None:
    """A dependency, and an optional one, without which npm goes on."""
    wanted = locked(tmp_path, published(registry))
    publish(registry, changed, {"description": "another"} | (THIS if changed == "native" else {}))

    with pytest.raises(HarnessMissing, match=told):
        await wanted.install(tmp_path / "cache", "a")

    assert list((tmp_path / "cache").iterdir()) == []


def wheel(folder: Path, content: str) -> str:
    """Write version 1 of a package; return its hash."""
    path = folder / "program-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("program.py", content)
        packed.writestr("program-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: program\nVersion: 1\n")
        packed.writestr("program-1.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr("program-1.dist-info/RECORD", "program.py,,\n")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@WITHOUT_PYTHON
@pytest.mark.cli
@pytest.mark.slow
async def test_pip_brings_what_the_lock_says_and_refuses_what_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the index that the user's pip is configured for."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    lock = tmp_path / "requirements.txt"
    lock.write_text(f"program==1 \\\n    --hash=sha256:{wheel(tmp_path, 'word = 1')}\n")
    wanted = pip.PypiPackage(name="program", version="1", lock=lock)

    bundle = await wanted.install(tmp_path / "cache", "a")
    wheel(tmp_path, "word = 2")

    assert list(bundle.glob("lib/*/site-packages/program.py"))
    with pytest.raises(HarnessMissing, match="THESE PACKAGES DO NOT MATCH THE HASHES"):
        await wanted.install(tmp_path / "another", "a")
    assert list((tmp_path / "another").iterdir()) == []
