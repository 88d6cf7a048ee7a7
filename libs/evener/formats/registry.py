"""The registry of trainer formats. A new format is a module with `write`, and its name here, which is also the extension of its files."""

import importlib
from collections.abc import Iterable
from typing import IO, Final, Protocol, cast

from evener.proto.trajectories import GroupMerged

FORMATS: Final = ("jsonl", "parquet")


class Format(Protocol):
    """A module of this package that writes groups, by the rows of `evener.formats.neutral`."""

    def write(self, groups: Iterable[GroupMerged], sink: IO[bytes]) -> int:
        """Write all rows of the groups; return their number. Raises RowsRefused."""
        ...


def format_named(name: str) -> Format:
    """Return the format of this name, imported on demand: a format may need an extra."""
    return cast("Format", importlib.import_module(f"evener.formats.{name}"))
