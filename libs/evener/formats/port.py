"""What every format offers: to write groups into a file."""

from collections.abc import Callable, Iterable, Mapping
from typing import IO, Protocol

from msgspec import Struct

from evener.formats.neutral import NO_REGRADES
from evener.proto.trajectories import GroupMerged


class WrittenRows(Struct, frozen=True, kw_only=True):
    """What a format wrote."""

    rows: int
    refused: dict[str, str] = {}
    """Why a group is not in the file, by group id. A format of a trainer refuses what the trainer would train wrongly."""


class Format(Protocol):
    """A format has a name in the registry."""

    def write(self, groups: Iterable[GroupMerged], sink: IO[bytes], regrades: Mapping[str, str] = NO_REGRADES) -> WrittenRows:
        """Write the rows of the groups. Raises RowsRefused.

        `regrades`: the name of the regrade whose reward a session has.
        """
        ...


class NeutralFile(Struct, frozen=True):
    """A format of the neutral rows, which refuses no group."""

    writer: Callable[[Iterable[GroupMerged], IO[bytes], Mapping[str, str]], int]
    """Writes all rows of groups; returns their number."""

    def write(self, groups: Iterable[GroupMerged], sink: IO[bytes], regrades: Mapping[str, str] = NO_REGRADES) -> WrittenRows:
        """Write all rows of the groups. Raises RowsRefused."""
        return WrittenRows(rows=self.writer(groups, sink, regrades))
