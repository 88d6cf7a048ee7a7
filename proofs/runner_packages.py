"""The test runner for sandboxes without a network: pytest and what it needs, from the packages that are installed here (Python alone)."""

import shutil
from importlib import metadata
from pathlib import Path
from typing import Final

PACKAGES: Final = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")


def copy_runner(folder: Path) -> None:
    """Copy the packages into a folder, for PYTHONPATH. Blocks."""
    for name in PACKAGES:
        for file in metadata.distribution(name).files or ():
            if (file.suffix == ".py" or file.name == "METADATA") and ".." not in file.parts:
                place = folder / file
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(Path(str(file.locate())), place)
