"""The dialects that are served."""

from typing import Final

from evener.dialects.canonical import Dialect
from evener.dialects.openai_chat import OpenAIChat

DIALECTS: Final[tuple[Dialect, ...]] = (OpenAIChat(),)


def dialect_for(path: str) -> Dialect | None:
    """Return the dialect that asks for answers at this path (with any query), or None."""
    return next((dialect for dialect in DIALECTS if dialect.serves(path)), None)
