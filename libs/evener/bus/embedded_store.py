"""The SQLite file of the embedded bus: its tables, and every statement that runs on them. Blocking; called from threads.

A record's row id is its log's number times 2^40 plus its offset, so that a log is one range of the table: appending and reading touch
neighbouring pages, and no index is needed.
"""

import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from evener.bus.partition_count import settled
from evener.bus.port import BusError, Header, Outgoing, Record
from evener.bus.readings import READ_RECORDS
from evener.proto.topics import TOPICS, Topic, TopicSpec

BUS_FILE: Final = "bus.sqlite"
SCHEMA_VERSION: Final = 1
EMBEDDED_PARTITIONS: Final = 4
"""The number of partitions of a new bus."""
OFFSET_BITS: Final = 40
READ_BYTES: Final = 4 * 1024 * 1024
"""A read stops at whichever limit comes first, and always has at least one record."""

_TABLES: Final = """
CREATE TABLE log (number INTEGER PRIMARY KEY, topic TEXT NOT NULL, partition INTEGER NOT NULL, UNIQUE (topic, partition));
CREATE TABLE record (id INTEGER PRIMARY KEY, key TEXT NOT NULL, value BLOB, headers BLOB, timestamp_ms INTEGER NOT NULL);
CREATE TABLE latest (log INTEGER, key TEXT, id INTEGER NOT NULL, PRIMARY KEY (log, key)) WITHOUT ROWID;
CREATE TABLE group_offset (name TEXT, log INTEGER, offset INTEGER NOT NULL, PRIMARY KEY (name, log)) WITHOUT ROWID;
CREATE TABLE holder (transactional_id TEXT PRIMARY KEY, epoch INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE checked (id INTEGER PRIMARY KEY CHECK (id = 0), at_ms INTEGER NOT NULL);
"""

_headers: Final = msgspec.msgpack.Decoder(tuple[Header, ...])


class Log(Struct, frozen=True):
    """One partition of one topic."""

    number: int
    topic: str
    partition: int
    compacted: bool

    @property
    def first_id(self) -> int:
        """The row id of offset 0."""
        return self.number << OFFSET_BITS


def connect(folder: Path) -> sqlite3.Connection:
    """Open the file in `folder`, synced at every commit. Raises BusError for a file of another program."""
    connection = sqlite3.connect(folder / BUS_FILE, isolation_level=None, check_same_thread=False, cached_statements=256)
    return _checked(connection, folder, "PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL")


def connect_to_read(folder: Path) -> sqlite3.Connection:
    """Open the file in `folder`, which is not created or changed. Raises BusError for a file of another program, sqlite3.Error."""
    uri = f"{(folder / BUS_FILE).absolute().as_uri()}?mode=ro"
    return _checked(sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False), folder)


def _checked(connection: sqlite3.Connection, folder: Path, *settings: str) -> sqlite3.Connection:
    try:
        for setting in settings:
            connection.execute(setting)
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        raise
    except sqlite3.DatabaseError as cause:
        connection.close()
        msg = f"{folder / BUS_FILE} is not a bus ({cause})"
        raise BusError(msg) from cause
    if version not in (0, SCHEMA_VERSION):
        connection.close()
        msg = f"{folder / BUS_FILE} has schema {version}, this version of Evener reads {SCHEMA_VERSION}"
        raise BusError(msg)
    return connection


def prepare(connection: sqlite3.Connection, topics: Mapping[Topic, TopicSpec], partitions: int | None) -> dict[tuple[str, int], Log]:
    """Create missing logs, compact, and return all logs. Raises ConfigError if a topic has another number of partitions."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    connection.execute("BEGIN IMMEDIATE")
    if version == 0:
        for statement in _TABLES.split(";")[:-1]:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    found = dict(connection.execute("SELECT topic, count(*) FROM log GROUP BY topic").fetchall())
    count = settled(topics.values(), found, wanted=partitions, agreed=None, default=EMBEDDED_PARTITIONS)
    logs = {}
    for spec in topics.values():
        for log in _logs_of(connection, spec, count if spec.partitioned else 1, found.get(spec.name, 0)):
            logs[log.topic, log.partition] = log
    for log in logs.values():
        if log.compacted:
            _compact(connection, log)
    connection.execute("COMMIT")
    return logs


def known_logs(connection: sqlite3.Connection) -> list[Log]:
    """Return the logs that the file has."""
    rows = connection.execute("SELECT number, topic, partition FROM log")
    return [Log(number, topic, partition, topic in TOPICS and TOPICS[Topic(topic)].compacted) for number, topic, partition in rows]


def _logs_of(connection: sqlite3.Connection, spec: TopicSpec, partitions: int, there: int) -> list[Log]:
    for partition in range(there, partitions):
        connection.execute("INSERT INTO log (topic, partition) VALUES (?, ?)", (spec.name, partition))
    rows = connection.execute("SELECT number, partition FROM log WHERE topic = ?", (spec.name,))
    return [Log(number, str(spec.name), partition, spec.compacted) for number, partition in rows]


def _compact(connection: sqlite3.Connection, log: Log) -> None:
    connection.execute(
        "DELETE FROM record WHERE id >= ? AND id < ? AND id NOT IN (SELECT id FROM latest WHERE log = ?)",
        (log.first_id, log.first_id + (1 << OFFSET_BITS), log.number),
    )


def end(connection: sqlite3.Connection, log: Log) -> int:
    """Return the offset after the last record. The last record of a log is never compacted away, so offsets are not used twice."""
    past = log.first_id + (1 << OFFSET_BITS)
    (last,) = connection.execute("SELECT max(id) FROM record WHERE id >= ? AND id < ?", (log.first_id, past)).fetchone()
    return 0 if last is None else int(last) - log.first_id + 1


def beginning(connection: sqlite3.Connection, log: Log) -> int:
    """Return the offset of the first record, or the end of an empty log."""
    past = log.first_id + (1 << OFFSET_BITS)
    (first,) = connection.execute("SELECT min(id) FROM record WHERE id >= ? AND id < ?", (log.first_id, past)).fetchone()
    return 0 if first is None else int(first) - log.first_id


def append(connection: sqlite3.Connection, log: Log, offset: int, record: Outgoing) -> None:
    """Write a record at an offset."""
    identity = log.first_id + offset
    headers = msgspec.msgpack.encode(record.headers) if record.headers else None
    row = (identity, record.key, record.value, headers, time.time_ns() // 1_000_000)
    connection.execute("INSERT INTO record VALUES (?, ?, ?, ?, ?)", row)
    if log.compacted:
        connection.execute("INSERT OR REPLACE INTO latest VALUES (?, ?, ?)", (log.number, record.key, identity))


def read(connection: sqlite3.Connection, log: Log, start: int, stop: int) -> list[Record]:
    """Return the next records with start <= offset < stop, up to the limits of one read."""
    ids = (log.first_id + start, log.first_id + stop, READ_RECORDS)
    cursor = connection.execute(
        "SELECT id, key, value, headers, timestamp_ms FROM record WHERE id >= ? AND id < ? ORDER BY id LIMIT ?", ids
    )
    records: list[Record] = []
    size = 0
    for row in cursor:
        records.append(_record(log, row))
        size += len(row[2] or b"")
        if size >= READ_BYTES:
            break
    cursor.close()
    return records


def last_values(connection: sqlite3.Connection, log: Log) -> list[Record]:
    """Return the last record of each key that is not deleted, by offset."""
    rows = connection.execute(
        "SELECT record.id, record.key, value, headers, timestamp_ms FROM latest JOIN record ON record.id = latest.id"
        " WHERE log = ? AND value IS NOT NULL ORDER BY record.id",
        (log.number,),
    )
    return [_record(log, row) for row in rows]


def committed(connection: sqlite3.Connection, group: str, log: Log) -> int | None:
    """Return the offset at which a group continues."""
    row = connection.execute("SELECT offset FROM group_offset WHERE name = ? AND log = ?", (group, log.number)).fetchone()
    return None if row is None else int(row[0])


def commit_offset(connection: sqlite3.Connection, group: str, log: Log, offset: int) -> None:
    """Write the offset at which a group continues."""
    connection.execute("INSERT OR REPLACE INTO group_offset VALUES (?, ?, ?)", (group, log.number, offset))


def take_over(connection: sqlite3.Connection, transactional_id: str) -> int:
    """Return a new epoch of the id; every lower one is fenced."""
    sql = "INSERT INTO holder VALUES (?, 1) ON CONFLICT DO UPDATE SET epoch = epoch + 1 RETURNING epoch"
    rows = connection.execute(sql, (transactional_id,)).fetchall()
    return int(rows[0][0])


def epoch_of(connection: sqlite3.Connection, transactional_id: str) -> int:
    """Return the epoch of the id's holder."""
    (epoch,) = connection.execute("SELECT epoch FROM holder WHERE transactional_id = ?", (transactional_id,)).fetchone()
    return int(epoch)


def note_check(connection: sqlite3.Connection) -> None:
    """Write something harmless, which shows that the file can be written."""
    connection.execute("INSERT OR REPLACE INTO checked VALUES (0, ?)", (time.time_ns() // 1_000_000,))


def _record(log: Log, row: tuple[int, str, bytes | None, bytes | None, int]) -> Record:
    identity, key, value, headers, timestamp_ms = row
    return Record(
        topic=log.topic,
        partition=log.partition,
        offset=identity - log.first_id,
        key=key,
        value=value,
        headers=() if headers is None else _headers.decode(headers),
        timestamp_ms=timestamp_ms,
    )
