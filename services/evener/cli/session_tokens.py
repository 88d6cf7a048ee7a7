"""The rows of a session as tokens: as coloured text, or as one token per line with all of its values."""

from codecs import getincrementaldecoder
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from evener.cli.errors import Usage
from evener.cli.session_text import rule
from evener.client.client import Client
from evener.proto.arrays import float32s, int32s, uint8s
from evener.proto.trajectories import Row

UTF8 = getincrementaldecoder("utf-8")
GIVEN = "dim"
UNKNOWN = "grey50"
HEAT = ((0.9, "green"), (0.5, "yellow"), (0.1, "dark_orange"), (0.0, "red"))
"""The colour of a sampled token by its least probability."""
TOKEN_COLUMNS: Final = f"{'token':>7} {'id':>7} {'call':>5} {'mask':>4} {'logprob':>9} {'version':>7}  text"


async def token_rows(client: Client, policy: str, rows: Sequence[Row]) -> RenderableType:
    """Return each row as coloured tokens. The gateway gives the bytes of ids."""
    parts: list[RenderableType] = []
    for number, row in enumerate(rows):
        parts += [rule(number, row), tokens(row, await _pieces(client, policy, row))]
    return Group(*parts)


async def token_table(client: Client, policy: str, rows: Sequence[Row], numbers: Sequence[int]) -> RenderableType:
    """Return these rows with one line per token. Raises Usage for a row that does not exist."""
    parts: list[RenderableType] = []
    for number in numbers:
        if not 0 <= number < len(rows):
            msg = f"there is no row {number}: the session has {len(rows)}, counted from 0"
            raise Usage(msg)
        parts += [rule(number, rows[number]), table(rows[number], await _pieces(client, policy, rows[number]))]
    return Group(*parts)


def table(row: Row, pieces: dict[int, bytes]) -> Text:
    """Return a row with one line per token: position, id, the row's call that sampled it, loss mask, logprob, version, and text."""
    text = Text(TOKEN_COLUMNS, "bold", no_wrap=True, overflow="ignore")
    for line, style in zip(_lines(row, pieces), _styles(row), strict=True):
        text.append(f"\n{line}", style.removesuffix(" underline"))
    return text


def _lines(row: Row, pieces: dict[int, bytes]) -> Iterator[str]:
    columns = (int32s(row.ids), int32s(row.call_of), uint8s(row.loss_mask), float32s(row.logprobs), int32s(row.versions))
    for at, (each, call, mask, logprob, version) in enumerate(zip(*columns, strict=True)):
        facts = f"{call:>5} {mask:>4} {logprob:>9.4f} {version:>7}" if call >= 0 else f"{'':>5} {'':>4} {'':>9} {'':>7}"
        yield f"{at:>7} {each:>7} {facts}  {pieces[int(each)].decode(errors='replace')!r}"


async def _pieces(client: Client, policy: str, row: Row) -> dict[int, bytes]:
    distinct = np.unique(int32s(row.ids)).tolist()
    return dict(zip(distinct, await client.pieces(policy, distinct), strict=True))


def tokens(row: Row, pieces: dict[int, bytes]) -> Text:
    """Return a row as text: prompt tokens dim, sampled ones coloured by probability, trained ones underlined.

    The bytes of one character can stand in several tokens. It has the style of the token that completes it.
    """
    text = Text()
    characters = UTF8(errors="replace")
    ids, styles = int32s(row.ids), _styles(row)
    for at, (each, style) in enumerate(zip(ids, styles, strict=True), 1):
        _append(text, characters.decode(pieces[int(each)], final=at == len(ids)), style)
    return text


def _append(text: Text, more: str, style: str) -> None:
    """Append to the text, extending its last span if that has the same style: rows have many tokens."""
    begin = len(text)
    text.append(more)
    if text.spans and text.spans[-1].end == begin and text.spans[-1].style == style:
        text.spans[-1] = text.spans[-1].extend(len(text) - begin)
    elif more:
        text.stylize(style, begin)


def _styles(row: Row) -> list[str]:
    sampled = int32s(row.call_of) >= 0
    probabilities = np.exp(float32s(row.logprobs))
    masks = uint8s(row.loss_mask)
    return [
        (_heat(float(probability)) + (" underline" if mask else "")) if is_sampled else GIVEN
        for is_sampled, probability, mask in zip(sampled, probabilities, masks, strict=True)
    ]


def _heat(probability: float) -> str:
    return next((colour for least, colour in HEAT if probability >= least), UNKNOWN)  # NaN is at least nothing
