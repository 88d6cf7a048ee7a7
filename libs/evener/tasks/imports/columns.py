"""Finds values in rows whose columns have many names, and makes names and TOML of them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from evener.tasks.imports.port import DataRow

MAX_NAME: Final = 80
NAME_COLUMNS: Final = ("instance_id", "task_id", "id", "uuid", "name")
_lists: Final = msgspec.json.Decoder(list[str])


class ColumnMissing(Exception):
    """A row lacks a column, or has something else in it. It is refused, with this text as the reason."""


def value_of(row: DataRow, column: str) -> Any:
    """Return the value of a column, or of a field (`column.field`). None: there is none."""
    if column in row:
        return row[column]
    found: Any = row
    for part in column.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    return found


def first_of(row: DataRow, wanted: str | None, known: Iterable[str]) -> tuple[str, Any]:
    """Return the name and value of the wanted column, otherwise of the first known one that has a value. Raises ColumnMissing."""
    names = (wanted,) if wanted else tuple(known)
    for name in names:
        if (value := value_of(row, name)) is not None:
            return name, value
    msg = f"it has none of the columns {', '.join(names)}; it has {', '.join(row) or 'none'}"
    raise ColumnMissing(msg)


def text_of(row: DataRow, column: str) -> str:
    """Return the text of a column. Raises ColumnMissing."""
    value = value_of(row, column)
    if not isinstance(value, str):
        msg = f"its column {column!r} is {'missing' if value is None else 'no text'}"
        raise ColumnMissing(msg)
    return value


def list_of(row: DataRow, column: str) -> tuple[str, ...]:
    """Return the texts of a column that holds a list, or the JSON of one; nothing for a column that is missing. Raises ColumnMissing."""
    value = value_of(row, column)
    try:
        found = _lists.decode(value) if isinstance(value, str) else value or []
    except msgspec.DecodeError as cause:
        msg = f"its column {column!r} is no list of texts: {cause}"
        raise ColumnMissing(msg) from cause
    if not isinstance(found, list | tuple) or not all(isinstance(item, str) for item in found):
        msg = f"its column {column!r} is no list of texts"
        raise ColumnMissing(msg)
    return tuple(found)


def name_of(row: DataRow, number: int, wanted: str | None, prefix: str) -> str:
    """Return the name of a row's task: of its column, otherwise a number after the prefix."""
    for column in (wanted,) if wanted else NAME_COLUMNS:
        value = value_of(row, column)
        if isinstance(value, str | int) and (name := plain(str(value))):
            return name
    return f"{plain(prefix) or 'task'}-{number:05d}"


def plain(text: str) -> str:
    """Return a text as the name of a folder: letters, digits, '.', '_' and '-'."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:MAX_NAME]


def toml(tables: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Return tables of plain values as TOML. Empty tables are left out."""
    return "\n".join("\n".join(_table(name, values)) + "\n" for name, values in tables.items() if values).encode()


def _table(name: str, values: Mapping[str, Any]) -> Iterator[str]:
    yield f"[{name}]"
    for key, value in values.items():
        yield f"{key} = {_value(value)}"


def _value(value: Any) -> str:
    """Return a value as TOML. What JSON writes of texts is TOML too, but for DEL."""
    match value:
        case bool():
            return str(value).lower()
        case str():
            return msgspec.json.encode(value).decode().replace("\x7f", "\\u007f")
        case _:
            return str(value)
