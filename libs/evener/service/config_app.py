"""Configuration as it is read, by cyclopts: TOML file < environment < flags; an unknown key is an error.

A key that all services share stands at the top of the file, in `EVENER_<KEY>`, or in a flag; a key of one service stands in the table
named after its folder, in `EVENER_<FOLDER>_<KEY>`, or in a flag: `--lease-seconds 30`. Where one process runs several services, the first
one's flags are plain, and the others' have a section: `--scheduler.lease-seconds 30`.
"""

import enum
import json
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Parameter as Key
from inspect import Signature
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, cast, get_origin

from cyclopts import App, ArgumentCollection, CycloptsError, Group, Parameter, Token
from cyclopts.config import Dict
from msgspec import NODEFAULT, structs

from evener.proto.docs import field_docs
from evener.proto.errors import ConfigError
from evener.proto.names import unknown
from evener.service.config import ENVIRONMENT_PREFIX, SECTIONS, SHARED, ServiceConfig
from evener.service.config_text import show_config, toml
from evener.service.service_links import service_links
from evener.service.text_values import from_text

NOT_KEYS: Final = frozenset({"EVENER_CONFIG", "EVENER_FAULTS", "EVENER_TOKEN", "EVENER_URL"})
"""Variables that are no keys: the configuration file, injected faults, and where and with which token commands find a running Evener."""
PARAMETERS: Final = Group("Options", sort_key=0)
CONFIG_FILE_OPTION: Final = Annotated[
    Path | None, Parameter(group=PARAMETERS, help="A TOML file of keys. None: the file that EVENER_CONFIG names, if any.")
]
PRINT: Final = Annotated[
    bool, Parameter(group=PARAMETERS, negative="", help="Print the effective configuration as TOML, without secrets, and exit.")
]

ConfigT = TypeVar("ConfigT", bound=ServiceConfig)
Sections = Mapping[str, type[ServiceConfig]]
Configs = dict[str, ServiceConfig]
Table = dict[str, Any]


def config_app(name: str, sections: Sections, run: Callable[[Configs], Any], environ: Mapping[str, str] = os.environ) -> App:
    """Return a command whose flags are the keys of `sections`, and which calls `run` with the configuration of each section."""
    main = next(iter(sections))

    def command(**given: Any) -> Any:
        given.pop("config", None)  # `read` has read it
        printed = given.pop("print_config", False)
        values: dict[str, Table] = {section: {} for section in sections}
        for key, value in given.items():
            section, _, field = key.partition("__")
            for each in sections if section == main and field in SHARED else (section,):
                values[each][field] = value
        configs = {section: _build(kind, values[section]) for section, kind in sections.items()}
        return show_config(configs) if printed else run(configs)

    def read(app: App, _: Sequence[str], arguments: ArgumentCollection) -> None:
        path = next((token.value for argument in arguments if argument.name == "--config" for token in argument.tokens), None)
        tables = {"the environment": _of_environ(environ)}
        if path := path or environ.get("EVENER_CONFIG"):
            tables[path] = _of_file(Path(path))
        for source, table in tables.items():
            _check(table, sections, source)
            known = {key: _text(value) for key, value in table.items() if key in SHARED}
            known |= {name: _texts(table[name]) for name in sections if name in table}
            Dict(known.pop(main, {}), source=f"[{main}] of {source}")(app, (), arguments)
            Dict(known, source=source)(app, (), arguments)

    config_file = Key("config", Key.KEYWORD_ONLY, default=None, annotation=CONFIG_FILE_OPTION)
    printing = Key("print_config", Key.KEYWORD_ONLY, default=False, annotation=PRINT)
    command.__signature__ = Signature([config_file, printing, *_keys(sections)])  # type: ignore[attr-defined]
    return App(
        name=name,
        default_command=command,
        config=[read],
        version_flags=[],
        default_parameter=Parameter(negative_bool="no-"),
        help_format="plaintext",
        exit_on_error=False,
        print_error=False,
        result_action="return_value",
    )


def load(config_type: type[ConfigT], argv: Sequence[str], environ: Mapping[str, str], section: str) -> ConfigT:
    """Return the configuration of one service. Raises ConfigError."""
    return cast("ConfigT", load_all({section: config_type}, argv, environ)[section])


def load_all(sections: Sections, argv: Sequence[str], environ: Mapping[str, str]) -> Configs:
    """Return the configurations of all services of this process. Raises ConfigError, and SystemExit after `--help` or `--print-config`."""
    configs = run_app(config_app("evener", sections, lambda configs: configs, environ), argv)
    if configs is None:
        raise SystemExit(0)
    return cast("Configs", configs)


def run_app(app: App, argv: Sequence[str]) -> Any:
    """Return what a command returns. Raises ConfigError for wrong usage."""
    try:
        return app(argv)
    except CycloptsError as wrong:
        raise ConfigError(str(wrong)) from wrong


def _keys(sections: Sections) -> Iterator[Key]:
    """Yield a parameter for each key: all of the first section, of each other one what is not shared."""
    for number, (section, config_type) in enumerate(sections.items()):
        docs = field_docs(config_type)
        for field in structs.fields(config_type):
            if number and field.name in SHARED:
                continue
            default = field.default if field.default_factory is NODEFAULT else field.default_factory()
            flag = Parameter(
                name="--" + (f"{section}." * bool(number) + field.name).replace("_", "-"),
                help=docs.get(field.name),
                converter=None if _is_native(field.type) else _converter(field.type),
                accepts_keys=False,
                json_list=False,
                negative_iterable="",
                show_default=toml if default is not None else False,
                group=Group(f"Options of {section}", sort_key=number) if number else PARAMETERS,
            )
            yield Key(f"{section}__{field.name}", Key.KEYWORD_ONLY, default=default, annotation=Annotated[field.type, flag])


def _is_native(kind: Any) -> bool:
    """Return whether cyclopts reads a type as it should: with its few values, or with a negative flag."""
    return get_origin(kind) is Literal or (isinstance(kind, type) and issubclass(kind, enum.Enum | bool))


def _converter(kind: Any) -> Callable[[Any, Sequence[Token]], Any]:
    def convert(_: Any, tokens: Sequence[Token]) -> Any:
        try:
            return from_text(tokens[-1].value, kind)
        except ValueError as cause:
            where = "" if tokens[-1].source == "cli" else f", in {tokens[-1].source}"
            msg = f"{cause}{where}"
            raise ValueError(msg) from cause

    return convert


def _build(config_type: type[ConfigT], values: Table) -> ConfigT:
    try:
        return config_type(**values)
    except (TypeError, ValueError) as cause:
        raise ConfigError(str(cause)) from cause


def _of_file(path: Path) -> Table:
    try:
        return tomllib.loads(path.expanduser().read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as cause:
        msg = f"cannot read {path}: {cause}"
        raise ConfigError(msg) from cause


def _of_environ(environ: Mapping[str, str]) -> Table:
    """Return `EVENER_<KEY>` and `EVENER_<SECTION>_<KEY>` as a file would have them."""
    table: Table = {}
    passed_over = NOT_KEYS | service_links(environ, ENVIRONMENT_PREFIX)
    for variable, text in environ.items():
        if variable.startswith(ENVIRONMENT_PREFIX) and variable not in passed_over:
            key = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
            section = next((name for name in SECTIONS if key.startswith(f"{name}_")), None)
            inside = table if section is None else table.setdefault(section, {})
            inside[key.removeprefix(f"{section}_")] = text
    return table


def _check(table: Table, sections: Sections, source: str) -> None:
    """Raise ConfigError for a key that no service has. The tables of services that do not run here are their affair."""
    places = [(table, (*SHARED, *SECTIONS), source)]
    places += [(table[name], sections[name].__struct_fields__, f"[{name}] of {source}") for name in sections if name in table]
    for keys, known, where in places:
        for key in keys if isinstance(keys, dict) else ():
            if key not in known:
                raise ConfigError(unknown("key", key, known, f"in {where}"))


def _text(value: Any) -> Any:
    """Return what a key holds as cyclopts is given it: tables and lists as one text."""
    return json.dumps(value, default=str) if isinstance(value, dict | list) else value


def _texts(section: Any) -> Any:
    return {key: _text(value) for key, value in section.items()} if isinstance(section, dict) else section
