"""Configuration: a frozen Struct of each service, read once. TOML file < environment < flags; an unknown key is an error.

A key that all services share stands at the top of the file, or in `EVENER_<KEY>`; one of a service stands in the table named
after its folder, or in `EVENER_<FOLDER>_<KEY>`. Flags are the field names with hyphens: `--log-level debug`; where one process
runs several services, `--scheduler.lease-seconds 30` is for one of them.
"""

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn, TypeVar, cast

import msgspec
from msgspec import Meta, Struct, structs

from evener.proto.errors import ConfigError
from evener.service.settings import Layer, Setting, Text, convert, known, split

PREFIX: Final = "EVENER_"
SECTIONS: Final = ("up", "scheduler", "sandbox_runner", "provider_gateway", "reconstructor", "evaluator", "trainer_bridge")
"""Tables that a configuration file may have: one file serves all processes of a deployment."""
NOT_KEYS: Final = frozenset({"EVENER_FAULTS", "EVENER_URL"})
"""Variables that are not configuration of a service: planted faults, and where the CLI finds a running one."""
SECRET: Final = frozenset({"operator_token", "capability_key"})


def default_state() -> str:
    """Return `$XDG_STATE_HOME/evener`, or `~/.local/state/evener`."""
    home = os.environ.get("XDG_STATE_HOME")
    return str(Path(home or Path.home() / ".local" / "state") / "evener")


class ServiceConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every service is told. `{state}` in `bus` and `blobs` stands for the state folder."""

    state: str = msgspec.field(default_factory=default_state)
    """Folder of everything that is kept on this machine."""
    bus: str = "embedded:{state}/bus"
    """`embedded:FOLDER` (one process) or `kafka://HOST:PORT`, with `?prefix=NAME` before the names of all topics if wanted."""
    blobs: str = "{state}/blobs"
    """Blob store: a folder, `memory://`, or `s3://BUCKET/PREFIX`."""
    partitions: Annotated[int, Meta(ge=1, le=1024)] = 4
    """Partitions of a new bus."""
    host: str = "127.0.0.1"
    """Address to listen on. Beyond loopback only with an operator's token that was given here."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Port to listen on. 0: any free one."""
    address: str | None = None
    """Base URL under which others reach this process. None: from host and port."""
    instance: str = "local"
    """Name of this process in the fleet; different for each process of a deployment."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """What is less than this is not logged."""
    stop_seconds: Annotated[float, Meta(ge=0)] = 10.0
    """Time that SIGTERM leaves to finish or hand back what is open."""
    operator_token: str | None = None
    """Secret of the control endpoints. None: drawn at first start and kept in the state folder."""
    capability_key: str | None = None
    """Secret that signs the capabilities of sessions. None: drawn at first start and kept in the state folder."""

    def __post_init__(self) -> None:
        """Put the state folder in its place."""
        state = str(Path(self.state).expanduser().absolute())
        structs.force_setattr(self, "state", state)
        for name in ("bus", "blobs"):
            structs.force_setattr(self, name, getattr(self, name).replace("{state}", state))


SHARED: Final = ServiceConfig.__struct_fields__
"""Keys of every service."""
ConfigT = TypeVar("ConfigT", bound=ServiceConfig)


def load(config_type: type[ConfigT], argv: Sequence[str], environ: Mapping[str, str], section: str) -> ConfigT:
    """Return the configuration of one service. Raises ConfigError; `--help` and `--print-config` print and exit with 0."""
    return cast("ConfigT", load_all({section: config_type}, argv, environ)[section])


def load_all(sections: Mapping[str, type[ServiceConfig]], argv: Sequence[str], environ: Mapping[str, str]) -> dict[str, ServiceConfig]:
    """Return the configurations of all services of this process. Flags without a section are for the first one and what all share."""
    main = next(iter(sections))
    flags = list(argv)
    if "--help" in flags or "-h" in flags:
        _print_and_exit("help", sections)
    printing = "--print-config" in flags
    flags = [flag for flag in flags if flag != "--print-config"]
    given = split(flags, sections)
    path = given.pop("config", Setting(environ.get("EVENER_CONFIG"), "EVENER_CONFIG")).value
    layers = (_from_file(Path(str(path)), sections) if path else {}, _from_environ(environ, sections), _from_flags(given, sections, main))
    configs = {name: _build(config_type, [layer.get(name, {}) for layer in layers]) for name, config_type in sections.items()}
    if printing:
        _print_and_exit("config", configs)
    return configs


def _print_and_exit(what: str, of: Mapping[str, Any]) -> NoReturn:
    """Show configuration instead of running (imported late: a start does not need it)."""
    from evener.service import config_text  # noqa: PLC0415

    config_text.show_help(of) if what == "help" else config_text.show_config(of)
    raise SystemExit(0)


def _build(config_type: type[ServiceConfig], layers: Sequence[Layer]) -> ServiceConfig:
    """Lay the layers over each other, later ones on top."""
    types = {field.name: field.type for field in structs.fields(config_type)}
    values = {name: convert(setting, types[name]) for layer in layers for name, setting in layer.items()}
    try:
        return config_type(**values)
    except (TypeError, ValueError) as cause:
        raise ConfigError(str(cause)) from cause


def _from_file(path: Path, sections: Mapping[str, type[ServiceConfig]]) -> dict[str, Layer]:
    """Read a TOML file: what all share at its top, one table for each service."""
    try:
        table = tomllib.loads(path.expanduser().read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as cause:
        msg = f"cannot read {path}: {cause}"
        raise ConfigError(msg) from cause
    tables = {key: value for key, value in table.items() if isinstance(value, dict)}
    for key in table:
        known(key, SECTIONS if key in tables else SHARED, f"at the top of {path}")
    shared = {key: Setting(value, f"{path}, {key}") for key, value in table.items() if key not in tables}
    layers: dict[str, Layer] = {}
    for name, config_type in sections.items():
        layers[name] = dict(shared)
        for key, value in tables.get(name, {}).items():
            known(key, config_type.__struct_fields__, f"in [{name}] of {path}")
            layers[name][key] = Setting(value, f"{path}, [{name}] {key}")
    return layers


def _from_environ(environ: Mapping[str, str], sections: Mapping[str, type[ServiceConfig]]) -> dict[str, Layer]:
    """Read `EVENER_<KEY>` for all and `EVENER_<SECTION>_<KEY>` for one."""
    shared: Layer = {}
    own: dict[str, Layer] = {name: {} for name in sections}
    for variable, value in environ.items():
        if not variable.startswith(PREFIX) or variable in NOT_KEYS or variable == "EVENER_CONFIG":
            continue
        key = variable.removeprefix(PREFIX).lower()
        section = next((name for name in SECTIONS if key.startswith(f"{name}_")), None)
        if section is None:
            known(key, SHARED, f"in the environment ({variable})")
            shared[key] = Setting(Text(value), variable)
        elif section in sections:
            key = key.removeprefix(f"{section}_")
            known(key, sections[section].__struct_fields__, f"in the environment ({variable})")
            own[section][key] = Setting(Text(value), variable)
    return {name: shared | layer for name, layer in own.items()}


def _from_flags(given: Mapping[str, Setting], sections: Mapping[str, type[ServiceConfig]], main: str) -> dict[str, Layer]:
    """Sort flags into sections."""
    layers: dict[str, Layer] = {name: {} for name in sections}
    owned: dict[str, Layer] = {name: {} for name in sections}
    for flag, setting in given.items():
        section, _, key = flag.rpartition(".")
        if section:
            known(section, sections, f"in the flag --{flag}")
            known(key, sections[section].__struct_fields__, f"in the flag --{flag}")
            owned[section][key] = setting
            continue
        known(key, sections[main].__struct_fields__, "as a flag")
        for name in sections if key in SHARED else (main,):
            layers[name][key] = setting
    return {name: layers[name] | owned[name] for name in sections}
