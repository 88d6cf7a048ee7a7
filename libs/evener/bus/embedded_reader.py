"""Reads the embedded bus's file beside the process that has it open, and after that: SQLite's readers disturb no writer."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TypeVar

from evener.bus import embedded_store as store
from evener.bus.embedded_store import Log
from evener.bus.port import BusError, Record

T = TypeVar("T")


@asynccontextmanager
async def open_embedded_reader(folder: Path) -> AsyncIterator["EmbeddedReader"]:
    """Open the bus in `folder` to read it. Raises BusError if there is none."""
    with closing(await asyncio.to_thread(_connect, folder)) as connection:
        yield EmbeddedReader(connection, folder)


def _connect(folder: Path) -> sqlite3.Connection:
    if not (folder / store.BUS_FILE).is_file():
        msg = f"there is no bus in {folder}"
        raise BusError(msg)
    try:
        return store.connect_to_read(folder)
    except sqlite3.Error as cause:
        msg = f"the bus in {folder} cannot be read: {cause}"
        raise BusError(msg) from cause


class EmbeddedReader:
    """A `LogReader` on one file."""

    def __init__(self, connection: sqlite3.Connection, folder: Path) -> None:
        self._connection = connection
        self._folder = folder
        self._logs = {(log.topic, log.partition): log for log in store.known_logs(connection)}
        self._partitions = Counter(topic for topic, _ in self._logs)

    def partitions_of(self, topic: str) -> int:
        return self._partitions[topic]

    async def end(self, topic: str, partition: int) -> int:
        log = self._logs[topic, partition]
        return await self._read(lambda connection: store.end(connection, log))

    async def beginning(self, topic: str, partition: int) -> int:
        log = self._logs[topic, partition]
        return await self._read(lambda connection: store.beginning(connection, log))

    async def read(self, topic: str, partition: int, start: int = 0) -> AsyncIterator[Record]:
        log, end = self._logs[topic, partition], await self.end(topic, partition)
        while start < end:
            records = await self._next(log, start, end)
            for record in records:
                yield record
            start = records[-1].offset + 1 if records else end

    async def _next(self, log: Log, start: int, end: int) -> list[Record]:
        return await self._read(lambda connection: store.read(connection, log, start, end))

    async def _read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return await asyncio.to_thread(query, self._connection)
        except sqlite3.Error as cause:
            msg = f"the bus in {self._folder} cannot be read: {cause}"
            raise BusError(msg) from cause
