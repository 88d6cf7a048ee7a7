"""Opens the bus that a URL names."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from evener.bus.embedded import open_embedded
from evener.bus.kafka_security import OPEN, KafkaSecurity
from evener.bus.port import Bus
from evener.proto.errors import ConfigError
from evener.proto.topics import TOPICS

EMBEDDED: Final = "embedded:"
KAFKA: Final = re.compile(r"kafka://(?P<servers>[^/?,\s]+:\d+(,[^/?,\s]+:\d+)*)/?(\?prefix=(?P<prefix>[A-Za-z0-9._-]+))?")
"""The URL of a Kafka bus. Its prefix precedes every name there, so that several deployments can share a cluster."""


@asynccontextmanager
async def open_bus(url: str, *, partitions: int = 4, security: KafkaSecurity = OPEN) -> AsyncIterator[Bus]:
    """Open `embedded:FOLDER` or `kafka://HOST:PORT[,HOST:PORT][?prefix=NAME]`. Raises ConfigError for another URL, BusError.

    `security`: of connections to Kafka.
    """
    if url.startswith(EMBEDDED):
        async with open_embedded(Path(url.removeprefix(EMBEDDED)), TOPICS, partitions) as embedded:
            yield embedded
    elif named := KAFKA.fullmatch(url):
        from evener.bus.kafka import open_kafka  # noqa: PLC0415 - aiokafka takes a while to import, and `evener up` needs none of it

        async with open_kafka(named["servers"], TOPICS, partitions, named["prefix"] or "", security=security) as kafka:
            yield kafka
    else:
        msg = f"bus {url} is neither {EMBEDDED}FOLDER nor kafka://HOST:PORT[,HOST:PORT][?prefix=NAME]"
        raise ConfigError(msg)
