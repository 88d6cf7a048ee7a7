"""The bus's URL: its faults are reported before anything is opened."""

import pytest

from evener.bus.open import KAFKA_URL, open_bus
from evener.proto.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "servers", "prefix"),
    [
        ("kafka://broker:9092", "broker:9092", None),
        ("kafka://one:9092,two:9092/", "one:9092,two:9092", None),
        ("kafka://[::1]:9092?prefix=team.a-", "[::1]:9092", "team.a-"),
    ],
)
def test_url_of_a_cluster(url: str, servers: str, prefix: str | None) -> None:
    """Brokers, and the prefix of all names there."""
    named = KAFKA_URL.fullmatch(url)

    assert named
    assert (named["servers"], named["prefix"]) == (servers, prefix)


@pytest.mark.parametrize(
    "url",
    ["redis://broker", "kafka://", "kafka://broker", "kafka://broker:x", "kafka://broker:9092?prefx=a", "kafka://broker:9092?prefix=a/b"],
)
async def test_url_of_no_bus_is_refused(url: str) -> None:
    """By name, with the forms that there are."""
    with pytest.raises(ConfigError, match="is neither embedded:FOLDER nor kafka://HOST:PORT"):
        async with open_bus(url):
            pass
