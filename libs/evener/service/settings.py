"""Single settings: a value with the place where it was given, text read as the type that is wanted, keys that are known."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, inspect, structs

from evener.proto.errors import ConfigError


class Text(str):
    """A value given as text: a variable or a flag."""

    __slots__ = ()


class Setting(NamedTuple):
    """One value, and where it was given."""

    value: object
    where: str


Layer = dict[str, Setting]


def convert(setting: Setting, wanted: Any) -> Any:
    """Return the value as the field's type; a string of the environment or a flag is read as one of that type."""
    value, strict = setting.value, True
    try:
        if isinstance(value, Text):
            value, strict = _read_text(value, wanted), False
        return msgspec.convert(value, wanted, strict=strict)
    except (msgspec.ValidationError, msgspec.DecodeError) as cause:
        among = f": it is one of {', '.join(values)}" if (values := _values(wanted)) else ""
        msg = f"{setting.where}: {cause}{among}"
        raise ConfigError(msg) from cause


def _values(wanted: Any) -> tuple[str, ...]:
    """Return the few values that a type has. Empty: it has many."""
    kinds = inspect.type_info(wanted)
    options = kinds.types if isinstance(kinds, inspect.UnionType) else (kinds,)
    return tuple(str(value) for kind in options if isinstance(kind, inspect.LiteralType) for value in kind.values)


def _read_text(text: str, wanted: Any) -> object:
    kinds = inspect.type_info(wanted)
    options = kinds.types if isinstance(kinds, inspect.UnionType) else (kinds,)
    if any(isinstance(kind, inspect.StrType) for kind in options):
        return str(text)
    if text.startswith(("[", "{")):
        return msgspec.json.decode(str(text))
    if any(isinstance(kind, inspect.ListType | inspect.SetType | inspect.FrozenSetType | inspect.VarTupleType) for kind in options):
        return [part.strip() for part in text.split(",") if part.strip()]
    return str(text)


def split(flags: Sequence[str], sections: Mapping[str, type[Struct]]) -> dict[str, Setting]:
    """Take `--key value`, `--key=value`, and `--key` or `--no-key` for a truth value apart."""
    given: dict[str, Setting] = {}
    rest = list(flags)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or not flag:
            msg = f"unexpected argument {word!r}: options are --key value"
            raise ConfigError(msg)
        key = flag.replace("-", "_")
        if not equals and _is_bool(key.removeprefix("no_"), sections):
            value = "false" if key.startswith("no_") else "true"
            key = key.removeprefix("no_")
        elif not equals:
            if not rest:
                known(key.rpartition(".")[2], ("config", *next(iter(sections.values())).__struct_fields__), "as a flag")
                msg = f"--{flag} lacks its value"
                raise ConfigError(msg)
            value = rest.pop(0)
        given[key] = Setting(Text(value), f"--{flag}")
    return given


def _is_bool(flag: str, sections: Mapping[str, type[Struct]]) -> bool:
    section, _, key = flag.rpartition(".")
    config_type = sections.get(section, next(iter(sections.values())))
    return any(field.name == key and field.type is bool for field in structs.fields(config_type))


def known(key: str, names: Iterable[str], where: str) -> None:
    """Raise ConfigError for a key that is not among `names`, with the nearest that is."""
    names = tuple(names)
    if key in names:
        return
    near = difflib.get_close_matches(key, names, n=1)
    msg = f"unknown key {key!r} {where}" + (f"; did you mean {near[0]!r}?" if near else "")
    raise ConfigError(msg)
