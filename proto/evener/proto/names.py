"""Messages for misspelt names."""

import difflib
from collections.abc import Iterable


def unknown(what: str, name: str, known: Iterable[str], where: str) -> str:
    """Return the message for a name that is not in `known`. It names the nearest known name, or all of them."""
    names = tuple(map(str, known))
    near = difflib.get_close_matches(name, names, n=1)
    return f"unknown {what} {name!r} {where}" + (f"; did you mean {near[0]!r}?" if near else f"; there are {', '.join(names)}")
