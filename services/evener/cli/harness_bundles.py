"""What harnesses there are on this machine, and how they come here."""

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from rich.table import Table

from evener.cli.progress import console
from evener.harnesses.port import Harness, bundle_of
from evener.harnesses.registry import harness, names
from evener.sandbox_runner.config import Config
from evener.service.config import load


class Entry(Struct, frozen=True, kw_only=True):
    """A harness, as the list shows it."""

    name: str
    version: str
    dialects: tuple[str, ...]
    installed: bool
    has_tools: bool
    package: str | None
    """None: it comes with Evener."""
    summary: str


def cache() -> Path:
    """Return the folder in which this user's runners keep their bundles."""
    return Path(load(Config, (), os.environ, "sandbox_runner").harness_cache).expanduser()


def entries() -> list[Entry]:
    """Return all harnesses by name."""
    folder = cache()
    return [_entry(harness(name), folder) for name in names()]


async def bring(wanted: Harness) -> Path:
    """Install a harness, telling how it goes; return its bundle. Raises HarnessMissing."""
    out, folder = console(), cache()
    if is_installed(wanted, folder):
        out.print(f"{wanted.name} {wanted.version} is installed" if wanted.package else f"{wanted.name} comes with Evener")
        return await wanted.install(folder)
    began = time.monotonic()
    with out.status(f"{wanted.name} {wanted.version}: installing {wanted.package}"):
        bundle = await wanted.install(folder)
        size = await asyncio.to_thread(_megabytes, bundle)
    out.print(f"{wanted.name} {wanted.version} installed in {time.monotonic() - began:.0f} s: {size:.0f} MB in {bundle}", soft_wrap=True)
    return bundle


def is_installed(wanted: Harness, folder: Path) -> bool:
    """Return whether nothing needs to be brought."""
    return wanted.package is None or bundle_of(wanted, folder).is_dir()


def table(found: Sequence[Entry]) -> Table:
    """Return the list as people read it."""
    shown = Table("harness", "version", "dialects", "installed", "tools", "", box=None, header_style="bold", pad_edge=False)
    for entry in found:
        installed, tools = ("yes" if holds else "no" for holds in (entry.installed, entry.has_tools))
        shown.add_row(entry.name, entry.version, "\n".join(entry.dialects), installed, tools, entry.summary)
    return shown


def _entry(found: Harness, folder: Path) -> Entry:
    return Entry(
        name=found.name,
        version=found.version,
        dialects=found.dialects,
        installed=is_installed(found, folder),
        has_tools=found.has_tools,
        package=found.package,
        summary=found.summary,
    )


def _megabytes(folder: Path) -> float:
    return sum(path.lstat().st_size for path in folder.rglob("*")) / 1e6
