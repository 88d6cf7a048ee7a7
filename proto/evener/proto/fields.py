"""Makes a Struct of another one: the record of a group of its state, or what clients see of an event."""

from typing import Any

from msgspec import Struct


def shared_fields(source: Struct, kind: type[Struct]) -> dict[str, Any]:
    """Return the values of the fields of `source` that `kind` has under the same names."""
    return {name: getattr(source, name) for name in kind.__struct_fields__ if name in source.__struct_fields__}
