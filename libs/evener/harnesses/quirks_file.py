"""Reads a harness's quirks from a TOML file with the fields of `evener.proto.spec.Quirks` and no others."""

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from evener.harnesses.port import HarnessError
from evener.proto.names import unknown
from evener.proto.patterns import BadPattern, text_pattern
from evener.proto.prepared import Converter
from evener.proto.spec import NOISY_ROLES, Noise, Quirks, SideCall, Tolerance

_quirks: Final = Converter(Quirks)


def read_quirks(path: Path) -> Quirks:
    """Return the quirks in a file. Raises HarnessError, which names the place of the fault and a likely correction."""
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as cause:
        msg = f"cannot read the quirks in {path}: {cause}"
        raise HarnessError(msg) from cause
    _check_names(table, path)
    try:
        quirks = _quirks.convert(table)
    except msgspec.ValidationError as cause:
        msg = f"quirks in {path}: {cause}"
        raise HarnessError(msg) from cause
    check_patterns(quirks, f"quirks in {path}")
    for name in ("retry_header", "sub_agent_header"):
        header = getattr(quirks, name)
        if header is not None and header != header.lower():
            msg = f"quirks in {path}: {name} is {header!r}; write it in lower case, as HTTP compares it"
            raise HarnessError(msg)
    return quirks


def check_patterns(quirks: Quirks, where: str) -> None:
    """Raise HarnessError for what is no regular expression, or too much work to compile."""
    for place, pattern in quirks.patterns():
        try:
            text_pattern(pattern)
        except BadPattern as cause:
            msg = f"{where}: {place} is {cause.args[0]}"
            raise HarnessError(msg) from cause


def _check_names(table: dict[str, Any], path: Path) -> None:
    """Check the names that a person may misspell. The types check the rest."""
    _known(table, Quirks.__struct_fields__, "key", f"in {path}")
    _known(_texts(table.get("tolerances")), tuple(Tolerance), "tolerance", f"in {path}")
    for name, kind in (("side_calls", SideCall), ("noise", Noise)):
        for number, entry in enumerate(_tables(table.get(name)), 1):
            _known(entry, kind.__struct_fields__, "key", f"in [[{name}]] {number} of {path}")
    for number, entry in enumerate(_tables(table.get("noise")), 1):
        _known(_texts([entry.get("where")]), NOISY_ROLES, "where", f"in [[noise]] {number} of {path}")


def _known(names: Iterable[str], known: Iterable[str], what: str, where: str) -> None:
    known = tuple(known)
    for name in names:
        if name not in known:
            raise HarnessError(unknown(what, name, known, where))


def _tables(value: object) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _texts(value: object) -> list[str]:
    return [entry for entry in value if isinstance(entry, str)] if isinstance(value, list) else []
