"""The registry of harnesses. Each folder beside this file exports one as `HARNESS`; an installed package adds its own by an entry point."""

import difflib
import importlib
import importlib.metadata
from functools import cache
from pathlib import Path
from typing import Final, cast

from evener.harnesses.port import Harness, HarnessError
from evener.harnesses.quirks_file import check_patterns

BUNDLED: Final = Path(__file__).parent
ENTRY_POINTS: Final = "evener.harnesses"
"""The group of entry points that name harnesses."""
NO_HARNESS: Final = "none"
"""The name in the spec of a recording of an undescribed program."""
HARNESS_MEMBERS: Final = (*Harness.__annotations__, "check", "first_prompt_bytes", "install", "launch", "exit_meaning")


@cache
def own_names() -> tuple[str, ...]:
    """Return the names of the harnesses that come with Evener, sorted."""
    return tuple(sorted(path.parent.name for path in BUNDLED.glob("*/__init__.py")))


def names() -> tuple[str, ...]:
    """Return the names of all harnesses, sorted. Raises HarnessError if two have the same name."""
    return tuple(sorted({*own_names(), *_added()}))


def harness(name: str) -> Harness:
    """Return the harness of this name. Raises HarnessError, which lists the known ones."""
    if name in own_names():
        return cast("Harness", importlib.import_module(f"evener.harnesses.{name}").HARNESS)
    added = _added()
    if name not in added:
        known = names()
        near = difflib.get_close_matches(name, known, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        msg = f"unknown harness {name!r} (known: {', '.join(known)}){meant}"
        raise HarnessError(msg)
    return _loaded(added[name])


@cache
def installed() -> tuple[importlib.metadata.EntryPoint, ...]:
    """Return the entry points of installed packages, read at the first call: it looks at every package, so services call it in a thread."""
    return tuple(importlib.metadata.entry_points(group=ENTRY_POINTS))


def _added() -> dict[str, importlib.metadata.EntryPoint]:
    """Return the harnesses that installed packages add."""
    added: dict[str, importlib.metadata.EntryPoint] = {}
    for entry in installed():
        other = added.get(entry.name)
        if entry.name in own_names() or (other is not None and other.value != entry.value):
            whose = "Evener itself" if other is None else _package(other)
            msg = f"harness {entry.name!r} of {_package(entry)} has the name of one of {whose}: uninstall one of them, or rename it"
            raise HarnessError(msg)
        added[entry.name] = entry
    return added


def _loaded(entry: importlib.metadata.EntryPoint) -> Harness:
    where = f"harness {entry.name!r} of {_package(entry)} ({entry.value})"
    try:
        found = entry.load()
    except Exception as cause:  # a third-party package may raise anything
        msg = f"{where} cannot be loaded: {cause!r}"
        raise HarnessError(msg) from cause
    if lacking := [needed for needed in HARNESS_MEMBERS if not hasattr(found, needed)]:
        msg = f"{where} is not a harness: it has no {', '.join(lacking)}"
        raise HarnessError(msg)
    if found.name != entry.name:
        msg = f"{where} calls itself {found.name!r}: its entry point must have that name"
        raise HarnessError(msg)
    check_patterns(found.quirks, where)
    return cast("Harness", found)


def _package(entry: importlib.metadata.EntryPoint) -> str:
    return f"package {entry.dist.name}" if entry.dist is not None else "an unknown package"
