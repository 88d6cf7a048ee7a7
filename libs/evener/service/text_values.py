"""Values that people write as text: of a flag, of a variable."""

from typing import Any

import msgspec
from msgspec import inspect


def from_text(text: str, wanted: Any) -> Any:
    """Return a text as a value of the wanted type. A list has commas between its items, or is JSON, as a table is. Raises ValueError."""
    kind = inspect.type_info(wanted)
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    try:
        return msgspec.convert(_read(text, kinds), wanted, strict=False)
    except (msgspec.ValidationError, msgspec.DecodeError) as cause:
        values = [str(value) for one in kinds if isinstance(one, inspect.LiteralType) for value in one.values]
        msg = f"{cause}: it is one of {', '.join(values)}" if values else str(cause)
        raise ValueError(msg) from cause


def _read(text: str, kinds: tuple[inspect.Type, ...]) -> Any:
    if any(isinstance(kind, inspect.StrType) for kind in kinds):
        return text
    if text.startswith(("[", "{")):
        return msgspec.json.decode(text)
    if any(isinstance(kind, inspect.CollectionType) for kind in kinds):
        return [part.strip() for part in text.split(",") if part.strip()]
    return text
