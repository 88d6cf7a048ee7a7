"""npm's locks: what `npm ci` reads, and whether it has brought everything. Blocks."""

import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

LOCK: Final = "package-lock.json"
CPUS: Final = {"x86_64": "x64", "aarch64": "arm64"}
"""Machine to npm's word for it."""


def unfold(lock: Path, folder: Path) -> None:
    """Make the folder, with what `npm ci` reads. The first entry of a lock says what was asked for."""
    folder.mkdir()
    (folder / LOCK).write_bytes(lock.read_bytes())
    (folder / "package.json").write_bytes(msgspec.json.encode(_entries(folder)[""]))


def lacking(folder: Path) -> str | None:
    """Return a package made for this machine that is not there: npm goes on without one that it cannot fetch or that fails its hash."""
    return next((place for place in _made_for_this(_entries(folder)) if not (folder / place).is_dir()), None)


def _made_for_this(entries: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield the places of packages that are for machines like this one alone."""
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
