"""Opens the log for reading only, also while other processes write: it makes no topic, holds no lock and writes nothing."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from evener.bus.embedded_reader import open_embedded_reader
from evener.bus.kafka_security import PLAINTEXT, KafkaSecurity
from evener.bus.open import EMBEDDED, kafka_address
from evener.bus.port import LogReader


@asynccontextmanager
async def open_reader(url: str, *, security: KafkaSecurity = PLAINTEXT) -> AsyncIterator[LogReader]:
    """Open what `open_bus` opens, to read it. Raises ConfigError for another URL, and BusError if no Evener ever wrote there.

    `security`: of connections to Kafka.
    """
    async with _opened(url, security) as reader:
        yield reader


def _opened(url: str, security: KafkaSecurity) -> AbstractAsyncContextManager[LogReader]:
    if url.startswith(EMBEDDED):
        return open_embedded_reader(Path(url.removeprefix(EMBEDDED)))
    servers, prefix = kafka_address(url)
    from evener.bus.kafka import open_kafka  # noqa: PLC0415 - aiokafka takes a while to import

    return open_kafka(servers, prefix=prefix, days=None, security=security)
