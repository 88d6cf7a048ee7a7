"""The names of the code: no two public classes, constants or type aliases share one."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDERS = ("proto", "libs", "services")
EVERYWHERE = {"log", "tracer", "app"}
"""What a module has one of: its logger, its tracer, its commands."""
SIBLINGS = {
    "service": ("services/evener/*/*.py", {"Config", "GROUP", "READER", "SERVICE"}),
    "dialect": ("libs/evener/dialects/*.py", {"FINISH", "HOSTED_TOOLS", "MAX_CHOICES", "PATHS", "ROLES", "RULES", "TEXT_PARTS", "TOOL"}),
    "format": ("libs/evener/formats/*.py", {"FORMAT"}),
    "trainer's format": ("libs/evener/formats/trainers/*.py", {"FORMAT", "ONCE"}),
    "harness": ("libs/evener/harnesses/*/*.py", None),
}
"""What has siblings that read alike: its files, and the names that mean the same in each sibling. None: all, as no other code uses them."""
TYPE_VARIABLES = {"TypeVar", "ParamSpec"}
KERNEL = "PR_SET_"
"""Constants of Linux. Programs that import nothing of ours repeat them."""


def defined(module: ast.Module) -> Iterator[str]:
    """Yield the public names of a module's constants and aliases, and those of all its classes."""
    for node in ast.walk(module):
        if isinstance(node, ast.ClassDef):
            yield node.name
    for node in module.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) | ast.AnnAssign(target=ast.Name(id=name), value=value):
                if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in TYPE_VARIABLES):
                    yield name


def shared_names(root: Path) -> dict[str, list[str]]:
    """Return the names that are defined more than once, each with the files. The names of siblings count only if others have them too."""
    found = defaultdict[str, list[str]](list)
    for path in sorted(file.relative_to(root) for folder in FOLDERS for file in (root / folder).rglob("*.py")):
        for name in defined(ast.parse((root / path).read_bytes())):
            own = any(path.match(files) and (names is None or name in names) for files, names in SIBLINGS.values())
            if not name.startswith(("_", KERNEL)) and name not in EVERYWHERE and not own:
                found[name].append(str(path))
    return {name: files for name, files in found.items() if len(files) > 1}


def test_no_two_public_classes_constants_or_aliases_share_a_name() -> None:
    assert shared_names(ROOT) == {}


def test_a_name_that_two_modules_define_is_found(tmp_path: Path) -> None:
    """Also within another class. A private class is nobody else's business, and neither is a logger."""
    (tmp_path / "libs").mkdir()
    (tmp_path / "services").mkdir()
    (tmp_path / "libs" / "one.py").write_text("class Call: ...\nclass _Own: ...\nlog = 1\nLIMIT: Final = 2\nPair = tuple[int, int]\n")
    (tmp_path / "services" / "other.py").write_text(
        "class Outer:\n    class Call: ...\nclass _Own: ...\nlog = 1\nLIMIT = 3\nclass Pair: ...\n"
    )
    assert shared_names(tmp_path) == {name: ["libs/one.py", "services/other.py"] for name in ("Call", "LIMIT", "Pair")}


def test_siblings_have_names_of_the_same_meaning(tmp_path: Path) -> None:
    """A name of theirs that means something else elsewhere is not the guard's: only the listed files are left out."""
    for path in ("services/evener/one/config.py", "services/evener/other/config.py", "libs/one.py", "libs/other.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("class Config: ...\n")
    assert shared_names(tmp_path) == {"Config": ["libs/one.py", "libs/other.py"]}
