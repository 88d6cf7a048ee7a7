"""Why every decoder is a constant of its module, and what stands beside `msgspec.convert`.

msgspec 0.22 builds the type information of a Struct when it is decoded into for the first time, and hangs it on the class before it
is whole (`StructInfo_Convert` in `_core.c`: `class->struct_info` is set, then the fields are read, which runs Python code and lets
other threads in). A thread that decodes into the same Struct meanwhile follows null pointers: the process ends with SIGSEGV.
Making, copying and encoding Structs build nothing; decoders, `convert`, `inspect.type_info` and `json.schema` do.

A `Decoder` builds the information of its type, and of all that it reaches, when it is made. Modules are imported in one thread. So a
decoder is made where its module is imported, never where it is used: `decode(..., type=...)` and `msgspec.convert` stand nowhere
but in here and where there are no threads yet. `tests/unit/proto/test_prepared.py` finds what is forgotten.
"""

from typing import Any, Final, Generic, TypeVar

import msgspec

T = TypeVar("T")


class Converter(Generic[T]):
    """`msgspec.convert` to one type, which is prepared when this is made: a constant of its module, as a decoder is."""

    def __init__(self, wanted: type[T], *, strict: bool = True) -> None:
        self.type: Final = wanted
        self._strict: Final = strict
        msgspec.json.Decoder(wanted)

    def convert(self, value: Any) -> T:
        """Return the value as the type. Raises msgspec.ValidationError."""
        return msgspec.convert(value, self.type, strict=self._strict)
