"""Formats quirks as the TOML file that `--quirks` takes (`evener.harnesses.quirks_file` reads it). Pure."""

from typing import Final

from evener.proto.spec import Quirks

LAST_OF_FOUR_DIGITS: Final = 0xFFFF
_SHORT: Final = {"\n": r"\n", "\t": r"\t", "\r": r"\r"}


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
    if "\\" in text and text.isprintable() and "'" not in text:
        return f"'{text}'"
    return '"' + "".join(one if one.isprintable() and one not in '"\\' else _escaped(one) for one in text) + '"'


def _escaped(one: str) -> str:
    """Return a character as TOML escapes it, which knows no pairs of surrogates."""
    return f"\\{one}" if one in '"\\' else f"\\U{ord(one):08X}" if ord(one) > LAST_OF_FOUR_DIGITS else _SHORT.get(one, f"\\u{ord(one):04X}")
