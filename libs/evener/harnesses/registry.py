"""Harnesses by name: each folder beside this file is one, and exports `HARNESS`."""

import difflib
import importlib
from pathlib import Path
from typing import Final, cast

from evener.harnesses.port import Harness, HarnessError

FOLDER: Final = Path(__file__).parent


def names() -> tuple[str, ...]:
    """Return the names of all harnesses, sorted."""
    return tuple(sorted(path.parent.name for path in FOLDER.glob("*/__init__.py")))


def harness(name: str) -> Harness:
    """Return the harness of this name. Raises HarnessError listing those that there are."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), n=1)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        msg = f"unknown harness {name!r} (known: {', '.join(names())}){meant}"
        raise HarnessError(msg)
    return cast("Harness", importlib.import_module(f"evener.harnesses.{name}").HARNESS)
