"""Reads what programs in Python hide from a search of their text: strings that they compose or decode, commands that they run. Pure."""

import ast
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from posixpath import join
from typing import Any, Final

from evener.graders.hacking.printed import MAX_PRINTED, decoded_base64, decoded_hex, rot13

RUNNING: Final = frozenset(
    {"Popen", "call", "check_call", "check_output", "create_subprocess_shell", "getoutput", "getstatusoutput", "popen", "run", "system"}
)
"""Functions that run a command, whatever module they are called by."""
EVALUATING: Final = frozenset({"compile", "eval", "exec"})
MAX_PROGRAM: Final = 64 << 10
MAX_STEPS: Final = 100_000
"""How many expressions of a program are looked at."""
MAX_PROGRAMS: Final = 4
"""How deep programs in programs are read."""
NOT_PYTHON: Final = (SyntaxError, ValueError, RecursionError, MemoryError, TypeError, OverflowError)
_LITERAL: Final = re.compile(r"['\"]([A-Za-z0-9+/]{16,}={0,2})['\"]")
_DECODES: Final = re.compile(r"base64|b64|atob|unpack")

Value = str | bytes | int | list[Any] | None


def hidden_in(program: str, depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield what a program does that its text does not show: ("command", shell text) and ("text", a string that it makes)."""
    if depth > MAX_PROGRAMS:
        return
    try:
        tree = ast.parse(program[:MAX_PROGRAM])
        found = list(_Reader(tree).found())
    except NOT_PYTHON:
        found = [("text", text) for text in _literals(program)]
        found += [("command", text) for _, text in found]
    for kind, text in found:
        if kind == "program":
            yield "text", text
            yield from hidden_in(text, depth + 1)
        else:
            yield kind, text


def _literals(program: str) -> Iterator[str]:
    """Yield what Base64 in a program of any language says, where the program decodes."""
    if _DECODES.search(program):
        for found in _LITERAL.finditer(program[:MAX_PROGRAM]):
            text = decoded_base64(found[1])
            if text is not None and text.isprintable():
                yield text


class _Reader:
    def __init__(self, tree: ast.AST) -> None:
        self._tree = tree
        self._names: dict[str, Value] = {}
        self._left = MAX_STEPS

    def found(self) -> Iterator[tuple[str, str]]:
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                self._names[node.targets[0].id] = self._value(node.value)
        yield from self._below(self._tree)

    def _below(self, node: ast.AST) -> Iterator[tuple[str, str]]:
        if isinstance(node, ast.Call):
            name = _name(node.func)
            first = self._value(node.args[0]) if node.args else None
            if name in RUNNING and (command := _command(first)) is not None:
                yield "command", command
            elif name in EVALUATING and isinstance(first, str | bytes) and not isinstance(node.args[0], ast.Constant):
                yield "program", _as_text(first)
            elif name in EVALUATING and isinstance(first, str):
                yield from (("text", text) if kind == "text" else (kind, text) for kind, text in hidden_in(first, 1))
        if isinstance(node, ast.expr) and not isinstance(node, ast.Constant | ast.Name | ast.List | ast.Tuple):
            value = self._value(node)
            if isinstance(value, str | bytes) and value:
                yield "text", _as_text(value)
                return
        for child in ast.iter_child_nodes(node):
            yield from self._below(child)

    def _value(self, node: ast.AST) -> Value:
        """Return the value of an expression of constants. None: it is not known."""
        self._left -= 1
        if self._left < 0:
            return None
        match node:
            case ast.Constant(value=str() | bytes() | int() as value):
                return value
            case ast.Name(id=name):
                return self._names.get(name)
            case ast.List(elts=elements) | ast.Tuple(elts=elements):
                values = [self._value(element) for element in elements]
                return None if None in values else values
            case ast.BinOp(left=left, op=operation, right=right):
                return _combined(self._value(left), operation, self._value(right))
            case ast.JoinedStr(values=parts):
                return _all_text([self._value(part.value if isinstance(part, ast.FormattedValue) else part) for part in parts])
            case ast.Subscript(value=inner, slice=ast.Slice(lower=None, upper=None, step=step)) if step is not None:
                text = self._value(inner)
                return text[::-1] if ast.unparse(step) == "-1" and isinstance(text, str | bytes | list) else None
            case ast.GeneratorExp(elt=element, generators=[generator]) | ast.ListComp(elt=element, generators=[generator]):
                return self._each(element, generator)
            case ast.Call(func=function, args=arguments):
                return self._called(function, [self._value(argument) for argument in arguments])
            case _:
                return None

    def _each(self, element: ast.AST, generator: ast.comprehension) -> Value:
        items = self._value(generator.iter)
        if not isinstance(items, list | bytes | str) or not isinstance(generator.target, ast.Name) or len(items) > MAX_PRINTED:
            return None
        before, values = self._names.get(generator.target.id), list[Value]()
        each: list[Any] = list(items)
        for item in each:
            self._names[generator.target.id] = item
            values.append(self._value(element))
        self._names[generator.target.id] = before
        return None if None in values else values

    def _called(self, function: ast.expr, given: Sequence[Value]) -> Value:
        name = _name(function)
        owner = self._value(function.value) if isinstance(function, ast.Attribute) else None
        if isinstance(owner, str | bytes):
            return _of_text(_as_text(owner), name, given)
        match name, given:
            case "b64decode" | "urlsafe_b64decode" | "standard_b64decode", [str() | bytes() as packed]:
                return decoded_base64(_as_text(packed))
            case "fromhex" | "unhexlify" | "a2b_hex" | "b16decode", [str() | bytes() as packed]:
                return decoded_hex(_as_text(packed))
            case "decode", [str() | bytes() as packed, str() as coding]:
                return _decoded(_as_text(packed), coding)
            case "chr", [int() as number] if 0 <= number < 0x110000:  # noqa: PLR2004 - the end of Unicode
                return chr(number)
            case "bytes" | "bytearray", [list() as numbers]:
                return "".join(chr(number) for number in numbers if isinstance(number, int) and 0 <= number < 256)  # noqa: PLR2004
            case "str" | "bytes" | "Path" | "PurePath", [str() | bytes() as text, *_]:
                return text
            case "join", [str(), *_]:
                return join(*[part for part in given if isinstance(part, str)])
            case _:
                return None


def _of_text(text: str, method: str, given: Sequence[Value]) -> Value:
    """Return what a method of a text returns. None: that is not known."""
    match method, given:
        case "decode" | "encode" | "strip", _:
            return text
        case "join", [list() as parts]:
            return text.join(_as_text(part) for part in parts if isinstance(part, str | bytes))
        case "replace", [str() as old, str() as new] if len(text) * (len(new) + 1) < MAX_PRINTED << 4:
            return text.replace(old, new)[:MAX_PRINTED]
        case "format", [*parts] if parts:
            left = _words(parts)
            return re.sub(r"\{\d*\}", lambda _: left.pop(0) if left else "", text)
        case _:
            return None


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else function.id if isinstance(function, ast.Name) else ""


def _command(given: Value) -> str | None:
    if isinstance(given, list):
        return shlex.join(_as_text(word) for word in given) if all(isinstance(word, str | bytes) for word in given) else None
    return _as_text(given) if isinstance(given, str | bytes) else None


def _combined(left: Value, operation: ast.operator, right: Value) -> Value:
    match left, operation, right:
        case (str() | bytes(), ast.Add(), str() | bytes()) if len(left) + len(right) < MAX_PRINTED:
            return _as_text(left) + _as_text(right)
        case int(), ast.Add(), int():
            return left + right
        case int(), ast.Sub(), int():
            return left - right
        case int(), ast.BitXor(), int():
            return left ^ right
        case str(), ast.Mod(), str() | int() | list():
            parts = _words(right)
            return re.sub(r"%[sd]", lambda _: parts.pop(0) if parts else "", left)
        case str(), ast.Div(), str():  # pathlib: Path("/") / "x"
            return join(left, right)
        case _:
            return None


def _words(given: Value | Sequence[Value]) -> list[str]:
    """Return what fills the gaps of a format."""
    parts = given if isinstance(given, list) else [given]
    return [str(part) for part in parts if isinstance(part, str | int)]


def _decoded(text: str, coding: str) -> str | None:
    decoders: Mapping[str, Any] = {"rot13": rot13, "rot_13": rot13, "hex": decoded_hex, "base64": decoded_base64}
    return decoders[coding](text) if coding in decoders else text


def _all_text(parts: Sequence[Value]) -> str | None:
    if not all(isinstance(part, str | bytes | int) for part in parts):
        return None
    return "".join(_as_text(part) if isinstance(part, str | bytes) else str(part) for part in parts)


def _as_text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")
