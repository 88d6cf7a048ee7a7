"""What an engine sampled in vain: its ledger, in spans that the bench marks, against the calls that the log has closed."""

from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from evener.audit.engine_ledger import call_of
from evener.proto.arrays import int32s
from evener.proto.sessions import CallClosed


class Sampled(Struct, frozen=True, kw_only=True):
    """What the calls that ended in a span cost; a gateway's checks of its engine are none."""

    tokens: int
    wasted: int
    """The number of these tokens that are in no closed call."""


class _Entry(Struct, frozen=True, kw_only=True):
    """The fields that are needed of a line of the ledger."""

    request_id: str
    sampled_ids: tuple[int, ...]
    probe: bool


_entries: Final = msgspec.json.Decoder(_Entry)


def logged(closed: Iterable[CallClosed]) -> dict[str, int]:
    """Return the number of tokens that the log has of each call."""
    return {event.call_id: sum(len(int32s(choice.sampled_ids)) for choice in event.choices) for event in closed}


def spans(ledger: Path, marks: Iterable[int], kept: Mapping[str, int]) -> list[Sampled]:
    """Return what was sampled between each two marks, which are sizes of the file. `kept`: the tokens that the log has of each call."""
    left = dict(kept)
    found = []
    with ledger.open("rb") as file:
        for begin, end in pairwise(marks):
            file.seek(begin)
            found.append(_span(file.read(end - begin).splitlines(), left))
    return found


def _span(lines: Iterable[bytes], left: dict[str, int]) -> Sampled:
    tokens = wasted = 0
    for line in lines:
        if (entry := _entries.decode(line)).probe:
            continue
        call_id = call_of(entry.request_id)
        used = min(len(entry.sampled_ids), left.get(call_id, 0))
        left[call_id] = left.get(call_id, 0) - used
        tokens += len(entry.sampled_ids)
        wasted += len(entry.sampled_ids) - used
    return Sampled(tokens=tokens, wasted=wasted)
