"""Lists and installs harnesses."""

import asyncio
import importlib
import inspect
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn

from evener.cli.output import console, tell_each
from evener.harnesses.port import Harness, HarnessMissing, bundle_of
from evener.harnesses.registry import harness, names
from evener.sandbox_runner.config import Config
from evener.service.config_app import load
from evener.service.exits import complain


class HarnessEntry(Struct, frozen=True, kw_only=True):
    """A harness as the list shows it."""

    name: str
    version: str
    dialects: tuple[str, ...]
    installed: bool
    has_tools: bool
    package: str | None
    """The package that is installed. None: the harness comes with Evener."""
    summary: str


def cache() -> Path:
    """Return the folder in which this user's runners keep their bundles."""
    return Path(load(Config, (), os.environ, "sandbox_runner").harness_cache).expanduser()


def entries() -> list[HarnessEntry]:
    """Return all harnesses by name."""
    folder = cache()
    return [
        HarnessEntry(
            name=found.name,
            version=found.version,
            dialects=found.dialects,
            installed=is_installed(found, folder),
            has_tools=found.has_tools,
            package=found.package,
            summary=found.summary,
        )
        for found in map(harness, names())
    ]


def description(name: str) -> str:
    """Return the description of a harness and its options, which is its folder's docstring. Raises HarnessError if it is unknown."""
    found = harness(name)
    said = inspect.cleandoc(importlib.import_module(f"evener.harnesses.{name}").__doc__ or "")
    return f"{found.name} {found.version}, {found.package or 'comes with Evener'}\n\n{said}"


def packaged() -> tuple[str, ...]:
    """Return the names of all harnesses that do not come with Evener."""
    return tuple(name for name in names() if harness(name).package is not None)


async def bring_each(wanted: Sequence[Harness]) -> int:
    """Install harnesses, even if some fail; return the exit code."""
    failed = 0
    for one in wanted:
        try:
            await bring(one, console())
        except (HarnessMissing, OSError) as cause:
            complain(f"harness {one.name} cannot be installed: {cause}")
            failed = 1
    return failed


async def bring(wanted: Harness, out: Console) -> None:
    """Install a harness and show the progress. Raises HarnessMissing."""
    folder = cache()
    if is_installed(wanted, folder):
        await wanted.install(folder)
        out.print(f"{wanted.name} {wanted.version} is installed" if wanted.package else f"{wanted.name} comes with Evener")
        return
    out.print(f"{wanted.name} {wanted.version}: installing {wanted.package}", soft_wrap=True)
    began = time.monotonic()
    with _clock(out):
        bundle = await wanted.install(folder)
        size = await asyncio.to_thread(_megabytes, bundle)
    out.print(f"{wanted.name} {wanted.version} installed in {time.monotonic() - began:.0f} s: {size:.0f} MB in {bundle}", soft_wrap=True)


def is_installed(wanted: Harness, folder: Path) -> bool:
    """Return whether the harness needs no installation."""
    return wanted.package is None or bundle_of(wanted, folder).is_dir()


def tell_entries(found: Iterable[HarnessEntry], *, json: bool) -> None:
    """Write harnesses as a table or as JSON lines."""
    tell_each(found, ("harness", "version", "dialects", "installed", "tools", ""), _row, json=json)


def _row(entry: HarnessEntry) -> tuple[str, ...]:
    installed, tools = ("yes" if holds else "no" for holds in (entry.installed, entry.has_tools))
    return entry.name, entry.version, "\n".join(entry.dialects), installed, tools, entry.summary


def _clock(out: Console) -> Progress:
    """Return a progress display for a terminal that shows the elapsed time."""
    shown = Progress(SpinnerColumn(), TimeElapsedColumn(), console=out, transient=True, disable=not out.is_terminal)
    shown.add_task("", total=None)
    return shown


def _megabytes(folder: Path) -> float:
    return sum(path.lstat().st_size for path in folder.rglob("*")) / 1e6
