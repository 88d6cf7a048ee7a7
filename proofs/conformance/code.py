"""Which code figures belong to."""

import hashlib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PRODUCT: Final = ("proto", "libs", "services")
DIGITS: Final = 12


def digest(root: Path = ROOT) -> str:
    """Return the first digits of the SHA-256 over the product's files: their names, and what is in them."""
    made = hashlib.sha256()
    for folder in PRODUCT:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                content = path.read_bytes()
                made.update(f"{path.relative_to(root)} {len(content)}\n".encode() + content)
    return made.hexdigest()[:DIGITS]


CODE: Final = digest()
"""The digest of the code that this process found at its start."""
