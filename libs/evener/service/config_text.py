"""Configuration as TOML, for `--print-config`."""

import json
import sys
from collections.abc import Mapping

from msgspec import Struct, structs

from evener.service.config import SECRET, SHARED, ServiceConfig


def show_config(configs: Mapping[str, ServiceConfig]) -> None:
    """Print the effective configuration as TOML. Secrets are hidden."""
    lines: list[str] = []
    for number, (name, config) in enumerate(configs.items()):
        values = structs.asdict(config)
        if not number:
            lines += [_line(key, value) for key, value in values.items() if key in SHARED]
        lines += ["", f"[{name}]", *(_line(key, value) for key, value in values.items() if key not in SHARED)]
    sys.stdout.write("\n".join(lines) + "\n")


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
