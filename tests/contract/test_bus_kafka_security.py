"""TLS and logins, on a real broker: every way to log in works, and every error is one line."""

import base64
import json
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct, structs
from scripts.kafka import free_ports
from tests.support.certificates import Authority

from evener.bus.kafka import KafkaBus, open_kafka
from evener.bus.kafka_login import LoginRefused
from evener.bus.kafka_security import KafkaSecurity, Mechanism
from evener.bus.open import open_bus
from evener.bus.port import Outgoing
from evener.client.groups import Groups
from evener.proto.topics import TOPICS, Topic
from evener.service.config import ServiceConfig
from evener.service.config_app import load

pytestmark = pytest.mark.kafka

KAFKA = Path(__file__).parents[2] / "scripts" / "kafka.py"
CALLS = Topic.SESSIONS
FEW = {CALLS: TOPICS[CALLS]}
MODULES = "org.apache.kafka.common.security"
SETTINGS = """
listeners=PLAINTEXT://127.0.0.1:$BROKER,CONTROLLER://127.0.0.1:$CONTROLLER,SECURED://127.0.0.1:{secured},MUTUAL://127.0.0.1:{mutual}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURED:SASL_SSL,MUTUAL:SSL
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
ssl.truststore.type=PEM
ssl.truststore.location={ca}
listener.name.mutual.ssl.client.auth=required
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER
listener.name.secured.plain.sasl.jaas.config={modules}.plain.PlainLoginModule required user_ann="plain";
listener.name.secured.scram-sha-256.sasl.jaas.config={modules}.scram.ScramLoginModule required;
listener.name.secured.scram-sha-512.sasl.jaas.config={modules}.scram.ScramLoginModule required;
listener.name.secured.oauthbearer.sasl.jaas.config={modules}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="b";
"""


class Secured(Struct, frozen=True):
    """A broker with a listener for logins over TLS, and one for certificates."""

    authority: Authority
    plaintext: str
    logins: str
    certificates: str


@pytest.fixture(scope="module")
def broker(kafka_servers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    assert kafka_servers  # the tools for a broker are here
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder)
    certificate, key = authority.sign("broker")
    keystore = folder / "keystore.pem"
    keystore.write_text(Path(key).read_text() + Path(certificate).read_text())
    secured, mutual = free_ports(2)
    settings = folder / "more.properties"
    settings.write_text(SETTINGS.format(secured=secured, mutual=mutual, keystore=keystore, ca=authority.ca_file, modules=MODULES))
    words = [sys.executable, str(KAFKA), "run", "--with-parent", "--settings", str(settings)]
    for kind in ("256", "512"):
        words += ["--scram", f"SCRAM-SHA-{kind}=[name=ann,password=scram{kind}]"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout
        plaintext = script.stdout.readline().strip()
        try:
            yield Secured(authority, plaintext, f"127.0.0.1:{secured}", f"127.0.0.1:{mutual}")
        finally:
            script.terminate()


def prefix() -> str:
    return f"t{secrets.token_hex(4)}."


async def work(bus: KafkaBus) -> None:
    """Use every kind of client: administration, plain and transactional producers, readers, groups and their offsets."""
    await bus.check()
    producer = await bus.producer("gateway-0")
    await producer.commit([Outgoing(topic=CALLS, key="s1", value=b"committed", partition=0)])
    await bus.send([Outgoing(topic=CALLS, key="s1", value=b"sent", partition=0)])
    async with bus.join("group", CALLS, "a") as membership:
        assert await membership.changed() == {0}
    assert await bus.committed("group", CALLS, 0) is None
    assert [record.value async for record in bus.read(CALLS, 0)] == [b"committed", b"sent"]


@pytest.mark.parametrize(("mechanism", "password"), [("PLAIN", "plain"), ("SCRAM-SHA-256", "scram256"), ("SCRAM-SHA-512", "scram512")])
async def test_bus_works_with_a_user_and_a_password_over_tls(broker: Secured, mechanism: Mechanism, password: str) -> None:
    """SASL_SSL: the broker proves itself by its certificate, we by the password."""
    security = login(broker, mechanism, password)

    async with open_kafka(broker.logins, FEW, 1, prefix(), security=security) as bus:
        await work(bus)


async def test_bus_works_with_a_token_in_a_file(broker: Secured, tmp_path: Path) -> None:
    """OAUTHBEARER, as a pod has a projected token that the platform renews."""
    token = tmp_path / "token"
    token.write_text(unsigned_token() + "\n")
    security = KafkaSecurity(tls=True, ca_file=broker.authority.ca_file, sasl_mechanism="OAUTHBEARER", token_file=str(token))

    async with open_kafka(broker.logins, FEW, 1, prefix(), security=security) as bus:
        await work(bus)


async def test_bus_works_with_a_certificate_of_its_own(broker: Secured) -> None:
    """Mutual TLS: the broker asks for a certificate, and needs no password."""
    certificate, key = broker.authority.sign("evener")
    security = KafkaSecurity(tls=True, ca_file=broker.authority.ca_file, certificate_file=certificate, key_file=key)

    async with open_kafka(broker.certificates, FEW, 1, prefix(), security=security) as bus:
        await work(bus)


async def test_keys_of_the_configuration_connect_services_and_trainers(broker: Secured, tmp_path: Path) -> None:
    """As an operator writes them, with the password in a mounted file; a trainer that reads the topic itself is given the same."""
    password = tmp_path / "password"
    password.write_text("scram512\n")
    words = f"--kafka-tls --kafka-ca-file {broker.authority.ca_file} --kafka-sasl-mechanism SCRAM-SHA-512 --kafka-username ann"
    argv = [*words.split(), "--kafka-password", f"file:{password}", "--bus", f"kafka://{broker.logins}?prefix={prefix()}"]
    config = load(ServiceConfig, argv, {}, "scheduler")

    async with open_bus(config.bus, partitions=1, security=config.kafka_security) as bus:
        await bus.check()
        groups = Groups(config.bus, blobs="memory://", security=config.kafka_security, follow=False)
        assert [group async for group in groups] == []


async def test_wrong_password_is_reported_as_such(broker: Secured) -> None:
    """The error is not that of an unreachable broker, which would mislead an operator."""
    with pytest.raises(LoginRefused, match=r"refuses the login: .*invalid credentials"):
        await opened(broker.logins, login(broker, "SCRAM-SHA-512", "scram256"))


async def test_authority_that_did_not_sign_the_brokers_certificate_is_reported(broker: Secured, tmp_path: Path) -> None:
    """Neither is a broker trusted that somebody else certified, nor is the reason lost."""
    foreign = Authority(tmp_path, "foreign")
    security = structs.replace(login(broker, "PLAIN", "plain"), ca_file=foreign.ca_file)

    with pytest.raises(LoginRefused, match=r"no TLS with the broker at 127.0.0.1:[0-9]+: .*certificate"):
        await opened(broker.logins, security)


async def test_tls_to_a_listener_in_the_clear_is_reported(broker: Secured) -> None:
    """The usual mistake after a cluster's move to TLS: the old port."""
    with pytest.raises(LoginRefused, match=r"no TLS with the broker|ends the connection"):
        await opened(broker.plaintext, login(broker, "PLAIN", "plain"))


async def test_connection_in_the_clear_to_a_listener_of_tls_is_reported(broker: Secured) -> None:
    """The other way round: the broker hangs up, and the message names the keys to set."""
    with pytest.raises(LoginRefused, match=r"ends the connection before it answers. .*kafka_tls"):
        await opened(broker.logins, KafkaSecurity())


async def opened(servers: str, security: KafkaSecurity) -> None:
    async with open_kafka(servers, FEW, 1, prefix(), security=security):
        pass


def login(broker: Secured, mechanism: Mechanism, password: str) -> KafkaSecurity:
    return KafkaSecurity(tls=True, ca_file=broker.authority.ca_file, sasl_mechanism=mechanism, username="ann", password=password)


def unsigned_token() -> str:
    """A token as the broker's own handler for tests takes it: claims without a signature."""
    parts = ({"alg": "none"}, {"sub": "ann", "iat": int(time.time()) - 1, "exp": int(time.time()) + 600})
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in parts) + "."
