"""Every member of an enumeration and every field of an event is produced by somebody: what nothing produces is a promise to readers that
nobody keeps."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

TREE = Path(__file__).parents[3]
CHOSEN = {
    "Consequence",
    "NetworkMode",
    "Purpose",
    "Reasoning",
    "RewardStrategy",
    "Strategy",
    "Streaming",
    "Thinking",
    "Transport",
    "VerifierMode",
}
"""Enumerations whose members come from options, tasks and configuration, decoded by their values."""
OPTIONS = {"Budgets", "GroupOptions", "SandboxLimits"}
"""Structs that come from options, tasks and configuration."""


@cache
def parsed(*folders: str) -> list[ast.Module]:
    """Return the modules below folders of the tree."""
    return [ast.parse(file.read_text()) for folder in folders for file in (TREE / folder).rglob("*.py")]


def events() -> list[ast.Module]:
    return parsed("proto")


def users() -> list[ast.Module]:
    return parsed("libs", "services")


def members() -> Iterator[tuple[str, str]]:
    """Yield the enumerations of the product with their members."""
    for node in (node for source in (*events(), *users()) for node in ast.walk(source)):
        if isinstance(node, ast.ClassDef) and any(isinstance(base, ast.Name) and base.id.endswith("Enum") for base in node.bases):
            for statement in node.body:
                if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                    yield node.name, statement.targets[0].id


def produced(source: ast.AST, *, keys: bool) -> Iterator[tuple[str, str]]:
    """Yield what is named as `Class.MEMBER`, except in comparisons and patterns, and, without `keys`, in the keys of tables."""
    match source:
        case ast.Compare() | ast.pattern():
            return
        case ast.Dict() if not keys:
            inner: list[ast.AST] = list(source.values)
        case ast.Attribute(value=ast.Name(id=name), attr=member):
            yield name, member
            return
        case _:
            inner = list(ast.iter_child_nodes(source))
    for node in inner:
        yield from produced(node, keys=keys)


def test_every_member_is_produced() -> None:
    """The tables beside the events say what follows from a member, and produce none."""
    found = {use for source in events() for use in produced(source, keys=False)}
    found |= {use for source in users() for use in produced(source, keys=True)}
    missing = [f"{name}.{member}" for name, member in members() if (name, member) not in found and name not in CHOSEN]

    assert missing == []


def fields() -> Iterator[tuple[str, str]]:
    """Yield the Structs of the log with their fields that have a default."""
    for node in (node for source in events() for node in ast.walk(source)):
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value is not None:
                    yield node.name, statement.target.id


def test_every_field_with_a_default_is_given_by_somebody() -> None:
    """By its name, as an argument, a key or an assignment: a field that always has its default says nothing."""
    given = set[str]()
    for node in (node for source in (*events(), *users()) for node in ast.walk(source)):
        match node:
            case ast.keyword(arg=str(name)) | ast.Constant(value=str(name)) | ast.Attribute(attr=name, ctx=ast.Store()):
                given.add(name)
            case _:
                pass
    assert [f"{struct}.{name}" for struct, name in fields() if name not in given and struct not in OPTIONS] == []
