"""Harnesses that installed packages add."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from evener.harnesses.registry import installed


@contextmanager
def packages_in(site: Path) -> Iterator[None]:
    """Have the packages in a folder installed, as a new process sees them."""
    sys.path.insert(0, str(site))
    installed.cache_clear()
    try:
        yield
    finally:
        sys.path.remove(str(site))
        installed.cache_clear()


def install(site: Path, package: str, points: str, module: str) -> None:
    """Lay out an installed package of one module, as pip does."""
    (site / f"{package}.py").write_text(module)
    info = site / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[evener.harnesses]\n{points}\n")
