"""The configuration that all services share. Each service adds its own keys in its `config.py`; `config_app` reads them."""

import os
import re
import socket
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct, structs

from evener.bus.kafka_security import KafkaSecurity, Mechanism
from evener.proto.errors import ConfigError
from evener.proto.topics import RetentionDays
from evener.sandboxes.config import SandboxesConfig

ENVIRONMENT_PREFIX: Final = "EVENER_"
"""What the names of environment variables begin with."""
SECTIONS: Final = ("up", "scheduler", "sandbox_runner", "provider_gateway", "reconstructor", "evaluator", "trainer_bridge")
"""The tables of a configuration file. One file serves all processes of a deployment."""
SECRET: Final = frozenset({"operator_token", "capability_key", "kafka_password", "engine_api_keys"})
"""Keys whose values are not shown. Each may be `file:PATH`, for the first line of a file, such as a mounted secret."""
FROM_FILE: Final = "file:"
INSTANCE: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"


def default_state() -> str:
    """Return `$XDG_STATE_HOME/evener`, or `~/.local/state/evener`."""
    home = os.environ.get("XDG_STATE_HOME")
    return str(Path(home or Path.home() / ".local" / "state") / "evener")


def host_name() -> str:
    """Return this machine's host name."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname()).strip("-._") or "local"


class ServiceConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration that all services share. `{state}` in `bus` and `blobs` stands for the state folder."""

    state: str = msgspec.field(default_factory=default_state)
    """The folder of everything that is kept on this machine."""
    bus: str = "embedded:{state}/bus"
    """The bus: `embedded:FOLDER` (one process) or `kafka://HOST:PORT`, optionally with `?prefix=NAME` before the names of all topics."""
    blobs: str = "{state}/blobs"
    """The blob store: a folder, `memory://`, or `s3://BUCKET/PREFIX`."""
    kafka_tls: bool = False
    """Whether connections to Kafka are TLS."""
    kafka_ca_file: str | None = None
    """The PEM file of the authorities that sign the brokers' certificates. None: those of the system."""
    kafka_certificate_file: str | None = None
    """The PEM file of the certificate that is shown to brokers. None: none is."""
    kafka_key_file: str | None = None
    """The PEM file of its key. None: the key is in the certificate's file."""
    kafka_sasl_mechanism: Mechanism | None = None
    """How this process logs in to Kafka. None: it does not."""
    kafka_username: str | None = None
    """The user of PLAIN and SCRAM."""
    kafka_password: str | None = None
    """The user's password."""
    kafka_token_file: str | None = None
    """The file of the bearer token of OAUTHBEARER. It is read for each connection: somebody else renews it."""
    partitions: Annotated[int, Meta(ge=1, le=1024)] | None = None
    """The number of partitions of the bus. None: as many as there are; a new bus gets 64 on Kafka, and 4 if it is embedded."""
    log_retention_days: Annotated[float, Meta(ge=0)] = 30.0
    """How long Kafka keeps tasks, sessions and delivered groups. 0: for ever."""
    work_retention_days: Annotated[float, Meta(ge=0)] = 7.0
    """How long Kafka keeps trajectories on their way from one service to the next. 0: for ever."""
    dead_letter_retention_days: Annotated[float, Meta(ge=0)] = 90.0
    """How long Kafka keeps dead letters. 0: for ever."""
    host: str = "127.0.0.1"
    """The address to listen on. Beyond loopback it requires an `operator_token` or a `principals_file` that is configured here."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """The port to listen on. 0: any free one."""
    address: str | None = None
    """The base URL under which others reach this process. None: derived from host and port."""
    tls_certificate_file: str | None = None
    """The PEM file of the certificate under which this process serves HTTPS. None: it serves HTTP. It is loaded again when it changes."""
    tls_key_file: str | None = None
    """The PEM file of its key. None: the key is in the certificate's file."""
    tls_ca_file: str | None = None
    """The PEM file of the authorities that sign the certificates of Evener's own processes. None: those of the system."""
    engine_ca_file: str | None = None
    """The PEM file of the authorities that sign the certificates of engines. None: those of the system."""
    engine_api_keys: dict[str, str] = {}
    """Engine id to the API key with which the engine is asked. `*`: the key for all others. Each may be `file:PATH`."""
    instance: Annotated[str, Meta(pattern=INSTANCE)] = msgspec.field(default_factory=host_name)
    """The name of this process in the fleet. Two processes of one service need different names; different services may share one."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least level that is logged."""
    loop_tick_seconds: Annotated[float, Meta(gt=0)] = 0.02
    """How often the event loop is looked at. A stop of the loop is measured to within this time; at 0.005 it costs 1 % of a core."""
    stop_seconds: Annotated[float, Meta(ge=0)] = 10.0
    """The time that SIGTERM leaves to finish or hand back what is open."""
    operator_token: str | None = None
    """The token of the built-in principal, which may do everything. None: drawn at first start and kept in the state folder; where there is
    a `principals_file`, a drawn one is taken from loopback only."""
    principals_file: str | None = None
    """The TOML file of those who may use the control endpoints, with team, role and quota. None: only who has the operator's token."""
    sandboxes: SandboxesConfig = SandboxesConfig()
    """The sandbox backends, a table for each. Where runner and evaluator are processes of their own, both read it."""
    capability_key: str | None = None
    """The secret that signs the capabilities of sessions. None: drawn at first start and kept in the state folder."""

    def __post_init__(self) -> None:
        """Replace `{state}` by the state folder, and `file:PATH` in secrets by what the file holds. Raises ConfigError."""
        state = str(Path(self.state).expanduser().absolute())
        structs.force_setattr(self, "state", state)
        for name in ("bus", "blobs"):
            structs.force_setattr(self, name, getattr(self, name).replace("{state}", state))
        for name in SECRET:
            given = getattr(self, name)
            read = {of: secret_of(key) for of, key in given.items()} if isinstance(given, dict) else secret_of(given)
            structs.force_setattr(self, name, read)
        if self.tls_key_file and not self.tls_certificate_file:
            msg = "tls_key_file is given without tls_certificate_file"
            raise ConfigError(msg)
        self.kafka_security  # noqa: B018 - it refuses keys that contradict each other

    @property
    def kafka_security(self) -> KafkaSecurity:
        """The TLS and login of connections to Kafka."""
        return KafkaSecurity(**{name: getattr(self, f"kafka_{name}") for name in KafkaSecurity.__struct_fields__})

    @property
    def days(self) -> RetentionDays:
        """How long new topics keep records."""
        return RetentionDays(log=self.log_retention_days, work=self.work_retention_days, letters=self.dead_letter_retention_days)


def secret_of(given: str | None) -> str | None:
    """Return a secret as it was given, or the first line of the file that it names. Raises ConfigError."""
    if given is None or not given.startswith(FROM_FILE):
        return given
    path = Path(given.removeprefix(FROM_FILE)).expanduser()
    try:
        lines = path.read_text().strip().splitlines()
    except (OSError, UnicodeDecodeError) as cause:
        msg = f"cannot read the secret in {path}: {getattr(cause, 'strerror', None) or cause}"
        raise ConfigError(msg) from cause
    if not lines:
        msg = f"{path} is empty, but should hold a secret"
        raise ConfigError(msg)
    return lines[0].strip()


SHARED: Final = ServiceConfig.__struct_fields__
"""The keys that every service has."""
