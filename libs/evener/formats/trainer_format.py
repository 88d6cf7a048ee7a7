"""A trainer's format: from a delivered group to the trainer's own records, counted. No trainer is imported.

A record has exactly the field names of the trainer's own type; arrays are numpy where the trainer wants tensors, lists where it wants
lists. As a file, a format is JSON lines: a record each.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from evener.formats.jsonl import line
from evener.formats.neutral import NO_REGRADES, NeutralRow, RowsRefused
from evener.formats.port import WrittenRows
from evener.formats.trainable import (
    ANYTHING,
    GroupIncomplete,
    GroupRefused,
    SessionWithoutRows,
    SeveralRows,
    Takes,
    TrainGroup,
    train_group,
)
from evener.proto.trajectories import GroupMerged

MIN_COMPARED: Final = 2
"""A trainer that computes advantages gives a session alone its bare reward, or nothing."""


class Emitted(Struct, frozen=True, kw_only=True, eq=False):
    """A group as the records of a trainer, with where its trainable tokens went: `tokens + left_out` is what was delivered."""

    records: list[Any]
    """Empty: nothing of the group can be trained."""
    group: TrainGroup
    tokens: int
    """The number of tokens that the trainer will train, as it reads the records."""
    left_out: int
    """The number of trainable tokens in rows that were left out as too long."""
    rows: int


class TrainerFormat(Struct, frozen=True, kw_only=True):
    """How one trainer takes groups."""

    name: str
    trainer: str
    """The trainer, its version, and the type of a record."""
    records: Callable[[TrainGroup], list[Any]]
    """Returns a group's records. Pure. It is given no group without a trainable token."""
    trained: Callable[[Any], int]
    """Returns how many tokens of a record the trainer trains, by the trainer's own fields."""
    once: str
    """The trainer's settings by which a session of several rows counts once."""
    several_rows: bool = True
    """Whether a session may have several rows."""
    own_mean: bool = False
    """Whether the trainer computes the group's mean itself, from the rows. A session without rows would be missing in it."""
    whole_groups: bool = False
    """Whether the trainer needs all sessions that it asked for."""

    def emit(self, event: GroupMerged, takes: Takes = ANYTHING, *, number: int = 0, regrades: Mapping[str, str] = NO_REGRADES) -> Emitted:
        """Return the records of a group. Raises GroupRefused; RowsRefused if a trainable token was lost or doubled.

        `number`: see `TrainGroup.number`.
        """
        group = train_group(event, takes, number=number, regrades=regrades)
        records = list[Any]()
        if group.tokens:
            self.check(group)
            records = self.records(group)
        tokens = sum(map(self.trained, records))
        if tokens != group.tokens:
            msg = f"group {group.group_id} has {group.tokens} trainable tokens, and {tokens} as {self.name}"
            raise RowsRefused(msg)
        left_out = sum(session.left_out for session in group.sessions)
        return Emitted(records=records, group=group, tokens=tokens, left_out=left_out, rows=sum(1 for _ in group.rows()))

    def check(self, group: TrainGroup) -> None:
        """Raise GroupRefused for a group that this trainer would train wrongly."""
        if (self.whole_groups and len(group.sessions) != group.size) or (self.own_mean and len(group.sessions) < MIN_COMPARED):
            msg = f"group {group.group_id} has {len(group.sessions)} of {group.size} sessions"
            raise GroupIncomplete(msg)
        for session in group.sessions:
            if self.own_mean and not session.rows:
                msg = f"session {session.session_id} has a reward and no row"
                raise SessionWithoutRows(msg)
            if not self.several_rows and len(session.rows) > 1:
                msg = f"session {session.session_id} has {len(session.rows)} rows"
                raise SeveralRows(msg)

    def write(self, groups: Iterable[GroupMerged], sink: IO[bytes], regrades: Mapping[str, str] = NO_REGRADES) -> WrittenRows:
        """Write the records of groups as JSON lines. Groups that this trainer would train wrongly are refused by name."""
        rows, refused = 0, dict[str, str]()
        for number, group in enumerate(groups):
            try:
                emitted = self.emit(group, number=number, regrades=regrades)
            except GroupRefused as why:
                refused[group.group_id] = str(why)
                continue
            sink.writelines(map(line, emitted.records))
            rows += emitted.rows
        return WrittenRows(rows=rows, refused=refused)


INT64: Final = np.dtype("<i8")


def int64s(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return integers as trainers' tensors have them."""
    return values.astype(INT64)


def trained_logprobs(row: NeutralRow) -> NDArray[np.float32]:
    """Return float32[T]: the logprobs of the trainable tokens, 0.0 elsewhere."""
    return np.where(row["loss_mask"] == 1, row["logprobs"], np.float32(0.0)).astype(np.float32)


def oldest_version(row: NeutralRow) -> int:
    """Return the oldest policy version of a trainable token."""
    return int(row["versions"][row["loss_mask"] == 1].min())


def newest_version(row: NeutralRow) -> int:
    """Return the newest policy version of a trainable token."""
    return int(row["versions"][row["loss_mask"] == 1].max())


def trained_spans(row: NeutralRow) -> list[tuple[int, int]]:
    """Return where runs of trainable tokens begin and end (exclusive)."""
    edges = np.flatnonzero(np.diff(row["loss_mask"] == 1, prepend=False, append=False))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
