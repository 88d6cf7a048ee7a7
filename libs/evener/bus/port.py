"""The bus port: a durable, partitioned log with transactions. Two implementations, one contract suite.

`embedded` (SQLite, one process) and `kafka` (aiokafka) behave alike in everything that is stated here. What a service may rely on:

- Records of one key are in one partition, in the order of their commits. Offsets in a partition rise and may have gaps.
- A write is durable when its `await` returns (embedded: synced to disk; Kafka: acknowledged by all in-sync replicas).
- Readers see committed records only, a moment after the commit returned (Kafka writes its markers then). After `producer(id)`
  returned, everything that the id's earlier holder committed can be read.
- A transactional id has one holder: `producer(id)` fences the earlier one for good. A fenced producer is thrown away.
- `Producer.commit` is atomic: all its records and offsets, or none. It returns only when its own records are committed, and
  raises otherwise, whatever other commits shared its transaction. A record that is too large fails its own commit alone.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final, Protocol

from msgspec import Struct

from evener.proto.errors import EvenerError, Recoverable

MAX_RECORD_BYTES: Final = 1_000_000
"""The limit of value, key and headers of one record. Kafka's default limit is 1 MiB."""


class BusError(EvenerError):
    """Look at the bus: the broker's log, or the disk under the embedded file."""


class NotCommitted(BusError, Recoverable):
    """Nothing of it is in the log. Check the broker, or the free space on the disk of the embedded file, and try again."""


class BusUnreachable(BusError, Recoverable):
    """No broker answers. Check its address, and that it runs."""


class Fenced(BusError):
    """Another instance took over this transactional id. This one must drop its state and may not write under it again."""


class RecordTooLarge(BusError):
    """A record is above the bus's limit. Move its bulk fields to the blob store before sending it."""


class BusHeld(BusError):
    """Another process has this bus file open. Stop it, or give this process another state folder."""


class Header(Struct, frozen=True, array_like=True):
    """One record header."""

    name: str
    value: bytes


class Outgoing(Struct, frozen=True, kw_only=True):
    """A record to write."""

    topic: str
    key: str
    value: bytes | None
    """The value. None: the key is deleted at the next compaction (compacted topics)."""
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    """The partition. None: by the key's hash (murmur2, as Kafka's default partitioner)."""


class Record(Struct, frozen=True, kw_only=True):
    """A committed record."""

    topic: str
    partition: int
    offset: int
    key: str
    value: bytes | None
    headers: tuple[Header, ...]
    timestamp_ms: int


class Position(Struct, frozen=True, order=True):
    """The position of a record."""

    topic: str
    partition: int
    offset: int


class GroupOffset(Struct, frozen=True):
    """Group `group` continues at `position`: the next record to read, not the last one read."""

    group: str
    position: Position


def nothing_held() -> None:
    """Return that no record is held: what was handed out is done when the next is asked for."""


class Reader(Struct, frozen=True, eq=False):
    """A follower whose lag is measured."""

    name: str
    """The service that reads."""
    held: Callable[[], int | None] = nothing_held
    """Returns the lowest offset that is still worked on although later records were asked for. None: there is none."""
    groups: tuple[str, ...] = ()
    """The groups whose offsets in the partition this follower keeps."""


class ReaderLag(Struct, frozen=True, kw_only=True):
    """How far a follower is behind the end of its partition."""

    reader: str
    topic: str
    partition: int
    records: int
    """The end minus the position. On Kafka it counts the markers of transactions that stand between records."""


class Producer(Protocol):
    """The only writer under a transactional id."""

    @property
    def transactional_id(self) -> str: ...

    @property
    def epoch(self) -> int:
        """A number that is higher for each later holder of the id."""
        ...

    async def commit(self, records: Sequence[Outgoing], offsets: Sequence[GroupOffset] = ()) -> tuple[Position, ...]:
        """Commit records and offsets together; return the position of each record. Concurrent commits may share a transaction.

        Raises Fenced, NotCommitted, RecordTooLarge. A cancelled commit may or may not have happened.
        """
        ...

    async def aclose(self) -> None:
        """Finish the work in progress and release the id."""
        ...


class Membership(Protocol):
    """A member of a consumer group that only divides partitions. It reads the partitions that it owns with `follow`."""

    @property
    def partitions(self) -> frozenset[int]:
        """The last assignment. While the group rebalances, it stays valid until the next one is known."""
        ...

    @property
    def dividing(self) -> bool:
        """Whether the group rebalances, so that the next assignment may differ."""
        ...

    async def changed(self) -> frozenset[int]:
        """Wait for the next assignment and return it. The first call returns the first assignment."""
        ...


class LogReader(Protocol):
    """The reading half of a `Bus`. `open_reader` opens it, also while other processes write."""

    def partitions_of(self, topic: str) -> int:
        """Return the number of partitions of a topic."""
        ...

    async def end(self, topic: str, partition: int) -> int:
        """Return the offset after the last committed record."""
        ...

    async def beginning(self, topic: str, partition: int) -> int:
        """Return the offset of the first record that is still kept."""
        ...

    def read(self, topic: str, partition: int, start: int = 0) -> AsyncIterator[Record]:
        """Read committed records from `start` to the end at the time of the call, then stop."""
        ...


class Bus(LogReader, Protocol):
    """The log. Opened by `open_embedded` or `open_kafka`, both async context managers."""

    def partition_of(self, topic: str, key: str) -> int:
        """Return the partition of the records with this key."""
        ...

    async def send(self, records: Sequence[Outgoing]) -> tuple[Position, ...]:
        """Append outside any transaction (idempotent, durable when it returns). Raises NotCommitted, RecordTooLarge.

        Several records are not atomic. A record that was not acknowledged may still be in the log, so a caller that sends it again must
        tolerate a repeat.
        """
        ...

    async def producer(self, transactional_id: str) -> Producer:
        """Become the only writer under this id, fencing the earlier one, whose open transaction is aborted before this returns."""
        ...

    def follow(self, topic: str, partition: int, start: int, reader: Reader | None = None) -> AsyncIterator[Sequence[Record]]:
        """Read committed records from `start` for ever, in batches as they come (never empty).

        A batch counts as worked on when the next is asked for. `reader` None: its lag is not measured.
        """
        ...

    async def renew_offsets(self) -> None:
        """Commit again what the groups of named followers have committed: Kafka forgets an offset that nobody commits for some days.

        Raises BusError. An offset may go back by what its owner commits at the same moment.
        """
        ...

    async def lags(self) -> Sequence[ReaderLag]:
        """Return the lag of every follower of this process that has a name. Raises BusError, BusUnreachable."""
        ...

    async def last_values(self, topic: str, partition: int) -> dict[str, Record]:
        """Return the last record of each key; deleted keys are absent. Raises ValueError for a topic that is not compacted."""
        ...

    async def committed(self, group: str, topic: str, partition: int) -> int | None:
        """Return the offset at which the group continues. None: it has never committed there."""
        ...

    async def commit_offsets(self, offsets: Iterable[GroupOffset]) -> None:
        """Commit offsets of a group without records (at-least-once readers)."""
        ...

    def join(self, group: str, topic: str, name: str) -> AbstractAsyncContextManager[Membership]:
        """Become a member of a group that divides the partitions of a topic. The end of the block leaves the group at once.

        `name`: the member's name in the group, which no other living member has. A member that was killed and comes back under its name
        before the group has noticed gets what it had, and nothing moves.
        """
        ...

    async def surplus(self) -> dict[str, int]:
        """Return the topics that have got more partitions than this bus uses, each with their number. All records stay in those it uses."""
        ...

    async def check(self) -> None:
        """Return if the log can be reached and written; otherwise raise BusUnreachable or NotCommitted. Used for readiness."""
        ...
