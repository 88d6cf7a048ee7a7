"""How the clients of a Kafka cluster prove who they are, and the brokers to them: TLS and SASL, as the configuration says it."""

from typing import Literal

from msgspec import Struct

from evener.proto.errors import ConfigError

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]


class KafkaSecurity(Struct, frozen=True, kw_only=True):
    """The protection of all connections to a cluster. By default there is none. The fields are the configuration's keys `kafka_...`."""

    tls: bool = False
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    sasl_mechanism: Mechanism | None = None
    username: str | None = None
    password: str | None = None
    token_file: str | None = None

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other, or lack their other half. Raises ConfigError."""
        if not self.tls and (self.ca_file or self.certificate_file):
            _refuse("kafka_ca_file and kafka_certificate_file are for TLS: set kafka_tls = true")
        if self.key_file and not self.certificate_file:
            _refuse("kafka_key_file is given without kafka_certificate_file")
        if self.sasl_mechanism is None and (self.username or self.password or self.token_file):
            _refuse("there is a login for Kafka, and no kafka_sasl_mechanism: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER")
        if self.sasl_mechanism == "OAUTHBEARER":
            if not self.token_file:
                _refuse("kafka_sasl_mechanism OAUTHBEARER needs kafka_token_file")
        elif self.sasl_mechanism is not None and not (self.username and self.password):
            _refuse(f"kafka_sasl_mechanism {self.sasl_mechanism} needs kafka_username and kafka_password")


PLAINTEXT = KafkaSecurity()
"""Connections in the clear, without a login."""


def _refuse(what: str) -> None:
    raise ConfigError(what)
