"""The topics of a deployment on a real broker: their number of partitions, their settings, and what differs."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest
import structlog
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from prometheus_client import CollectorRegistry
from tests.support import commands
from tests.support.waiting import eventually, until

from evener.bus.kafka import KafkaBus, open_kafka
from evener.bus.kafka_layout import Difference, Layout, open_layout
from evener.bus.kafka_topics import find_topics
from evener.bus.port import Outgoing
from evener.proto.errors import ConfigError
from evener.proto.topics import TOPICS, RetentionDays, Topic
from evener.service.altered_topics import AlteredTopics
from evener.service.telemetry import metrics

pytestmark = pytest.mark.kafka

FEW = {name: TOPICS[name] for name in (Topic.SESSIONS, Topic.FLEET, Topic.BRIDGE_STATE)}
DAYS = RetentionDays()
SECONDS = 120.0
"""What a test waits for anything."""
KEYS = [f"s{number}" for number in range(64)]


@pytest.fixture
def prefix() -> str:
    return f"t{secrets.token_hex(4)}."


@asynccontextmanager
async def admin_of(servers: str) -> AsyncIterator[AIOKafkaAdminClient]:
    """Open an operator's client."""
    admin = AIOKafkaAdminClient(bootstrap_servers=servers)
    await admin.start()
    try:
        yield admin
    finally:
        await admin.close()


async def add_partitions(servers: str, count: int, *names: str) -> None:
    """Do what nobody should."""
    async with admin_of(servers) as admin:
        await admin.create_partitions({name: NewPartitions(count) for name in names})


async def set_of(servers: str, name: str, settings: Mapping[str, str]) -> None:
    async with admin_of(servers) as admin:
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, name, dict(settings))])


async def settings_of(servers: str, name: str) -> dict[str, str]:
    async with admin_of(servers) as admin:
        (described,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
    return {entry[0]: entry[1] for entry in described.resources[0][4]}


async def grown(bus: KafkaBus) -> dict[str, int]:
    """Wait until a bus notices that topics have more partitions than it uses."""
    return await until(bus.surplus)


async def differences(layout: Layout, subjects: int) -> list[Difference]:
    """Wait until so many subjects differ: a broker learns of an alteration a moment later."""
    return await until(layout.differences, lambda found: len({difference.subject for difference in found}) == subjects)


async def test_deployment_keeps_the_number_of_partitions_of_its_first_process(kafka_servers: str, prefix: str) -> None:
    """Whoever comes later needs no configuration, and another one is refused by name."""
    async with open_kafka(kafka_servers, FEW, 3, prefix) as bus:
        assert bus.partitions_of(Topic.SESSIONS) == 3
    async with open_kafka(kafka_servers, FEW, None, prefix) as bus:
        assert (bus.partitions_of(Topic.SESSIONS), bus.partitions_of(Topic.FLEET)) == (3, 1)
        assert await bus.surplus() == {}
    with pytest.raises(
        ConfigError, match=r"this deployment has 3 partitions, not 5: keys would move\. Set partitions = 3, or leave it out"
    ):
        async with open_kafka(kafka_servers, FEW, 5, prefix):
            pass


async def test_new_deployment_has_64_partitions(kafka_servers: str, prefix: str) -> None:
    """So many gateways can share the work of one without any thought."""
    async with open_kafka(kafka_servers, {Topic.SESSIONS: TOPICS[Topic.SESSIONS]}, None, prefix) as bus:
        assert bus.partitions_of(Topic.SESSIONS) == 64


async def test_topic_that_was_altered_is_refused_until_its_old_number_is_configured(kafka_servers: str, prefix: str) -> None:
    """Half of the keys in new places would split sessions; with the old number nothing moves, and the new partitions stay empty."""
    async with open_kafka(kafka_servers, FEW, 4, prefix) as bus:
        places = [bus.partition_of(Topic.SESSIONS, key) for key in KEYS]
        await add_partitions(kafka_servers, 8, prefix + Topic.SESSIONS)
        await grown(bus)
    with pytest.raises(
        ConfigError, match=rf"topic {prefix}sessions has 8 partitions now, and this deployment 4.* Set partitions = 4 to go on"
    ):
        async with open_kafka(kafka_servers, FEW, None, prefix):
            pass
    async with open_kafka(kafka_servers, FEW, 4, prefix) as bus:
        assert [bus.partition_of(Topic.SESSIONS, key) for key in KEYS] == places
        assert bus.partitions_of(Topic.SESSIONS) == 4


async def test_process_that_runs_while_a_topic_is_altered_continues_with_the_old_number(kafka_servers: str, prefix: str) -> None:
    """It notices and says so, and neither its records nor its group ever use a new partition."""
    registry = CollectorRegistry()
    async with open_kafka(kafka_servers, FEW, 2, prefix) as bus:
        altered = AlteredTopics(bus, metrics(registry), look_seconds=0.05)
        await add_partitions(kafka_servers, 6, prefix + Topic.SESSIONS, prefix + Topic.BRIDGE_STATE)

        assert await grown(bus) == {prefix + Topic.SESSIONS: 6, prefix + Topic.BRIDGE_STATE: 6}
        watching = asyncio.create_task(altered.watch())
        await eventually(lambda: len(altered.warnings()) >= 2)
        watching.cancel()
        assert altered.warnings()[0].startswith(f"topic {prefix}sessions has 6 partitions now: all records stay in the first ones")
        assert registry.get_sample_value("evener_topics_altered") == 2
        positions = await bus.send([Outgoing(topic=Topic.SESSIONS, key=key, value=b"v") for key in KEYS])
        committed = await (await bus.producer("gateway-0")).commit([Outgoing(topic=Topic.SESSIONS, key=key, value=b"v") for key in KEYS])
        assert {position.partition for position in (*positions, *committed)} == {0, 1}
        async with asyncio.timeout(SECONDS), bus.join("gateways", Topic.SESSIONS, "a") as member:
            while await member.changed() != frozenset({0, 1}):
                pass


async def test_topics_are_looked_for_without_being_made(kafka_servers: str, prefix: str) -> None:
    """Where the broker makes topics that somebody asks for by name, a look would leave a topic with the broker's own settings."""
    async with admin_of(kafka_servers) as admin:
        assert await find_topics(admin, [prefix + Topic.SESSIONS]) == {}
        assert prefix + Topic.SESSIONS not in await admin.list_topics()


async def test_topics_with_different_numbers_are_refused(kafka_servers: str, prefix: str) -> None:
    """Somebody made them by hand: the same key would stand in partitions of different numbers."""
    numbers = {prefix + Topic.SESSIONS: 3, prefix + Topic.BRIDGE_STATE: 2}
    async with admin_of(kafka_servers) as admin:
        await admin.create_topics([NewTopic(name, count, 1) for name, count in numbers.items()])
        await until(lambda: find_topics(admin, numbers), lambda found: found.keys() == numbers.keys())  # a leader may come later
    with pytest.raises(ConfigError, match=rf"topic {prefix}sessions has 3 partitions, and topic {prefix}state.bridge 2"):
        async with open_kafka(kafka_servers, FEW, None, prefix):
            pass


async def test_topic_that_would_lose_its_records_keeps_processes_from_starting(kafka_servers: str, prefix: str) -> None:
    """A state that is deleted after a week delivers groups again; the message says what to run."""
    async with open_kafka(kafka_servers, FEW, 2, prefix):
        pass
    name = prefix + Topic.BRIDGE_STATE
    await set_of(kafka_servers, name, {"cleanup.policy": "delete"})
    await until(lambda: settings_of(kafka_servers, name), lambda told: told["cleanup.policy"] == "delete")
    with pytest.raises(ConfigError, match=rf"topic {name} has cleanup.policy=delete, not compact: .*`evener topics apply`"):
        async with open_kafka(kafka_servers, FEW, 2, prefix):
            pass


async def test_other_settings_are_told_and_left_alone(kafka_servers: str, prefix: str) -> None:
    """A process that starts does not undo what an operator set; the log says what differs, and what mends it."""
    async with open_kafka(kafka_servers, FEW, 2, prefix):
        pass
    name = prefix + Topic.SESSIONS
    await set_of(kafka_servers, name, {"retention.ms": "1000"})
    await until(lambda: settings_of(kafka_servers, name), lambda told: told["retention.ms"] == "1000")
    with structlog.testing.capture_logs() as said:
        async with open_kafka(kafka_servers, FEW, 2, prefix):
            pass
    (told,) = [line for line in said if line["event"] == "topic_differs" and line["topic"] == name]
    assert told["has_and_wanted"]["retention.ms"] == ("1000", str(30 * 24 * 3600 * 1000))
    assert "evener topics apply" in told["mend"]
    assert (await settings_of(kafka_servers, name))["retention.ms"] == "1000"


async def test_diff_shows_what_is_missing_and_apply_makes_it(kafka_servers: str, prefix: str) -> None:
    """Comparing makes nothing; after applying nothing differs, and processes find what was agreed."""
    async with open_layout(kafka_servers, prefix, 2, DAYS) as layout:
        missing = await layout.differences()
        assert {found.subject for found in missing} == {prefix + name for name in TOPICS}
        assert {(found.setting, found.has, found.mend) for found in missing} == {("topic", None, None)}
        assert await differences(layout, len(TOPICS)) == missing

        assert await layout.apply() == []
        assert await layout.differences() == []
    sessions, state = [await settings_of(kafka_servers, prefix + name) for name in (Topic.SESSIONS, Topic.SCHEDULER_STATE)]
    assert (sessions["cleanup.policy"], sessions["retention.ms"]) == ("delete", str(30 * 24 * 3600 * 1000))
    assert (sessions["message.timestamp.type"], sessions["min.insync.replicas"]) == ("LogAppendTime", "1")
    assert (state["cleanup.policy"], state["segment.ms"]) == ("compact", "600000")
    async with open_kafka(kafka_servers, TOPICS, None, prefix) as bus:
        assert bus.partitions_of(Topic.MERGED) == 2


async def test_apply_sets_what_differs_and_leaves_what_else_an_operator_set(kafka_servers: str, prefix: str) -> None:
    """Retention and times as configured; compression stays."""
    name = prefix + Topic.SESSIONS
    async with open_layout(kafka_servers, prefix, 2, DAYS) as layout:
        await layout.apply()
        await set_of(kafka_servers, name, {"message.timestamp.type": "CreateTime", "compression.type": "zstd"})
        told = {found.setting: (found.has, found.wanted) for found in await differences(layout, 1)}
        assert told["message.timestamp.type"] == ("CreateTime", "LogAppendTime")
        assert "compression.type" not in told
    async with open_layout(kafka_servers, prefix, 2, RetentionDays(log=3.0)) as layout:
        assert await layout.apply() == []
    settings = await settings_of(kafka_servers, name)
    assert (settings["message.timestamp.type"], settings["compression.type"]) == ("LogAppendTime", "zstd")
    assert settings["retention.ms"] == str(3 * 24 * 3600 * 1000)


async def test_what_only_the_clusters_operator_can_mend_is_left_and_says_how(kafka_servers: str, prefix: str) -> None:
    """Brokers that forget offsets sooner than records, and partitions that somebody added."""
    long = RetentionDays(log=1000.0)
    async with open_layout(kafka_servers, prefix, 2, long) as layout:
        (left,) = await layout.apply()
        assert (left.subject, left.setting, left.has, left.wanted) == (
            "broker 1",
            "offsets.retention.minutes",
            "525600",
            "at least 1440000",
        )
        assert left.mend is not None
        assert "reads a topic from its beginning" in left.mend
    await add_partitions(kafka_servers, 3, prefix + Topic.MERGED)
    async with open_layout(kafka_servers, prefix, None, long) as layout:
        (left,) = [found for found in await differences(layout, 2) if found.setting == "partitions"]
        assert (left.subject, left.has, left.wanted) == (prefix + Topic.MERGED, "3", "2")


async def evener(*words: str) -> tuple[int | None, list[str]]:
    """Run a command; return its exit code and its lines."""
    ended = await commands.evener(*words)
    return ended.code, ended.out.splitlines()


async def test_commands_exit_with_1_while_something_differs(kafka_servers: str, prefix: str) -> None:
    """So that a pipeline stops; lines of JSON name topic, setting and both values."""
    options = ("--bus", f"kafka://{kafka_servers}?prefix={prefix}", "--partitions", "2")
    code, lines = await evener("topics", "diff", *options)
    assert (code, len(lines)) == (1, len(TOPICS))
    assert json.loads(lines[0]) == {
        "subject": f"{prefix}tasks",
        "setting": "topic",
        "has": None,
        "wanted": "1 partitions, 1 replicas",
        "mend": None,
    }
    done = 0, ["Topics and brokers have the settings that Evener needs."]
    assert await evener("topics", "apply", *options) == done
    assert await evener("topics", "diff", *options) == done


async def test_embedded_bus_has_nothing_to_compare() -> None:
    """It makes its topics itself."""
    code, (line,) = await evener("topics", "diff")
    assert (code, line) == (0, "The embedded bus has no settings: it makes its topics itself, and keeps every record.")
