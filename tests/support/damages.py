"""Damaged logs: everything that can happen to the records of one recorded session, one damage at a time."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
from tests.support.generated import Harness, Step

from evener.proto.arrays import float32s, int32s, pack_float32, pack_int32, uint8s
from evener.proto.codec import AnyEvent, decode, encode
from evener.proto.sessions import CallClosed, CallFailed, CallOpened, CallUndelivered, Choice, SegmentRef, SessionSealed, SessionStarted
from evener.proto.trajectories import TrajectoryBuilt

PLAN: Final[tuple[Step, ...]] = (
    *(("ask", 0, 5), ("attempt", 0, 0)),
    *(("ask", 0, 4), ("tool", 0, 1), ("ask", 0, 0), ("user", 0, 2), ("choices", 0, 1), ("user", 0, 1)),
    *(("vote", 0, 2), ("side_call", 0, 0), ("fail", 0, 0), ("retry", 0, 2), ("undeliver", 0, 0), ("user", 0, 0), ("together", 0, 1)),
    *(("sub_agent", 0, 0), ("ask", 1, 1), ("user", 1, 2), ("length", 1, 0), ("compact", 0, 0), ("ask", 0, 2), ("rewrite", 0, 1)),
    *(("ask", 0, 1), ("abort", 0, 0), ("user", 0, 1), ("ask", 0, 1)),
)
"""Two attempts; branches, votes, several choices, a retry, lost, failed and aborted calls, a side call, a sub-agent, a compaction."""

Log = list[bytes]
Damage = tuple[str, str, Log]
"""A damage to a record: its kind, the record, and the records that are left."""
EventT = TypeVar("EventT")


def recorded(session_id: str = "t.0", at: float = 100.0) -> Log:
    """Return the records of one session, dispatched and sealed at this time (Unix seconds)."""
    return [renamed(data, session_id, at) for data in _played()]


@cache
def _played() -> tuple[bytes, ...]:
    harness = Harness()
    harness.play(PLAN)
    return tuple(harness.world.log)


def renamed(data: bytes, session_id: str, at: float) -> bytes:
    """Return a record as one of another session and time."""
    event: Any = decode(data)
    named = msgspec.structs.replace(event, session_id=session_id)
    match named:
        case SessionStarted():
            return encode(msgspec.structs.replace(named, dispatched_at=at))
        case SessionSealed():
            return encode(msgspec.structs.replace(named, sealed_at=at))
    return encode(named)


def trained(trajectory: TrajectoryBuilt) -> Counter[tuple[object, ...]]:
    """Return all trained tokens: the call, the whole context with the token, its logprob and version."""
    found: Counter[tuple[object, ...]] = Counter()
    for row in trajectory.rows:
        ids, calls, logprobs, versions = int32s(row.ids), int32s(row.call_of), float32s(row.logprobs), int32s(row.versions)
        for at in np.flatnonzero(uint8s(row.loss_mask)):
            found[row.calls[calls[at]], ids[: at + 1].tobytes(), float(logprobs[at]), int(versions[at])] += 1
    return found


def damages(log: Sequence[bytes]) -> Iterator[Damage]:
    """Yield copies of a log with one damage each."""
    for at, data in enumerate(log):
        where = f"{at} {type(decode(data)).__name__}"
        yield "drop", where, [*log[:at], *log[at + 1 :]]
        yield "repeat", where, [*log[: at + 1], *log[at:]]
        yield "repeat at the end", where, [*log[:-1], data, log[-1]]
        yield "swap", where, [*log[:at], *reversed(log[at : at + 2]), *log[at + 2 :]]
        yield "cut short", where, [*log[:at], data[: len(data) // 2], *log[at + 1 :]]
        yield "unknown tag", where, [*log[:at], data.replace(b".v1", b".v9", 1), *log[at + 1 :]]
        yield "rubbish", where, [*log[:at], b"\xc1rubbish", *log[at + 1 :]]
        yield "foreign", where, [*log[: at + 1], renamed(data, "other.0", 100.0), *log[at + 1 :]]
        yield "foreign instead", where, [*log[:at], renamed(data, "other.0", 100.0), *log[at + 1 :]]
        for change, event in _changed(decode(data)):
            yield change, where, [*log[:at], encode(event), *log[at + 1 :]]
            yield f"then {change}", where, [*log[: at + 1], encode(event), *log[at + 1 :]]


def by_kind(found: Iterable[Damage]) -> dict[str, list[tuple[str, Log]]]:
    """Return damages by what was done."""
    kinds: dict[str, list[tuple[str, Log]]] = {}
    for kind, where, log in found:
        kinds.setdefault(kind, []).append((where, log))
    return kinds


def _changed(event: AnyEvent) -> Iterator[tuple[str, Any]]:
    """Yield events that decode, and tell something else."""
    match event:
        case CallOpened():
            ids = int32s(event.prompt_delta_ids)
            yield "given ids changed", _with(event, prompt_delta_ids=pack_int32(ids + 1))
            yield "given ids too short", _with(event, prompt_delta_ids=pack_int32(ids[:-1]))
            yield "given ids cut inside an id", _with(event, prompt_delta_ids=pack_int32(ids)[:-1])
            yield "parent missing", _with(event, placement=_with(event.placement, parent=SegmentRef(call_id="nowhere"), root=None))
            yield (
                "parent has no such choice",
                _with(event, placement=_with(event.placement, parent=SegmentRef(call_id="c1", choice=9), root=None)),
            )
            yield "messages are no JSON", _with(event, messages=b"[")
            yield "no side call", _with(event, side_call=None if event.side_call else "title")
            yield "of another attempt", _with(event, attempt=event.attempt % 2 + 1)
            yield "frozen", _with(event, policy=None)
        case CallClosed():
            for name, change in CHOICES.items():
                yield name, _with(event, choices=tuple(change(choice) for choice in event.choices))
            yield "a choice less", _with(event, choices=event.choices[1:])
            yield "of another call", _with(event, call_id="nowhere")
        case CallFailed() | CallUndelivered():
            yield "of another call", _with(event, call_id="nowhere")
            yield "of the first call", _with(event, call_id="c3")
        case SessionSealed():
            yield "digest differs", _with(event, rows_digest="0" * 64)
            yield "fingerprints are gone", _with(event, fingerprints=b"")
            yield "fingerprints are cut", _with(event, fingerprints=(event.fingerprints or b"")[:-3])
            yield "sealed before there were fingerprints, digest differs", _with(event, fingerprints=None, rows_digest="0" * 64)
            yield "another attempt", _with(event, attempt=1)
            yield "more calls", _with(event, calls=event.calls + 1)
            yield "more tokens", _with(event, sampled_tokens=event.sampled_tokens + 7)
            yield "fewer tokens", _with(event, sampled_tokens=1)
            yield "without the spec", _with(event, spec=None)
        case _:
            pass


def _logprob(value: float) -> Callable[[Choice], Choice]:
    return lambda choice: _with(choice, logprobs=pack_float32([*float32s(choice.logprobs)[:-1], value]))


CHOICES: Final[dict[str, Callable[[Choice], Choice]]] = {
    "NaN logprob": _logprob(float("nan")),
    "infinite logprob": _logprob(float("-inf")),
    "another logprob": _logprob(-0.125),
    "negative id": lambda choice: _with(choice, sampled_ids=pack_int32([-5, *int32s(choice.sampled_ids)[1:]])),
    "another id": lambda choice: _with(choice, sampled_ids=pack_int32([77, *int32s(choice.sampled_ids)[1:]])),
    "another version": lambda choice: _with(choice, versions=pack_int32([9, *int32s(choice.versions)[1:]])),
    "a token less": lambda choice: _with(
        choice,
        sampled_ids=pack_int32(int32s(choice.sampled_ids)[1:]),
        logprobs=pack_float32(float32s(choice.logprobs)[1:]),
        versions=pack_int32(int32s(choice.versions)[1:]),
    ),
    "answer is no JSON": lambda choice: _with(choice, message=b"{"),
    "answer is a list": lambda choice: _with(choice, message=b"[]"),
}


def _with(struct: EventT, **fields: Any) -> EventT:
    """Return the struct with fields replaced, whatever they are."""
    changed: EventT = msgspec.structs.replace(struct, **fields)  # type: ignore[type-var]  # any of them
    return changed
