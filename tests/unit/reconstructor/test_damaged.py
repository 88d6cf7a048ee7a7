"""A damaged log gives what is certain, masks the rest, names the inconsistency, and stops nothing."""

from collections.abc import Sequence
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.support.damages import by_kind, damages, recorded, trained

from evener.bus.port import Record
from evener.proto.arrays import uint8s
from evener.proto.codec import BadRecord, decode, encode
from evener.proto.reasons import ExclusionReason
from evener.proto.sessions import CallClosed
from evener.proto.spec import Strategy
from evener.proto.topics import Topic
from evener.proto.trajectories import TrajectoryBuilt
from evener.reconstructor.core import Replay
from evener.tokens.inconsistencies import fingerprints
from evener.tokens.kept import KeptSession, pack, unpack
from evener.tokens.trajectory import build

LOG: Final = recorded()
KINDS: Final = by_kind(damages(LOG))


def replayed(log: Sequence[bytes]) -> list[KeptSession]:
    """Replay one partition; return the sessions that were sealed."""
    replay, sealed = Replay(), []
    for offset, data in enumerate(log):
        record = Record(topic=Topic.SESSIONS, partition=0, offset=offset, key="t.0", value=data, headers=(), timestamp_ms=100_000)
        if replay.knows_sealed("t.0"):
            continue
        try:
            read = replay.fold("t.0", decode(data), record)
        except BadRecord as bad:
            replay.note_inconsistency("t.0", str(bad), record)
        else:
            sealed += [] if read is None else [read]
    return sealed


def delivered(trajectory: TrajectoryBuilt) -> int:
    return sum(int(uint8s(row.loss_mask).sum()) for row in trajectory.rows)


def told(trajectory: TrajectoryBuilt) -> tuple[object, ...]:
    """Return what a damage may not change in silence."""
    books = trajectory.accounting
    where = (books.sampled, books.delivered, books.excluded)
    return trajectory.rows, where, trajectory.exit, trajectory.termination_reason, trajectory.attempt, trajectory.spec, trajectory.answer


(WHOLE,) = (build(read.session) for read in replayed(LOG))
CERTAIN: Final = trained(WHOLE)


def test_undamaged_session_has_no_inconsistency_and_much_to_lose() -> None:
    """The other tests of this file would say little otherwise."""
    assert WHOLE.inconsistencies == ()
    assert len(WHOLE.rows) > 5
    assert {
        ExclusionReason.ORPHAN,
        ExclusionReason.ABORTED,
        ExclusionReason.SIDE_CALL,
        ExclusionReason.EARLIER_ATTEMPT,
    } <= WHOLE.accounting.excluded.keys()


@pytest.mark.parametrize("strategy", Strategy)
@pytest.mark.parametrize("kind", KINDS)
def test_damage_trains_nothing_new_and_is_named(kind: str, strategy: Strategy) -> None:
    """Whatever happens to a record: no token is trained that was not, the books balance, and what is missing has a name."""
    for where, log in KINDS[kind]:
        sealed = replayed(log)
        assert len(sealed) == 1 or where.endswith("SessionSealed")
        for read in sealed:
            trajectory = build(read.session, strategy=strategy)
            assert trained(trajectory) <= CERTAIN, where
            assert trajectory.accounting.delivered == delivered(trajectory), where
            if strategy is Strategy.TREE and told(trajectory) != told(WHOLE):
                assert trajectory.inconsistencies, where


@pytest.mark.parametrize("kind", KINDS)
def test_stored_records_tell_the_same_as_the_damaged_log(kind: str) -> None:
    """A rebuild from the blob has the same inconsistencies."""
    for where, log in KINDS[kind]:
        for read in replayed(log):
            assert encode(build(unpack("t.0", pack(read.kept)).session)) == encode(build(read.session)), where


def test_what_is_certain_is_delivered() -> None:
    """A lost answer takes its own tokens and what hangs on it, not the whole session; the seal says how many they were."""
    shares = []
    for at, data in enumerate(LOG):
        if not isinstance(decode(data), CallClosed):
            continue
        (read,) = replayed([*LOG[:at], *LOG[at + 1 :]])
        books = build(read.session).accounting
        assert books.sampled == WHOLE.accounting.sampled
        assert books.excluded[ExclusionReason.INCONSISTENT] > 0
        assert books.delivered > 0
        shares.append(books.delivered / WHOLE.accounting.delivered)
    assert sum(shares) / len(shares) > 0.6


def test_without_the_comparison_lost_records_would_be_trained() -> None:
    """A test of the tests: a lost CallUndelivered leaves no trace but the fingerprint."""
    logs = [confirming(log) for where, log in KINDS["drop"] if where.endswith("CallUndelivered")]

    assert not all(trained(build(read.session)) <= CERTAIN for log in logs for read in replayed(log))


def confirming(log: Sequence[bytes]) -> list[bytes]:
    """Return a damaged log whose seal has the fingerprints of what is left."""
    (read,) = replayed(log)
    seal = read.session.sealed
    assert seal is not None
    found = fingerprints(read.session.forest, seal.attempt, seal.termination_reason)
    return [*log[:-1], encode(structs.replace(seal, fingerprints=b"".join(found.values())))]


flip: Final = st.tuples(st.integers(0, len(LOG) - 1), st.floats(0, 1, exclude_max=True), st.integers(1, 255))
"""Record, place in it, bits."""


@settings(max_examples=400)
@given(st.lists(flip, min_size=1, max_size=3))
def test_flipped_bytes_train_nothing_new(places: list[tuple[int, float, int]]) -> None:
    """Even where a record has no checksum: the seal's fingerprints know each answer."""
    log = list(LOG)
    for number, where, mask in places:
        data = bytearray(log[number])
        data[int(where * len(data))] ^= mask
        log[number] = bytes(data)
    for read in replayed(log):
        if read.session.spec is not None:
            assert trained(build(read.session)) <= CERTAIN
