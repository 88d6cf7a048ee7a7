"""The official SDKs of providers, imported when a test first uses one.

Every worker imports all test files, and few of them run those that use an SDK: importing all three takes three seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["anthropic", "genai", "openai"]


class Unopened:
    """A module that is imported when something of it is used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # pytest asks everything for its marks
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


if TYPE_CHECKING:
    import anthropic
    import openai
    from google import genai
else:
    anthropic, openai, genai = (Unopened(name) for name in ("anthropic", "openai", "google.genai"))
