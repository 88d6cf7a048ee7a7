"""npm's lock files: writes what `npm ci` reads, and checks that it installed everything. Blocks."""

import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

LOCK: Final = "package-lock.json"
CPUS: Final = {"x86_64": "x64", "aarch64": "arm64"}
"""npm's name for each machine type."""


def unfold(lock: Path, folder: Path) -> None:
    """Create the folder with the files that `npm ci` reads. The first entry of a lock file says what was requested."""
    folder.mkdir()
    (folder / LOCK).write_bytes(lock.read_bytes())
    (folder / "package.json").write_bytes(msgspec.json.encode(_entries(folder)[""]))


def lacking(folder: Path) -> str | None:
    """Return a missing package that is made for this machine: npm omits without an error what it cannot fetch or what fails its hash."""
    return next((place for place in _made_for_this(_entries(folder)) if not (folder / place).is_dir()), None)


def _made_for_this(entries: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the paths of packages that are only for machines of this type."""
    this = {"os": platform.system().lower(), "cpu": CPUS.get(platform.machine()), "libc": platform.libc_ver()[0]}
    for place, entry in entries.items():
        limits = this.keys() & entry.keys()
        if limits and all(this[limit] in _listed(entry[limit]) for limit in limits):
            yield place


def _entries(folder: Path) -> dict[str, dict[str, Any]]:
    packages: dict[str, dict[str, Any]] = msgspec.json.decode((folder / LOCK).read_bytes())["packages"]
    return packages


def _listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value
