"""What a page names in code is there: classes, files, and modules."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
FOLDERS = ("examples", "libs", "proofs", "proto", "scripts", "services", "tests")
SPAN = re.compile(r"`([^`\n]+)`")
CLASS = re.compile(r"[A-Z][a-z]+\w*")
FILE = re.compile(r"(?:[\w-]+/)*\w+\.py")
MODULE = re.compile(r"evener(?:\.\w+){2,}")


@pytest.fixture(scope="module")
def files() -> list[Path]:
    return [file for folder in FOLDERS for file in (ROOT / folder).rglob("*.py")]


@pytest.fixture(scope="module")
def words(files: list[Path]) -> set[str]:
    """Return the words of the code. Tests do not count: a name that only a test has is no longer there."""
    return {word for file in files if not file.is_relative_to(ROOT / "tests") for word in re.findall(r"\w+", file.read_text())}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_in_code_is_there(page: Path, files: list[Path], words: set[str]) -> None:
    """A class, a file or a module that is renamed takes the pages along."""
    spans = SPAN.findall(page.read_text())
    ends = {"/".join(file.parts[-length:]) for file in files for length in range(1, len(file.relative_to(ROOT).parts) + 1)}
    modules = {
        ".".join(file.with_suffix("").parts[file.parts.index("evener") :]).removesuffix(".__init__")
        for file in files
        if "evener" in file.parts
    }
    packages = {module.split(".")[1] for module in modules if "." in module}

    assert [name for name in spans if CLASS.fullmatch(name) and name not in words] == []
    assert [name for name in spans if FILE.fullmatch(name) and name not in ends] == []
    dotted = [name for name in spans if MODULE.fullmatch(name) and name.split(".")[1] in packages]
    assert [name for name in dotted if name not in modules and name.rpartition(".")[0] not in modules] == []
