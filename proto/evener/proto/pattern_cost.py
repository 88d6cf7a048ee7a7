"""Tells from a regular expression's text how much work it is to compile. `regex` has no limit of its own.

Each repetition copies what it repeats, so that 64 characters of repetitions inside repetitions take minutes and all memory.
"""

import re
from typing import Final

MAX_PATTERN_CHARACTERS: Final = 4_000
MAX_PARTS: Final = 20_000
"""The limit of a pattern's characters, each counted as often as the repetitions around it copy it: some 30 ms and 10 MB."""

_TOKEN: Final = re.compile(
    r"""
      \\.                                                   # an escaped character
    | (?P<posix>  \[\^?\]?(?:\\.|[^\]\\])*\[: )             # a set that contains a set
    | \[\^?\]?(?:\\.|[^\]\\])*\]                            # a set
    | (?P<unread> \(\?[a-zA-Z0-9-]*(?:x|V1)[a-zA-Z0-9-]*[:)]  # flags that change the syntax
                | \{[^{}]*<[^{}]*\} )                       # approximate matching
    | (?P<nothing> \(\?\#[^)]*\) | \(\?(?:[aiLmsbefpruw]|V0)*(?:-[a-zA-Z]+)?\) )  # a comment, flags: what follows repeats what is before
    | (?P<open>   \( )
    | (?P<close>  \) )
    | (?P<or>     \| )
    | (?P<repeat> (?: [?*] | (?P<plus>\+) | \{(?P<least>[0-9]+)(?:,[0-9]*)?\} | \{,[0-9]*\} ) [?+]? )
    | .
    """,
    re.DOTALL | re.VERBOSE,
)


def check_cost(pattern: str) -> None:
    """Raise ValueError, which says how to mend it, for a pattern that is long, copies its parts too often, or hides how often it does."""
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        msg = f"it has {len(pattern)} characters; at most {MAX_PATTERN_CHARACTERS} are allowed"
        raise ValueError(msg)
    parts = _parts(pattern)
    if parts > MAX_PARTS:
        msg = f"its repetitions inside repetitions have {parts:.2g} parts, more than {MAX_PARTS}: repeat fewer parts, and less often"
        raise ValueError(msg)


def _parts(pattern: str) -> int:
    """Return the number of parts that a compiler makes: an upper limit, since a part that is repeated from N times up is copied N times."""
    done, last = [0], [0]
    for token in _TOKEN.finditer(pattern):
        match token.lastgroup:
            case "posix":
                msg = r"at position {}: a set contains a set; write the characters, and \[ for a bracket"
                raise ValueError(msg.format(token.start()))
            case "unread":
                msg = r"at position {}: the flags x and V1 and approximate matching are not supported; write \{{ for a brace"
                raise ValueError(msg.format(token.start()))
            case "nothing":
                continue
            case "open":
                done.append(0)
                last.append(0)
            case "close" if len(done) > 1:
                inside = done.pop() + last.pop() + 1
                done[-1], last[-1] = done[-1] + last[-1], inside
            case "repeat" | "plus" | "least":
                last[-1] *= 1 + (int(token["least"] or 0) if token["plus"] is None else 1)
            case _:
                done[-1], last[-1] = done[-1] + last[-1], 1
    return sum(done) + sum(last)
