"""The registry of trainer formats. A new format is a module with `write`, and its name here, which is also the extension of its files."""

import importlib
from collections.abc import Iterable, Mapping
from typing import IO, Final, Protocol, cast

from evener.formats.neutral import NO_REGRADES
from evener.proto.trajectories import GroupMerged

FORMATS: Final = ("jsonl", "parquet")


class Format(Protocol):
    """A module of this package that writes groups, by the rows of `evener.formats.neutral`."""

    def write(self, groups: Iterable[GroupMerged], sink: IO[bytes], regrades: Mapping[str, str] = NO_REGRADES) -> int:
        """Write all rows of the groups; return their number. Raises RowsRefused.

        `regrades`: the name of the regrade whose reward a session has.
        """
        ...


def format_named(name: str) -> Format:
    """Return the format of this name, imported on demand: a format may need an extra."""
    return cast("Format", importlib.import_module(f"evener.formats.{name}"))
