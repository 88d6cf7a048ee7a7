"""Options by which aiokafka's clients connect, and why brokers refuse them: aiokafka says only that it could not connect."""

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import KafkaConnectionError, KafkaError

from evener.bus.kafka_security import KafkaSecurity
from evener.bus.port import BusError
from evener.runtime.tls import client_context

LOOK_MS: Final = 5_000
"""How long each broker is asked why it refuses connections."""


class LoginRefused(BusError):
    """Compare kafka_tls, kafka_ca_file, kafka_sasl_mechanism and the login with the listener of the broker that `bus` names."""


class TokenFile(AbstractTokenProvider):  # type: ignore[misc] # aiokafka ships no types
    """A bearer token in a file that somebody else renews, such as a projected token of Kubernetes. It is read for each connection."""

    def __init__(self, path: str) -> None:
        self._path = Path(path).expanduser()

    async def token(self) -> str:
        return (await asyncio.to_thread(self._path.read_text)).strip()


def client_options(servers: str, security: KafkaSecurity) -> dict[str, Any]:
    """Return the options that all clients of a cluster share. Raises ConfigError for files that cannot be used."""
    options: dict[str, Any] = {"bootstrap_servers": servers}
    sasl = security.sasl_mechanism is not None
    options["security_protocol"] = f"{'SASL_' * sasl}{'SSL' if security.tls else 'PLAINTEXT'}"
    if security.tls:
        options["ssl_context"] = client_context(security.ca_file, security.certificate_file, security.key_file)
    if sasl:
        options |= {
            "sasl_mechanism": security.sasl_mechanism,
            "sasl_plain_username": security.username,
            "sasl_plain_password": security.password,
        }
    if security.token_file is not None:
        options["sasl_oauth_token_provider"] = TokenFile(security.token_file)
    return options


async def refusal(options: Mapping[str, Any]) -> LoginRefused | None:
    """Return why brokers refuse clients with these options. None: one accepts them, or none answers."""
    rest = {key: value for key, value in options.items() if key != "bootstrap_servers"}
    for host, port, _ in collect_hosts(options["bootstrap_servers"]):
        try:
            connection = await create_conn(host, port, request_timeout_ms=LOOK_MS, **rest)
        except ssl.SSLError as cause:
            return LoginRefused(f"no TLS with the broker at {host}:{port}: {_why(cause)}")
        except (KafkaConnectionError, ConnectionError, EOFError):
            if await _listens(host, port):
                return LoginRefused(f"the broker at {host}:{port} ends the connection before it answers")
        except KafkaError as cause:
            return LoginRefused(f"the broker at {host}:{port} refuses the login: {cause}")
        except (OSError, TimeoutError):
            continue
        else:
            connection.close()
            return None
    return None


def _why(cause: ssl.SSLError) -> str:
    return cause.verify_message if isinstance(cause, ssl.SSLCertVerificationError) else cause.reason


async def _listens(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), LOOK_MS / 1000)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
