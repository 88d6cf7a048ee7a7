"""Configuration as people read it: `--help`, and `--print-config` as TOML."""

import json
import sys
from collections.abc import Iterator, Mapping

from msgspec import NODEFAULT, Struct, structs

from evener.proto.docs import field_docs
from evener.service.config import SECRET, ServiceConfig


def show_help(sections: Mapping[str, type[ServiceConfig]]) -> None:
    """Print every key with its meaning and default; of a further service only what is its own."""
    lines = ["Options (also from a TOML file by --config FILE, and from EVENER_* variables; --print-config shows what holds):", ""]
    for number, (name, config_type) in enumerate(sections.items()):
        if number:
            lines += ["", f"Options of {name}:", ""]
        lines += _keys(config_type, prefix=f"{name}." if number else "", all_keys=not number)
    sys.stdout.write("\n".join(lines) + "\n")


def show_config(configs: Mapping[str, ServiceConfig]) -> None:
    """Print what holds, as TOML; secrets are hidden."""
    lines: list[str] = []
    shared = {field.name for field in structs.fields(ServiceConfig)}
    for number, (name, config) in enumerate(configs.items()):
        values = structs.asdict(config)
        if not number:
            lines += [_line(key, value) for key, value in values.items() if key in shared]
        lines += ["", f"[{name}]", *(_line(key, value) for key, value in values.items() if key not in shared)]
    sys.stdout.write("\n".join(lines) + "\n")


def _keys(config_type: type[ServiceConfig], *, prefix: str, all_keys: bool) -> Iterator[str]:
    docs = field_docs(config_type)
    shared = {field.name for field in structs.fields(ServiceConfig)}
    for field in structs.fields(config_type):
        if field.name in shared and not all_keys:
            continue
        yield f"  --{prefix}{field.name.replace('_', '-')}"
        default = field.default if field.default_factory is NODEFAULT else field.default_factory()
        told = "" if default is NODEFAULT else f" (default: {toml(default)})"
        yield f"      {docs.get(field.name, '')}{told}"


def _line(key: str, value: object) -> str:
    if value is None:
        return f"# {key} is not set"
    return f"# {key} is set, and hidden" if key in SECRET else f"{key} = {toml(value)}"


def toml(value: object) -> str:
    """Return a value as TOML text; None, which TOML lacks, as `none`."""
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case int() | float():
            return str(value)
        case list() | tuple() | set() | frozenset():
            return f"[{', '.join(toml(item) for item in value)}]"
        case dict():
            return "{ " + ", ".join(f"{json.dumps(str(key))} = {toml(item)}" for key, item in value.items()) + " }"
        case Struct():
            return toml({key: item for key, item in structs.asdict(value).items() if item is not None})
        case _:
            return json.dumps(str(value), ensure_ascii=False)
