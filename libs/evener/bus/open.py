"""Opens the bus that a URL names."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from evener.bus.embedded import open_embedded
from evener.bus.kafka_security import PLAINTEXT, KafkaSecurity
from evener.bus.port import Bus
from evener.proto.errors import ConfigError
from evener.proto.topics import DEFAULT_RETENTION, TOPICS, RetentionDays

EMBEDDED: Final = "embedded:"
KAFKA_URL: Final = re.compile(r"kafka://(?P<servers>[^/?,\s]+:\d+(,[^/?,\s]+:\d+)*)/?(\?prefix=(?P<prefix>[A-Za-z0-9._-]+))?")
"""The URL of a Kafka bus. Its prefix precedes every name there, so that several deployments can share a cluster."""


@asynccontextmanager
async def open_bus(
    url: str, *, partitions: int | None = None, days: RetentionDays = DEFAULT_RETENTION, security: KafkaSecurity = PLAINTEXT
) -> AsyncIterator[Bus]:
    """Open `embedded:FOLDER` or `kafka://HOST:PORT[,HOST:PORT][?prefix=NAME]`. Raises ConfigError for another URL, BusError.

    `partitions` None: as many as there are; a new bus gets the default of its kind. `days`: how long new topics of a Kafka keep records.
    `security`: of connections to Kafka.
    """
    if url.startswith(EMBEDDED):
        async with open_embedded(Path(url.removeprefix(EMBEDDED)), TOPICS, partitions) as embedded:
            yield embedded
    else:
        servers, prefix = kafka_address(url)
        from evener.bus.kafka import open_kafka  # noqa: PLC0415 - aiokafka takes a while to import, and `evener up` needs none of it

        async with open_kafka(servers, TOPICS, partitions, prefix, days=days, security=security) as kafka:
            yield kafka


def kafka_address(url: str) -> tuple[str, str]:
    """Return the servers and the prefix in the URL of a Kafka bus. Raises ConfigError."""
    named = KAFKA_URL.fullmatch(url)
    if named is None:
        msg = f"bus {url} is neither {EMBEDDED}FOLDER nor kafka://HOST:PORT[,HOST:PORT][?prefix=NAME]"
        raise ConfigError(msg)
    return named["servers"], named["prefix"] or ""
