"""Finds what a replay cannot be sure of.

The owner writes a fingerprint of each sampled segment into the seal. A reader whose log was damaged compares the fingerprints, masks the
segments that differ, and names them. Inconsistencies are sentences for people; the same records give the same sentences.
"""

import hashlib
from collections.abc import Iterator
from typing import Final

import msgspec

from evener.proto.reasons import TerminationReason
from evener.proto.sessions import SegmentRef, SessionSealed
from evener.tokens.forest import Forest
from evener.tokens.rows import cut, digest
from evener.tokens.session import SessionLog

FINGERPRINT_BYTES: Final = 8
NAMED_SEGMENTS: Final = 8
"""The largest number of segments that are named. Further ones are counted."""

_encoder: Final = msgspec.msgpack.Encoder(order="deterministic")


def fingerprints(forest: Forest, attempt: int, end: TerminationReason) -> dict[SegmentRef, bytes]:
    """Return 8 bytes for each sampled segment, in the order of the log, as if the session ended with `end` in this attempt.

    A fingerprint covers everything that training on the segment depends on: what the engine was given and sampled, under which parameters,
    and whether the answer was received. Only recorded facts go in, no rules, so that later rules can be checked against older seals.
    """
    contents: dict[SegmentRef, bytes] = {}
    ending = _encoder.encode((attempt, end))
    prints: dict[SegmentRef, bytes] = {}
    for call in forest.in_order():
        received = b"-" if forest.orphaned(call) else b"+"
        for segment in call.segments():
            content = _content(forest, segment, contents)
            prints[segment] = hashlib.blake2b(content + received + ending, digest_size=FINGERPRINT_BYTES).digest()
    return prints


def inconsistent_segments(session: SessionLog) -> frozenset[SegmentRef]:
    """Return the segments that the seal does not confirm. Empty before the seal."""
    seal = session.sealed
    if seal is None:
        return frozenset()
    held = fingerprints(session.forest, seal.attempt, seal.termination_reason)
    if seal.fingerprints is not None:
        told = _split(seal.fingerprints)
        return frozenset(segment for segment, fingerprint in held.items() if fingerprint not in told)
    return frozenset(held) if digest(cut(session, seal.termination_reason).rows) != seal.rows_digest else frozenset()


def named(session: SessionLog, inconsistent: frozenset[SegmentRef]) -> list[str]:
    """Return a sentence for everything that does not fit in a sealed session, except its rows."""
    seal = session.sealed
    return [*session.inconsistencies, *(_missing(session, seal) if seal is not None else ()), *_unlike(session, inconsistent)]


def _content(forest: Forest, segment: SegmentRef, known: dict[SegmentRef, bytes]) -> bytes:
    """Return the digest of a segment in its context. The parent's digest stands for everything before it."""
    path: list[SegmentRef] = []
    at: SegmentRef | None = segment
    while at is not None and at not in known:
        path.append(at)
        at = forest.calls[at.call_id].placement.parent
    before = b"" if at is None else known[at]
    for one in reversed(path):
        call = forest.calls[one.call_id]
        given = call.prompt_delta_ids if call.placement.parent is not None else forest.context(call)
        facts = (before, given.tobytes(), one, call.choices[one.choice], call.fidelity, call.placement)
        opened = call.opened
        how = (opened.attempt, opened.policy, opened.side_call, opened.options, opened.sampling)
        before = known[one] = hashlib.blake2b(_encoder.encode((facts, how)), digest_size=16).digest()
    return known[segment]


def _split(data: bytes) -> frozenset[bytes]:
    return frozenset(data[at : at + FINGERPRINT_BYTES] for at in range(0, len(data), FINGERPRINT_BYTES))


def _missing(session: SessionLog, seal: SessionSealed) -> Iterator[str]:
    """Yield a sentence for each missing record."""
    if seal.attempt and seal.attempt not in session.starts:
        yield f"the start of attempt {seal.attempt} is missing"
    if session.given_up is None and seal.attempt not in session.exits:
        yield f"the exit of attempt {seal.attempt} is missing"
    closed = sum(call.closed is not None for call in session.forest.calls.values())
    if closed != seal.calls:
        yield f"the seal counts {seal.calls} closed calls, the log holds {closed}"
    if session.sampled_tokens() != seal.sampled_tokens:
        yield f"the seal counts {seal.sampled_tokens} sampled tokens, the log holds {session.sampled_tokens()}"
    for call in session.open_calls():
        yield f"call {call.call_id} has no end"


def _unlike(session: SessionLog, inconsistent: frozenset[SegmentRef]) -> Iterator[str]:
    """Yield a sentence for each segment that differs from the owner's."""
    ordered = [segment for segment in session.forest.segments() if segment in inconsistent]
    for segment in ordered[:NAMED_SEGMENTS]:
        yield f"call {segment.call_id}, choice {segment.choice}: not as its owner had it"
    if len(ordered) > NAMED_SEGMENTS:
        yield f"{len(ordered) - NAMED_SEGMENTS} more answers: not as their owner had them"
