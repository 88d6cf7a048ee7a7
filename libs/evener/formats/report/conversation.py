"""One session's tokens, cut where sampling begins and ends. Pure: the text comes from the bytes of each id."""

import codecs
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

import numpy as np
from msgspec import Struct

from evener.formats.summary import seen
from evener.proto.arrays import float32s, int32s, uint8s
from evener.proto.trajectories import GroupOutcome, Row, TrajectoryScored

MAX_TOKENS: Final = 12_000
"""The largest number of tokens of a row that are shown. Later ones are counted."""
OPEN_TOKENS: Final = 400
"""A longer run of prompt tokens is folded."""
HEATS: Final = 9
"""The number of shades of surprise. Shade 0 is a token that the model was sure of."""


class ShownToken(Struct, frozen=True):
    """One token as the page shows it."""

    text: str
    id: int
    position: int
    heat: int
    """0 to 9, by the share of probability that the token did not have."""
    logprob: float | None
    """The logprob. None: the token was not sampled, or the engine did not report it."""
    probability: float | None
    version: int | None
    trained: bool


class Run(Struct, frozen=True):
    """The tokens that one call sampled, or the prompt tokens between two calls."""

    call: int | None
    """The number of the call in the row, from 1. None: prompt tokens."""
    tokens: tuple[ShownToken, ...]
    open: bool

    @property
    def sampled(self) -> bool:
        return self.call is not None


class ShownRow(Struct, frozen=True):
    """One row of one session, as the page shows it."""

    session_id: str
    task: str
    kind: str
    end: str
    reward: float | None
    runs: tuple[Run, ...]
    sampled: int
    trained: int
    mean_probability: float | None
    """The geometric mean over the sampled tokens."""
    hidden: int
    """The number of tokens that are not shown."""
    other_rows: int
    """The number of the session's rows that are not shown."""


def chosen(outcomes: Sequence[GroupOutcome]) -> TrajectoryScored | None:
    """Return the session to show first: one of several turns, from the group with the widest spread of rewards, with the most calls."""
    found = [(event, scored) for event in outcomes for _, scored in seen(event.members) if scored.trajectory.rows]
    if not found:
        return None

    def interest(pair: tuple[GroupOutcome, TrajectoryScored]) -> tuple[bool, float, int, float]:
        event, scored = pair
        rewards = [member.reward for member in event.members if member.reward is not None]
        calls = len(main_row(scored).calls)
        return calls > 1, statistics.pstdev(rewards) if rewards else 0.0, calls, scored.reward or 0.0

    return max(found, key=interest)[1]


def main_row(scored: TrajectoryScored) -> Row:
    """Return the session's main row, or its first."""
    rows = scored.trajectory.rows
    return next((row for row in rows if row.kind.value == "main"), rows[0])


def ids_of(sessions: Iterable[TrajectoryScored]) -> list[int]:
    """Return the ids whose bytes the conversations of these sessions need, sorted."""
    found = [int32s(main_row(scored).ids)[:MAX_TOKENS] for scored in sessions]
    return [int(each) for each in np.unique(np.concatenate(found))] if found else []


def conversation(scored: TrajectoryScored, pieces: Mapping[int, bytes]) -> ShownRow:
    """Return the session's main row for the page. An id without bytes is shown as its number."""
    trajectory, row = scored.trajectory, main_row(scored)
    call_of = int32s(row.call_of)
    logprobs = float32s(row.logprobs)[call_of >= 0]
    known = logprobs[~np.isnan(logprobs)]
    return ShownRow(
        session_id=trajectory.session_id,
        task=trajectory.spec.task.name if trajectory.spec.task else trajectory.spec.task_id,
        kind=row.kind.value.replace("_", " "),
        end=trajectory.termination_reason.value.replace("_", " "),
        reward=scored.reward,
        runs=tuple(_runs(_tokens(row, pieces), [int(call) for call in call_of[:MAX_TOKENS]])),
        sampled=int(np.sum(call_of >= 0)),
        trained=int(np.sum(uint8s(row.loss_mask))),
        mean_probability=float(np.exp(np.mean(known))) if known.size else None,
        hidden=max(0, len(call_of) - MAX_TOKENS),
        other_rows=len(trajectory.rows) - 1,
    )


def _runs(tokens: Sequence[ShownToken], call_of: Sequence[int]) -> Iterator[Run]:
    for call, pairs in groupby(zip(call_of, tokens, strict=True), key=lambda pair: pair[0]):
        run = tuple(token for _, token in pairs)
        yield Run(call=None if call < 0 else call + 1, tokens=run, open=call >= 0 or len(run) <= OPEN_TOKENS)


def _tokens(row: Row, pieces: Mapping[int, bytes]) -> list[ShownToken]:
    ids, mask, versions, logprobs = int32s(row.ids), uint8s(row.loss_mask), int32s(row.versions), float32s(row.logprobs)
    texts = _texts([int(each) for each in ids[:MAX_TOKENS]], pieces)
    return [_token(text, int(ids[at]), at, float(logprobs[at]), int(versions[at]), trained=bool(mask[at])) for at, text in enumerate(texts)]


def _token(text: str, token_id: int, position: int, logprob: float, version: int, *, trained: bool) -> ShownToken:
    known = None if math.isnan(logprob) else logprob
    probability = None if known is None else math.exp(min(0.0, known))
    return ShownToken(
        text=text,
        id=token_id,
        position=position,
        heat=0 if probability is None else round(HEATS * (1.0 - probability)),
        logprob=known,
        probability=probability,
        version=version if version >= 0 else None,
        trained=trained,
    )


def _texts(ids: Sequence[int], pieces: Mapping[int, bytes]) -> list[str]:
    """Return the text of each id. A character that several ids spell belongs to the last of them."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    return [decoder.decode(pieces[each]) if each in pieces else f"⟨{each}⟩" for each in ids]
