"""Why every decoder is a constant of its module, and what replaces `msgspec.convert`.

msgspec 0.22 builds the type information of a Struct the first time something is decoded into it, and attaches the information to the class
before it is complete (`StructInfo_Convert` in `_core.c` sets `class->struct_info`, then reads the fields, which runs Python code and lets
other threads run). A thread that decodes into the same Struct at that moment follows null pointers, and the process ends with SIGSEGV.
Creating, copying and encoding Structs build nothing; decoders, `convert`, `inspect.type_info` and `json.schema` do.

A `Decoder` builds the information of its type, and of every type that it reaches, when it is created. Modules are imported in one thread.
Therefore every decoder is created when its module is imported, never where it is used: `decode(..., type=...)` and `msgspec.convert` may
stand only in this module and in code that runs before there are threads. `tests/unit/proto/test_prepared.py` finds violations.
"""

from typing import Any, Final, Generic, TypeVar

import msgspec

T = TypeVar("T")


class Converter(Generic[T]):
    """`msgspec.convert` to one type, whose information is built when the converter is created. Make it a constant of its module."""

    def __init__(self, wanted: type[T], *, strict: bool = True) -> None:
        self.type: Final = wanted
        self._strict: Final = strict
        msgspec.json.Decoder(wanted)

    def convert(self, value: Any) -> T:
        """Return the value converted to the type. Raises msgspec.ValidationError."""
        return msgspec.convert(value, self.type, strict=self._strict)
