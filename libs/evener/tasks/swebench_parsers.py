"""The log parsers of the package `swebench`, where it is installed."""

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

PACKAGE: Final = "swebench"
REGISTRY_MODULE: Final = "swebench.harness.log_parsers"

SwebenchParser = Callable[[str, Any], Mapping[str, str]]
"""Takes what a test runner printed, and of which row it is, which most ignore. Returns test name to state."""


@cache
def swebench_parsers() -> Mapping[str, SwebenchParser]:
    """Return the parsers by name; none if the package is missing, or one that it needs is. Blocks: it imports much."""
    if importlib.util.find_spec(PACKAGE) is None:
        return {}
    try:
        registry: Mapping[str, SwebenchParser] = importlib.import_module(REGISTRY_MODULE).PARSER_REGISTRY
    except (ImportError, AttributeError):
        return {}
    return registry
