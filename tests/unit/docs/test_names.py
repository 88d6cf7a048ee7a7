"""The names of the code: no two public classes share one."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDERS = ("proto", "libs", "services")


def shared_names(root: Path) -> dict[str, list[str]]:
    """Return the names that several public classes have, each with the files of these classes."""
    found = defaultdict[str, list[str]](list)
    for file in sorted(file for folder in FOLDERS for file in (root / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(file.relative_to(root)))
    return {name: files for name, files in found.items() if len(files) > 1}


def test_no_two_public_classes_share_a_name_except_the_services_configurations() -> None:
    shared = shared_names(ROOT)
    configs = shared.pop("Config")
    assert shared == {}
    assert sorted(configs) == sorted(str(file.relative_to(ROOT)) for file in (ROOT / "services").glob("evener/*/config.py"))


def test_a_name_that_two_modules_define_is_found(tmp_path: Path) -> None:
    """Also within another class. A private class is nobody else's business."""
    (tmp_path / "libs").mkdir()
    (tmp_path / "services").mkdir()
    (tmp_path / "libs" / "one.py").write_text("class Call: ...\nclass _Own: ...\n")
    (tmp_path / "services" / "other.py").write_text("class Outer:\n    class Call: ...\nclass _Own: ...\n")
    assert shared_names(tmp_path) == {"Call": ["libs/one.py", "services/other.py"]}
