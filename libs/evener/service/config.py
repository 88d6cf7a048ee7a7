"""The configuration that all services share. Each service adds its own keys in its `config.py`; `config_app` reads them."""

import os
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct, structs

SECTIONS: Final = ("up", "scheduler", "sandbox_runner", "provider_gateway", "reconstructor", "evaluator", "trainer_bridge")
"""The tables of a configuration file. One file serves all processes of a deployment."""
SECRET: Final = frozenset({"operator_token", "capability_key"})


def default_state() -> str:
    """Return `$XDG_STATE_HOME/evener`, or `~/.local/state/evener`."""
    home = os.environ.get("XDG_STATE_HOME")
    return str(Path(home or Path.home() / ".local" / "state") / "evener")


class ServiceConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration that all services share. `{state}` in `bus` and `blobs` stands for the state folder."""

    state: str = msgspec.field(default_factory=default_state)
    """The folder of everything that is kept on this machine."""
    bus: str = "embedded:{state}/bus"
    """The bus: `embedded:FOLDER` (one process) or `kafka://HOST:PORT`, optionally with `?prefix=NAME` before the names of all topics."""
    blobs: str = "{state}/blobs"
    """The blob store: a folder, `memory://`, or `s3://BUCKET/PREFIX`."""
    partitions: Annotated[int, Meta(ge=1, le=1024)] = 4
    """The number of partitions of a new bus."""
    host: str = "127.0.0.1"
    """The address to listen on. Beyond loopback it requires an operator's token that is configured here."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """The port to listen on. 0: any free one."""
    address: str | None = None
    """The base URL under which others reach this process. None: derived from host and port."""
    instance: str = "local"
    """The name of this process in the fleet, different for each process of a deployment."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least level that is logged."""
    stop_seconds: Annotated[float, Meta(ge=0)] = 10.0
    """The time that SIGTERM leaves to finish or hand back what is open."""
    operator_token: str | None = None
    """The secret of the control endpoints. None: drawn at first start and kept in the state folder."""
    capability_key: str | None = None
    """The secret that signs the capabilities of sessions. None: drawn at first start and kept in the state folder."""

    def __post_init__(self) -> None:
        """Replace `{state}` by the state folder."""
        state = str(Path(self.state).expanduser().absolute())
        structs.force_setattr(self, "state", state)
        for name in ("bus", "blobs"):
            structs.force_setattr(self, name, getattr(self, name).replace("{state}", state))


SHARED: Final = ServiceConfig.__struct_fields__
"""Keys of every service."""
