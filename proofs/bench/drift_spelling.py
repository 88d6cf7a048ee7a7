"""How policies of known families spell an answer: a text in the tokens that a sampler chose, and a tool call as models really write it.

Only the tokenizers of these families are at hand, not their weights. So the text is one that SmolLM2 sampled, and where its sampler
left the tokenizer's way (a border between tokens that encoding the text would not set) the family's tokens get that border too.
Everywhere else the family's own tokenizer decides: what differs between two vocabularies is not counted as drift.
"""

import json
import random
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final, Literal

import numpy as np
from msgspec import Struct

from evener.templates.calls import DEEPSEEK, DEEPSEEK_END
from evener.templates.port import Renderer
from evener.tokens.forest import Ids

Variant = Literal["plain", "compact", "reordered", "escaped", "white space", "exponent"]
VARIANTS: Final[tuple[Variant, ...]] = ("plain", "compact", "reordered", "escaped", "white space", "exponent")
"""How arguments are spelled: as the template does; without spaces; keys in another order; ASCII; other white space; numbers like 1e3."""
TOOL: Final = "write"
OPTIONS: Final = {"path": {"type": "string"}, "limit": {"type": "number"}, "as": {"type": "object"}}
TOOLS: Final = [
    {
        "type": "function",
        "function": {"name": TOOL, "description": "Writes a file.", "parameters": {"type": "object", "properties": OPTIONS}},
    }
]


class Sampled(Struct, frozen=True):
    """A text, and the places inside it (in letters) where its sampler set a border that the tokenizer would not."""

    text: str
    borders: tuple[int, ...]


def sampled_text(renderer: Renderer, ids: Ids) -> Sampled:
    """Return what was sampled, without control tokens, letters that were cut in two, and white space around it."""
    pieces = [piece for piece in renderer.pieces(ids.tolist()) if not piece.startswith((b"<|", b"<end"))]
    text = b"".join(pieces).decode(errors="ignore")
    whole = [len(part) for part in _beginnings(pieces)]
    canonical = {len(part) for part in _beginnings(renderer.pieces(renderer.encode(text, special=False)))}
    lead = len(text) - len(text.lstrip())
    text = text.strip()
    return Sampled(text, tuple(at - lead for at in whole if at not in canonical and 0 < at - lead < len(text)))


class Family(Struct, frozen=True):
    """How a family puts an answer together."""

    call: Callable[[Mapping[str, Any], Variant], str]
    opens: str = ""
    """Stands before the text."""
    shuts: str = ""
    """Stands between text and call."""
    together: bool = True
    """An answer has a text and a call; otherwise they take turns."""

    def spell(self, renderer: Renderer, said: Sampled | None, call: str | None) -> Ids:
        """Return the sampled ids of an answer, int32[S], the end of the turn included."""
        text, borders = ("", ()) if said is None else (said.text, said.borders)
        opens, shuts = (self.opens, self.shuts) if said is not None and call is not None else ("", "")
        whole = opens + text + shuts + (call or "")
        cuts = [0, *(at + len(opens) for at in borders), len(whole)]
        ids = [id_ for start, end in pairwise(cuts) for id_ in renderer.encode(whole[start:end], special=True)]
        return np.array([*ids, renderer.stop_ids[0]], np.int32)


def arguments(chance: random.Random) -> dict[str, Any]:
    """Return the arguments of a tool call: text beyond ASCII, a number, an object."""
    return {
        "path": f"src/{chance.choice(('café', 'naïve', 'größe'))}_{chance.randrange(90)}.py",
        "limit": 1000,
        "as": {"mode": "für", "at": [1, 2]},
    }


def in_json(value: Any, variant: Variant) -> str:
    """Return the JSON that a model writes."""
    compact = variant == "compact"
    text = json.dumps(value, ensure_ascii=variant == "escaped", separators=(",", ":") if compact else None)
    return text.replace("1000", "1e3") if variant == "exponent" else text


def _hermes(given: Mapping[str, Any], variant: Variant) -> str:
    glue = "" if variant == "white space" else "\n"
    return f"<tool_call>{glue}{_named('arguments', given, variant)}{glue}</tool_call>"


def _llama(given: Mapping[str, Any], variant: Variant) -> str:
    return _named("parameters", given, variant) + ("\n" if variant == "white space" else "")


def _functions(given: Mapping[str, Any], variant: Variant) -> str:
    glue = "" if variant == "white space" else "\n"
    values = {key: value if isinstance(value, str) else in_json(value, variant) for key, value in _ordered(given, variant).items()}
    spelled = "".join(f"<parameter={key}>{glue}{value}{glue}</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={TOOL}>\n{spelled}</function>\n</tool_call>"


def _deepseek(given: Mapping[str, Any], variant: Variant) -> str:
    glue = "" if variant == "white space" else "\n"
    begin, sep, end = (f"<\uff5ctool\u2581{mark}\uff5c>" for mark in ("call\u2581begin", "sep", "call\u2581end"))
    return f"{DEEPSEEK}{begin}function{sep}{TOOL}\n```json\n{in_json(_ordered(given, variant), variant)}{glue}```{end}{DEEPSEEK_END}"


def _harmony(given: Mapping[str, Any], variant: Variant) -> str:
    space = " " if variant == "white space" else ""
    written = in_json(_ordered(given, variant), variant)
    return f"<|channel|>commentary to=functions.{TOOL} <|constrain|>json<|message|>{written[:1]}{space}{written[1:]}"


def _named(key: str, given: Mapping[str, Any], variant: Variant) -> str:
    return in_json(_ordered({"name": TOOL, key: given}, variant), variant)


def _ordered(given: Mapping[str, Any], variant: Variant) -> dict[str, Any]:
    return dict(reversed(list(given.items()))) if variant == "reordered" else dict(given)


def _beginnings(pieces: list[bytes]) -> list[str]:
    """Return the text up to the end of each piece; a letter that is cut in two belongs to the piece that ends it."""
    ends = [b"".join(pieces[: number + 1]) for number in range(len(pieces))]
    return [end.decode(errors="ignore") for end in ends]


FAMILIES: Final[Mapping[str, Family]] = {
    "Qwen3": Family(_hermes, "<think>\n", "\n</think>\n\n"),
    "Qwen3.5": Family(_functions, "", "\n</think>\n\n"),
    "Llama 3.1": Family(_llama, together=False),
    "DeepSeek V3": Family(_deepseek),
    "gpt-oss": Family(_harmony, "<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
}
