"""What a login needs to compare topics, on a broker that grants rights one by one."""

import importlib.util
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from evener.bus.kafka_layout import open_layout
from evener.bus.kafka_security import KafkaSecurity
from evener.bus.port import BusError
from evener.proto.topics import TOPICS, RetentionDays, Topic

pytestmark = pytest.mark.kafka

KAFKA = Path(__file__).parents[2] / "scripts" / "kafka.py"
DAYS = RetentionDays()
SETTINGS = """
listeners=PLAINTEXT://127.0.0.1:$BROKER,CONTROLLER://127.0.0.1:$CONTROLLER,LOGIN://127.0.0.1:{login}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.login.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required user_ann="ann" user_eve="eve";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
"""
GRANTS = (("--topic", "*"), ("--cluster",))


class Guarded(Struct, frozen=True):
    """A broker whose operator uses one address, and everybody else another."""

    operator: str
    logins: str


@pytest.fixture(scope="module")
def broker(kafka_servers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A broker that lets ann describe and nothing else, and eve nothing."""
    assert kafka_servers  # the tools for a broker are here
    folder = tmp_path_factory.mktemp("guarded")
    with socket.create_server(("127.0.0.1", 0)) as free:
        login = int(free.getsockname()[1])
    settings = folder / "more.properties"
    settings.write_text(SETTINGS.format(login=login))
    command = [sys.executable, str(KAFKA), "run", "--with-parent", "--settings", str(settings)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout
        operator = script.stdout.readline().strip()
        try:
            for place in GRANTS:
                grant(operator, *place)
            yield Guarded(operator, f"127.0.0.1:{login}")
        finally:
            script.terminate()


def grant(operator: str, *place: str) -> None:
    """Let ann describe a place and its settings, by Kafka's own tool."""
    spec = importlib.util.spec_from_file_location("kafka_script", KAFKA)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    tool = ["java", "-cp", f"{script.fetch_broker()}/*", "org.apache.kafka.tools.AclCommand", "--bootstrap-server", operator]
    rights = ["--add", "--allow-principal", "User:ann", "--operation", "Describe", "--operation", "DescribeConfigs", *place]
    subprocess.run([*tool, *rights], check=True, capture_output=True)


def security(user: str) -> KafkaSecurity:
    return KafkaSecurity(sasl_mechanism="PLAIN", username=user, password=user)


async def test_comparing_needs_only_rights_to_describe(broker: Guarded) -> None:
    """An operator's pipeline may look without being able to change anything; it sees the same as who may."""
    prefix = f"t{secrets.token_hex(4)}."
    async with open_layout(broker.operator, prefix, 2, DAYS) as own, open_layout(broker.logins, prefix, 2, DAYS, security("ann")) as layout:
        assert {found.subject for found in await layout.differences()} == {prefix + name for name in TOPICS}
        assert await own.apply() == []
        assert await layout.differences() == []
    async with open_layout(broker.logins, prefix, 3, RetentionDays(log=3.0), security("ann")) as layout:
        told = {(found.subject, found.setting) for found in await layout.differences()}
    assert (prefix + Topic.SESSIONS, "retention.ms") in told


async def test_missing_right_is_named(broker: Guarded) -> None:
    """Not a topic that seems to be missing."""
    async with open_layout(broker.logins, f"t{secrets.token_hex(4)}.", 2, DAYS, security("eve")) as layout:
        with pytest.raises(BusError, match=r"topic \S+ may not be described by this login: grant it Describe on the topic"):
            await layout.differences()
