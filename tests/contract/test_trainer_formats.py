"""What every trainer's format keeps: the trainer trains the tokens that were sampled, by their own logprobs, each session once."""

import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.support.trainer_groups import (
    TURNS,
    merged,
    rebuilt,
    resampled,
    row_of,
    session,
    several_rows,
    single_rows,
    with_rowless,
)
from tests.support.trainer_readers import READERS, WITHOUT_VERSIONS, ReadGroup, faults

from evener.formats.neutral import RowsRefused
from evener.formats.registry import format_named, trainer_formats
from evener.formats.trainable import (
    GroupIncomplete,
    NotForTraining,
    RowTooLong,
    SamplingRefused,
    SessionUngraded,
    SessionWithoutRows,
    SeveralRows,
    Takes,
    TrainGroup,
    train_group,
)
from evener.formats.trainer_format import TrainerFormat
from evener.proto.arrays import pack_float32, pack_int32, pack_uint8
from evener.proto.reasons import ExclusionReason
from evener.proto.spec import Purpose, Sampling
from evener.proto.trajectories import GroupMerged

FORMATS = trainer_formats()
EQUAL = (0.3, 0.3, 0.3)


def as_taken(kind: TrainerFormat) -> GroupMerged:
    """Return the group with most in it that this trainer takes."""
    return several_rows() if kind.several_rows else single_rows()


def test_every_format_has_a_reader_and_its_own_name() -> None:
    """Without a reader nobody knows what a trainer would make of its records."""
    assert set(READERS) == set(FORMATS)
    assert {name: one.name for name, one in FORMATS.items()} == {name: name for name in FORMATS}


@pytest.fixture(params=sorted(FORMATS))
def kind(request: pytest.FixtureRequest) -> TrainerFormat:
    return FORMATS[request.param]


def numbers_of(records: list[Any]) -> dict[str, int]:
    """Return the numbers by which a trainer tells groups and sessions apart."""
    first = records[0] if isinstance(records[0], dict) else {}
    return {name: first[name] for name in ("group_id", "group_index", "rollout_id", "idx", "_ng_task_index") if name in first}


def read(kind: TrainerFormat, records: list[Any]) -> ReadGroup:
    return READERS[kind.name](records)


class TestTrainerFormats:
    """The contract. Its oracle is the trainer's way to read its records (`tests/support/trainer_readers.py`)."""

    def test_trainer_trains_what_was_sampled(self, kind: TrainerFormat) -> None:
        """Each token in its context, by its own logprob, with its own session's reward or advantage; every session once."""
        event = as_taken(kind)
        emitted = kind.emit(event)

        assert faults(read(kind, emitted.records), event) == []
        assert emitted.tokens == event.accounting.delivered
        assert emitted.left_out == 0

    def test_session_of_several_rows_counts_once_or_is_refused(self, kind: TrainerFormat) -> None:
        event = several_rows()
        if not kind.several_rows:
            with pytest.raises(SeveralRows, match=r"session task\.3 has 3 rows"):
                kind.emit(event)
            return
        found = read(kind, kind.emit(event).records)

        assert len(found.rows) == 6
        assert found.counted in (None, [0.0, 0.25, 0.5, 1.0])
        assert {(row.reward, row.advantage) for row in found.rows[3:]} == {(found.rows[3].reward, found.rows[3].advantage)}

    def test_reward_without_a_row_counts_or_is_refused(self, kind: TrainerFormat) -> None:
        """The trainer that is given advantages trains the others by the mean of all; one that computes it would not know."""
        event = with_rowless()
        if kind.own_mean:
            with pytest.raises(SessionWithoutRows, match=r"task\.0"):
                kind.emit(event)
        else:
            assert faults(read(kind, kind.emit(event).records), event) == []

    def test_reward_that_nothing_is_compared_with_is_not_trained(self, kind: TrainerFormat) -> None:
        """A trainer that computes advantages takes the bare reward for one, or divides by nothing."""
        event = single_rows((1.0,))
        if kind.own_mean:
            with pytest.raises(GroupIncomplete, match="has 1 of 1 sessions"):
                kind.emit(event)
        else:
            assert {row.advantage for row in read(kind, kind.emit(event).records).rows} == {0.0}

    def test_part_of_a_group_is_taken_or_refused(self, kind: TrainerFormat) -> None:
        """An early delivery, or a session that was left out."""
        whole = single_rows()
        first, *others = whole.members
        event = structs.replace(whole, members=(structs.replace(first, excluded=ExclusionReason.LATE), *others))
        if kind.whole_groups:
            with pytest.raises(GroupIncomplete, match="3 of 4 sessions"):
                kind.emit(event)
        else:
            assert faults(read(kind, kind.emit(event).records), event) == []

    def test_group_without_a_token_has_no_record(self, kind: TrainerFormat) -> None:
        event = merged(*(session(index, (), reward=reward, size=2) for index, reward in enumerate((1.0, 0.0))))
        emitted = kind.emit(event)

        assert (emitted.records, emitted.tokens, emitted.rows) == ([], 0, 0)

    def test_equal_rewards_are_flagged_and_have_no_advantage(self, kind: TrainerFormat) -> None:
        """Exactly none: a rest of rounding, divided by a deviation of 0, would be an advantage."""
        emitted = kind.emit(single_rows(EQUAL))

        assert emitted.group.zero_variance
        assert {row.advantage for row in read(kind, emitted.records).rows} <= {0.0, None}
        assert not kind.emit(single_rows()).group.zero_variance

    @pytest.mark.parametrize("limit", [{"row_tokens": 10}, {"prompt_tokens": 3}, {"response_tokens": 6}], ids=str)
    def test_row_that_the_trainer_would_cut_is_refused(self, kind: TrainerFormat, limit: dict[str, int]) -> None:
        """Rows here have 11 tokens, 4 of them before the first sampled one."""
        with pytest.raises(RowTooLong, match=r"row 0 of session task\.0 has \d+ tokens"):
            kind.emit(single_rows(), Takes(**limit))  # type: ignore[arg-type] # of mixed types
        just = {"row_tokens": 11, "prompt_tokens": 4, "response_tokens": 7}
        assert kind.emit(single_rows(), Takes(**just)).left_out == 0  # type: ignore[arg-type] # of mixed types

    def test_row_that_is_left_out_is_counted(self, kind: TrainerFormat) -> None:
        """Its session's reward counts all the same, or the group is refused."""
        event = merged(
            session(0, (row_of(TURNS, seed=0),), reward=1.0, size=2),
            session(1, (row_of((*TURNS, ("given", 1), ("trained", 6)), seed=1),), reward=0.0, size=2),
        )
        takes = Takes(row_tokens=11, leave_out_too_long=True)
        if kind.own_mean:
            with pytest.raises(SessionWithoutRows):
                kind.emit(event, takes)
            return
        emitted = kind.emit(event, takes)

        assert (emitted.tokens, emitted.left_out, emitted.rows) == (5, 11, 1)
        assert [row.advantage for row in read(kind, emitted.records).rows] == [pytest.approx(1.0, rel=1e-5)]

    def test_records_are_written_as_lines(self, kind: TrainerFormat) -> None:
        """And refused groups are named."""
        sink = io.BytesIO()
        event = as_taken(kind)
        refused = structs.replace(event, group_id="other", purpose=Purpose.EVAL)
        written = kind.write([event, refused], sink)

        lines = sink.getvalue().splitlines()
        assert len(lines) == len(kind.emit(event).records)
        assert all(isinstance(json.loads(line), dict | list) for line in lines)
        assert written.rows == kind.emit(event).rows
        assert list(written.refused) == ["other"]

    def test_groups_of_one_batch_have_numbers_of_their_own(self, kind: TrainerFormat) -> None:
        """A trainer that knows groups by number compares no rows of different groups."""
        first, second = (numbers_of(kind.emit(single_rows(), number=number).records) for number in (0, 1))

        assert first.keys() == second.keys()
        assert all(first[name] != second[name] for name in first)


def altered(group: TrainGroup, name: str, change: Callable[[Any], Any]) -> TrainGroup:
    """Return the group with one array of every row changed."""
    sessions = tuple(
        structs.replace(one, rows=tuple({**row, name: change(row[name])} for row in one.rows))  # type: ignore[literal-required]
        for one in group.sessions
    )
    return structs.replace(group, sessions=sessions)


def swapped(group: TrainGroup) -> TrainGroup:
    """Return the group with the rewards of its first two sessions exchanged."""
    first, second, *others = group.sessions
    exchanged = (
        structs.replace(first, reward=second.reward, advantage=second.advantage),
        structs.replace(second, reward=first.reward, advantage=first.advantage),
    )
    return structs.replace(group, sessions=(*exchanged, *others))


PLANTED: dict[str, Callable[[TrainGroup], TrainGroup]] = {
    "logprobs off by one": lambda group: altered(group, "logprobs", lambda values: np.roll(values, 1)),
    "a mask shifted by one": lambda group: altered(group, "loss_mask", lambda values: np.roll(values, -1)),
    "ids shifted by one": lambda group: altered(group, "ids", lambda values: np.roll(values, 1)),
    "a reward on the wrong row": swapped,
    "a session counted twice": lambda group: structs.replace(group, sessions=(*group.sessions, group.sessions[0])),
    "versions off by one": lambda group: altered(group, "versions", lambda values: values + 1),
}


@st.composite
def groups(draw: st.DrawFn) -> GroupMerged:
    """Return a group of sessions with one row each, of any shape that has a trained token."""
    part = st.tuples(st.sampled_from(("given", "trained", "context")), st.integers(1, 4))
    count = draw(st.integers(2, 4))
    sessions = []
    for index in range(count):
        shape = (("given", draw(st.integers(1, 5))), *draw(st.lists(part, max_size=6)), ("trained", draw(st.integers(1, 3))))
        rest = (("given", draw(st.integers(1, 3))),) if draw(st.booleans()) else ()
        reward = draw(st.sampled_from((0.0, 0.1, 0.5, 1.0)))
        sessions.append(session(index, (row_of((*shape, *rest), seed=index),), reward=reward, size=count))
    return merged(*sessions)


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_fault_is_found(kind: TrainerFormat, fault: str) -> None:
    """The oracle can fail, in each format."""
    event = as_taken(kind)
    found = read(kind, kind.records(PLANTED[fault](train_group(event))))

    blind = fault == "versions off by one" and kind.name in WITHOUT_VERSIONS
    assert bool(faults(found, event)) is not blind


@given(groups())
@settings(deadline=None, max_examples=30)
def test_every_shape_of_rows_is_trained_as_sampled(event: GroupMerged) -> None:
    """Answers beside each other, context of any kind between and after them."""
    for kind in FORMATS.values():
        assert faults(read(kind, kind.emit(event).records), event) == [], kind.name


def test_group_whose_tokens_are_lost_in_a_format_is_refused() -> None:
    """A format that cuts is found when it runs, not only here."""

    def cut(group: TrainGroup) -> list[Any]:
        return FORMATS["trl_async"].records(group)[:-1]

    with pytest.raises(RowsRefused, match="has 23 trainable tokens, and 22 as trl_async"):
        structs.replace(FORMATS["trl_async"], records=cut).emit(several_rows())


def test_groups_that_are_not_for_training_are_refused() -> None:
    with pytest.raises(NotForTraining, match="of purpose collect"):
        train_group(structs.replace(single_rows(), purpose=Purpose.COLLECT))


@pytest.mark.parametrize("reward", [None, float("nan"), float("inf")])
def test_session_without_a_finite_reward_is_refused(reward: float | None) -> None:
    event = single_rows()
    first, *others = event.members
    assert first.scored is not None
    changed = structs.replace(first, scored=structs.replace(first.scored, reward=reward))

    with pytest.raises(SessionUngraded, match=r"task\.0"):
        train_group(structs.replace(event, members=(changed, *others)))


@pytest.mark.parametrize(
    "sampling",
    [Sampling(temperature=0.0), Sampling(top_p=0.9), Sampling(top_k=20), Sampling(min_p=0.1), Sampling(temperature=0.7)],
    ids=["greedy", "top_p", "top_k", "min_p", "another temperature"],
)
def test_rows_of_another_distribution_than_the_trainer_computes_are_refused(sampling: Sampling) -> None:
    """Its logprobs would be of another distribution, and every ratio wrong."""
    with pytest.raises(SamplingRefused, match=r"row 0 of session task\.0 was sampled"):
        train_group(resampled(single_rows(), sampling), Takes(temperature=1.0))


@pytest.mark.parametrize(
    ("fault", "field", "value"),
    [
        ("trains a token of its prompt", "loss_mask", pack_uint8([1] * 11)),
        ("has no trainable token", "loss_mask", pack_uint8([0] * 11)),
        ("has a trainable token without a logprob", "logprobs", pack_float32([np.nan] * 11)),
        ("has a trainable token without a version", "versions", pack_int32([-1] * 11)),
        ("trains a token of its prompt", "prompt_length", 0),
    ],
)
def test_rows_that_contradict_themselves_are_refused(fault: str, field: str, value: object) -> None:
    """They were not made by Evener's rules."""
    with pytest.raises(RowsRefused, match=fault):
        train_group(rebuilt(single_rows(), lambda row: structs.replace(row, **{field: value})))


def test_advantages_may_be_left_in_units_of_the_reward() -> None:
    group = train_group(single_rows((1.0, 0.0)), Takes(by_deviation=False))

    assert [one.advantage for one in group.sessions] == [0.5, -0.5]


def test_counts_of_a_session_are_those_of_all_its_rows() -> None:
    """By which a loss is normalised: the session has three rows and counts once."""
    group = train_group(several_rows())

    assert [(len(one.rows), one.tokens) for one in group.sessions] == [(1, 5), (1, 5), (1, 5), (3, 8)]
    assert group.tokens == 23


def test_formats_are_found_by_name() -> None:
    assert format_named("trl") is FORMATS["trl"]
