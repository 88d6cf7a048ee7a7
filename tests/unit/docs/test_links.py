"""The pages lead somewhere: every relative link, its anchor included, and every path of ours that a page spells."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
SPELLED = re.compile(r"`((?!tests/test\.sh)(?:docs|examples|libs|proofs|proto|scripts|services|tests)/[\w./-]+)`")
"""But `tests/test.sh`, which is a task's."""
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return CODE.sub("", page.read_text())


def links(page: Path) -> Iterator[str]:
    """Yield the relative links of a page."""
    for found in LINK.finditer(prose(page)):
        link = found[1] or found[2]
        if "://" not in link:
            yield link


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in HEADING.findall(prose(page))}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_what_is_there(page: Path) -> None:
    """A file that was moved takes its links along."""
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_that_a_page_spells_are_there(page: Path) -> None:
    """`libs/evener/audit/engine_ledger.py` in a page is a file in the tree."""
    missing = [path for path in SPELLED.findall(prose(page)) if not (ROOT / path).exists()]

    assert missing == []


def test_pages_that_the_product_names_are_there() -> None:
    """In messages and docstrings."""
    sources = [file.read_text() for folder in ("libs", "proto", "services") for file in (ROOT / folder).rglob("*.py")]
    missing = [page for source in sources for page in re.findall(r"docs/[\w./-]+\.md", source) if not (ROOT / page).exists()]

    assert missing == []


def test_every_page_of_the_docs_can_be_reached_from_the_readme() -> None:
    """A page that nobody links to is a page that nobody keeps."""
    reached, todo = set(), [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            todo += [(page.parent / link.partition("#")[0]).resolve() for link in links(page) if link.partition("#")[0]]

    assert {page for page in PAGES if page.is_relative_to(ROOT / "docs")} <= reached
