"""Formats quirks as the TOML file that `--quirks` takes (`evener.harnesses.quirks_file` reads it). Pure."""

import json

from evener.proto.spec import Quirks


def quirks_toml(quirks: Quirks) -> str:
    """Return the quirks as TOML."""
    lines: list[str] = []
    for name in Quirks.__struct_fields__:
        value = getattr(quirks, name)
        if isinstance(value, str):
            lines.append(f"{name} = {_quoted(value)}")
        elif name == "tolerances" and value:
            lines.append(f"tolerances = [{', '.join(_quoted(str(one)) for one in value)}]")
    for name, entries in (("side_calls", quirks.side_calls), ("noise", quirks.noise)):
        for entry in entries:
            given = {field: getattr(entry, field) for field in entry.__struct_fields__}
            lines += ["", f"[[{name}]]", *(f"{field} = {_value(value)}" for field, value in given.items() if value is not None)]
    return "\n".join(lines).strip() + "\n"


def _value(value: str | bool) -> str:  # noqa: FBT001 - a value of a file
    return _quoted(value) if isinstance(value, str) else str(value).lower()


def _quoted(text: str) -> str:
    """Return a TOML string, a literal one if possible, so that patterns stay readable."""
    plain = text.isprintable() and "'" not in text
    return f"'{text}'" if plain and "\\" in text else json.dumps(text, ensure_ascii=not plain)
