"""Checks the fields of a request body: each becomes a typed value, or a RequestError that names its path. Pure."""

import json
import math
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final, NoReturn, TypeVar

import msgspec
from msgspec import Struct

from evener.dialects.bodies import MAX_VALUES, as_utf8, check_size, mended, values_in
from evener.dialects.canonical import RequestError, RequestHints
from evener.proto.reasons import CallFailure
from evener.tokens.numbers import read_float, read_integer

MAX_NESTING: Final = 100
MAX_MODEL_CHARACTERS: Final = 500
"""The limit of nested objects and lists in a request."""
NO_JSON: Final = (json.JSONDecodeError, UnicodeError)
"""The errors for a body that is not JSON anywhere. Any other ValueError is a limit of Evener."""

NOT_JSON: Final = (msgspec.MsgspecError, ValueError, RecursionError)
"""The errors for a body that cannot be read as JSON."""

FEW_VALUES: Final = 8
"""So many commas and brackets are not looked at more closely."""

Read = TypeVar("Read")

_values_left: Final = ContextVar("values_left", default=MAX_VALUES)
"""How many more JSON values the texts in the request that is being read may hold. They are inside strings, where `check_size` sees none."""


class _StreamAndModel(Struct):
    stream: msgspec.Raw = msgspec.Raw(b"false")
    model: msgspec.Raw = msgspec.Raw(b"null")


_fields: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_hints: Final = msgspec.json.Decoder(_StreamAndModel)


def refuse(path: str, why: str, *, reason: CallFailure = CallFailure.REFUSED) -> NoReturn:
    """Raise a RequestError for the field at `path` (`messages[3].content`) that its provider serves and Evener does not."""
    raise RequestError(f"{path}: {why}" if path else why, field=path or None, reason=reason)


def malformed(path: str, why: str) -> NoReturn:
    """Raise a RequestError for the field at `path` that no provider would serve."""
    refuse(path, why, reason=CallFailure.MALFORMED)


def read_body(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a request body. Raises RequestError."""
    try:
        value = read_json(body)
    except NO_JSON as cause:
        malformed("", f"the body is not JSON: {cause}")
    except ValueError as cause:
        refuse("", f"the body is not JSON: {cause}")
    return as_object(value, "body")


def read_fields(body: bytes) -> dict[str, msgspec.Raw]:
    """Return the fields of the JSON object in a request body, unparsed. Raises RequestError."""
    _values_left.set(MAX_VALUES)
    try:
        plain = as_utf8(body)
        check_size(plain)
        return _decoded(_fields, plain)
    except NOT_JSON as cause:
        read_body(body)  # usually gives the better message
        refuse("", f"the body is not JSON: {cause}")


def read_field(fields: Mapping[str, msgspec.Raw], name: str) -> Any:
    """Return a field's value, None if it is absent or null. Raises RequestError."""
    return read_raw(fields[name], name) if name in fields else None


def read_raw(raw: bytes | msgspec.Raw, path: str) -> Any:
    """Return the JSON value at `path`. Raises RequestError."""
    try:
        return read_json(bytes(raw))
    except NO_JSON as cause:
        malformed(path, f"is not JSON: {cause}")
    except ValueError as cause:
        refuse(path, f"is not JSON: {cause}")


def read_hints(body: bytes) -> RequestHints:
    """Return whether a stream is asked for, and of which model, where both can be read. What cannot, the gateway refuses."""
    try:
        plain = as_utf8(body)
        check_size(plain)
        found = _decoded(_hints, plain)
        model = read_json(bytes(found.model))
    except (*NOT_JSON, RequestError):
        return RequestHints()
    return RequestHints(stream=bytes(found.stream) == b"true", model=model if isinstance(model, str) else "")


def read_json(text: str | bytes) -> Any:
    """Return a JSON value that can be passed on anywhere: finite and not too long numbers, bounded depth, no halves of surrogate pairs.

    Raises ValueError.
    """
    try:
        return _clean(_json.decode(text if isinstance(text, str) else text.decode(json.detect_encoding(text), "surrogatepass")), 0)
    except RecursionError as cause:
        msg = "nested too deeply"
        raise ValueError(msg) from cause


def _decoded(decoder: msgspec.json.Decoder[Read], body: bytes) -> Read:
    """Decode a body; if the decoder refuses it for a fault that can be mended, decode it mended."""
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError:
        whole = mended(body)
        if whole == body:
            raise
        return decoder.decode(whole)


def as_object(value: Any, path: str) -> dict[str, Any]:
    """Return an object, or refuse."""
    return value if isinstance(value, dict) else malformed(path, f"must be an object, not {_kind(value)}")


def as_list(value: Any, path: str) -> list[Any]:
    """Return a list, or refuse."""
    return value if isinstance(value, list) else malformed(path, f"must be a list, not {_kind(value)}")


def as_items(value: Any, path: str) -> list[tuple[Any, str]]:
    """Return the items of a list, each with its path, or refuse."""
    return [(item, f"{path}[{index}]") for index, item in enumerate(as_list(value, path))]


def as_string(value: Any, path: str) -> str:
    """Return a string, or refuse."""
    return value if isinstance(value, str) else malformed(path, f"must be a string, not {_kind(value)}")


def as_name(value: Any, path: str) -> str:
    """Return a string that is not empty, or refuse."""
    return as_string(value, path) or malformed(path, "must not be empty")


def as_model(value: Any) -> str:
    """Return the name of a request's model, or refuse. Each event of the answer repeats it."""
    name = as_name(value, "model")
    return name if len(name) <= MAX_MODEL_CHARACTERS else malformed("model", f"must have at most {MAX_MODEL_CHARACTERS} characters")


def as_flag(value: Any, path: str) -> bool:
    """Return a boolean (null: false), or refuse."""
    return bool(value) if value is None or isinstance(value, bool) else malformed(path, f"must be true or false, not {_kind(value)}")


def as_count(value: Any, path: str, *, at_most: int | None = None) -> int:
    """Return an integer of at least 1, or refuse. 7.0 is an integer: JSON has a single kind of number."""
    count = _whole_number(value)
    if count is None or count < 1 or (at_most is not None and count > at_most):
        malformed(path, "must be an integer of at least 1" + (f" and at most {at_most}" if at_most else ""))
    return count


def as_integer(value: Any, path: str) -> int:
    """Return an integer, or refuse. 7.0 is one."""
    number = _whole_number(value)
    return malformed(path, f"must be an integer, not {_kind(value)}") if number is None else number


def as_number(value: Any, path: str, *, least: float, most: float) -> float:
    """Return a number between two bounds, both included, or refuse."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        malformed(path, f"must be a number, not {_kind(value)}")
    return value if least <= value <= most else malformed(path, f"must be between {least:g} and {most:g}")


def as_arguments(value: Any, path: str) -> dict[str, Any] | str:
    """Return the arguments of a tool call: the parsed object, or the text if it is not an object.

    Texts that hold too many values are refused before they are parsed: the parser would stop all threads, and its result fill the memory.
    """
    if isinstance(value, dict):
        return value
    text = as_string(value, path)
    left = _values_left.get() - _values_of(text)
    if left < 0:
        refuse(path, f"the arguments of all calls have more than {MAX_VALUES} JSON values; send fewer or smaller calls")
    _values_left.set(left)
    try:
        parsed = read_json(text)
    except ValueError:
        return text
    return parsed if isinstance(parsed, dict) else text


def _values_of(text: str) -> int:
    """Return how many members the objects and lists in a JSON text have; of a few, at most how many."""
    most = sum(map(text.count, ",[{"))
    return most if most <= FEW_VALUES else values_in(text.encode(errors="surrogatepass"))


def _whole_number(value: Any) -> int | None:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _kind(value: Any) -> str:
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}
    return names.get(type(value), "an object")


def _clean(value: Any, depth: int) -> Any:
    if depth > MAX_NESTING:
        msg = f"nested deeper than {MAX_NESTING} levels"
        raise ValueError(msg)
    if isinstance(value, str):
        return _whole(value)
    if isinstance(value, dict):
        return {_whole(key): _clean(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item, depth + 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        msg = "a number is out of range"
        raise ValueError(msg)
    return value


def _whole(text: str) -> str:
    """Replace halves of surrogate pairs, which harnesses leave when they cut long outputs, and which are not text."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _not_json(constant: str) -> NoReturn:
    msg = f"{constant} is not JSON"
    raise ValueError(msg)


_json: Final = json.JSONDecoder(parse_float=read_float, parse_int=read_integer, parse_constant=_not_json)
