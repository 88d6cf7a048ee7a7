"""No Struct is decoded into for the first time where there are threads: msgspec 0.22 ends the process then."""

import ast
import gc
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final, get_args, get_type_hints

import msgspec
import pytest
from msgspec import Struct

from evener.proto.codec import AnyEvent
from evener.proto.prepared import Converter

ROOT: Final = Path(__file__).parents[3]
ALLOWED: Final = {
    "proto/evener/proto/prepared.py": "the one place that prepares and then converts",
    "libs/evener/service/text_values.py": "configuration and flags: read in the main thread, before there is another",
    "libs/evener/engines/scripted/requests.py": "`reader` makes a Struct of its own, and its decoder before anybody else has it",
}


def test_nothing_is_decoded_by_a_type_that_is_not_prepared() -> None:
    """A decoder is a constant of its module, and so is a converter."""
    found = {str(file.relative_to(ROOT)): list(first_uses(file.read_text())) for file in sources()}

    assert len(found) > 200
    assert {file: uses for file, uses in found.items() if uses and file not in ALLOWED} == {}
    assert all(found[file] for file in ALLOWED), "an exception that nobody needs any more"


@pytest.mark.parametrize(
    "forgotten",
    [
        "msgspec.json.decode(data, type=Event)",
        "msgspec.msgpack.decode(data, type=list[Event])",
        "decode = msgspec.json.decode\ndecode(data, type=Event)",
        "msgspec.convert(data, Event)",
        "from msgspec import convert",
        "def read(data):\n    return msgspec.json.Decoder(Event).decode(data)",
        "async def read(data):\n    return Converter(Event).convert(data)",
        "class Reader:\n    def __init__(self):\n        self.decoder = json.Decoder(Event)",
        "def read(kind):\n    return msgspec.inspect.type_info(kind)",
    ],
)
def test_a_forgotten_one_is_found(forgotten: str) -> None:
    """However it is written."""
    assert list(first_uses(forgotten))


def test_all_that_decoders_reach_is_prepared_after_the_import() -> None:
    """A later msgspec that waits for the first use would show here."""
    reached: set[type[Struct]] = set()
    for module in modules():
        for constant in vars(module).values():
            if isinstance(constant, msgspec.json.Decoder | msgspec.msgpack.Decoder | Converter):
                reached |= set(structs_in(constant.type))

    assert set(get_args(AnyEvent)) <= reached
    assert len(reached) > 100
    assert {f"{struct.__module__}.{struct.__name__}" for struct in reached if not is_prepared(struct)} == set()


def test_an_unprepared_struct_looks_otherwise() -> None:
    """What the test above looks at does tell."""

    class Fresh(Struct):
        """Nobody has decoded it."""

        field: int = 0

    msgspec.json.encode(Fresh(field=1))
    assert not is_prepared(Fresh)
    Converter(Fresh)
    assert is_prepared(Fresh)


def test_threads_decode_all_events_for_the_first_time_at_once() -> None:
    """In a new process: where the types were built at first use, every third one ended with SIGSEGV."""
    for _ in range(5):
        command = [sys.executable, "-m", "tests.unit.proto.decoding_at_once", "8"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


def first_uses(source: str) -> Iterator[str]:
    """Yield what may build a type's information in the middle of the work, each as it stands there."""
    tree = ast.parse(source)
    inside = {id(node) for function in ast.walk(tree) if is_function(function) for node in ast.walk(function)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "msgspec" and any(name.name == "convert" for name in node.names):
            yield ast.unparse(node)
        if not isinstance(node, ast.Call):
            continue
        called, text = ast.unparse(node.func), ast.unparse(node)
        name = called.rpartition(".")[2]
        by_type = name == "decode" and any(keyword.arg == "type" for keyword in node.keywords)
        of_msgspec = called in {"msgspec.convert", "msgspec.inspect.type_info", "inspect.type_info"}
        late = name in {"Decoder", "Converter"} and id(node) in inside
        if by_type or of_msgspec or late:
            yield text


def is_function(node: ast.AST) -> bool:
    """Return whether this is run later than its module."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)


def is_prepared(struct: type[Struct]) -> bool:
    """Return whether the type information hangs on the class: the collector sees it there."""
    return any(type(held).__name__ == "StructInfo" for held in gc.get_referents(struct))


def sources() -> Iterator[Path]:
    """Yield the files of the product."""
    for part in ("proto", "libs", "services"):
        yield from sorted((ROOT / part).rglob("*.py"))


def modules() -> Iterator[ModuleType]:
    """Import every module that makes a decoder."""
    for file in sources():
        if re.search(r"\b(Decoder|Converter)\(", file.read_text()):
            yield importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts[1:]).removesuffix(".__init__"))


def structs_in(hint: Any) -> Iterator[type[Struct]]:
    """Yield all Structs that a type reaches."""
    seen: set[Any] = set()
    waiting = [hint]
    while waiting:
        each = waiting.pop()
        if inspect.isclass(each) and issubclass(each, Struct):
            if each in seen:
                continue
            seen.add(each)
            yield each
            waiting += get_type_hints(each).values()
        waiting += get_args(each)
