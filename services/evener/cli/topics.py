"""`evener topics`: compares Kafka's topics and brokers with what Evener needs, and applies the difference."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from cyclopts import App

from evener.service.config import ServiceConfig
from evener.service.config_app import Configs, config_app

if TYPE_CHECKING:
    from evener.bus.kafka_layout import Difference, Layout

DIFF_HELP = """Show what differs from what Evener wants: topics, their settings, and the brokers' own. Exits with 1 if anything does.

Changes nothing, and needs no more rights than Describe and DescribeConfigs on topics and cluster. Options, environment and file are those
of the services: the bus, the number of partitions, and how long records are kept."""
APPLY_HELP = """Make missing topics and set what differs. Exits with 1 if something is left that only the cluster's operator can mend.

The number of partitions of a topic is never changed, because keys would move."""


def diff(configs: Configs) -> int:
    """Print the differences."""
    return asyncio.run(_told(configs["topics"], lambda layout: layout.differences()))


def apply(configs: Configs) -> int:
    """Make missing topics, set what differs, and print the differences that are left."""
    return asyncio.run(_told(configs["topics"], lambda layout: layout.apply()))


async def _told(config: ServiceConfig, work: "Callable[[Layout], Awaitable[list[Difference]]]") -> int:
    from evener.bus.kafka_layout import open_layout
    from evener.bus.open import EMBEDDED, kafka_address
    from evener.cli.output import tell_each

    if config.bus.startswith(EMBEDDED):
        print("The embedded bus has no settings: it makes its topics itself, and keeps every record.")
        return 0
    servers, prefix = kafka_address(config.bus)
    async with open_layout(servers, prefix, config.partitions, config.days, config.kafka_security) as layout:
        left = await work(layout)
    if not left:
        print("Topics and brokers have the settings that Evener needs.")
        return 0
    tell_each(
        left,
        ("where", "what", "has", "wanted", "to mend it"),
        lambda one: (one.subject, one.setting, one.has or "nothing", one.wanted, one.mend or "evener topics apply"),
    )
    return 1


app = App(
    name="topics", help="Compare Kafka's topics and brokers with what Evener needs, or apply the difference.", result_action="return_value"
)
for command, help_text, run in (("diff", DIFF_HELP, diff), ("apply", APPLY_HELP, apply)):
    subcommand = config_app(command, {"topics": ServiceConfig}, run)
    subcommand.help = help_text
    app.command(subcommand)
