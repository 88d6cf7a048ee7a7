"""Rows of delivered sessions, in the neutral form and in files."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from msgspec import structs
from tests.support.builders import built, ended, group, scored
from tests.support.trainer_groups import several_rows, with_rowless

from evener.cli.group_files import NotWritten, write_groups
from evener.formats import jsonl, parquet
from evener.formats.neutral import neutral_rows, session_rows
from evener.proto.blobs import BlobRef
from evener.proto.reasons import TerminationReason
from evener.proto.trajectories import GroupMerged, TrajectoryScored


def merged(sessions: tuple[TrajectoryScored, ...]) -> GroupMerged:
    event = ended(sessions, now=0.0)
    assert isinstance(event, GroupMerged)
    return event


def test_only_delivered_sessions_become_rows() -> None:
    rows = neutral_rows(merged(group((1.0, None, 0.5, 0.0))))

    assert [row["rollout_id"] for row in rows] == ["fix-the-bug.0", "fix-the-bug.2", "fix-the-bug.3"]
    assert [row["reward"] for row in rows] == [1.0, 0.5, 0.0]
    assert {row["purpose"] for row in rows} == {"train"}
    assert all(len(row["ids"]) == len(row["loss_mask"]) == len(row["logprobs"]) == 27 for row in rows)
    assert all(row["loss_mask"].sum() == 10 and row["prompt_len"] == 12 for row in rows)


def test_siblings_share_their_session() -> None:
    """A trainer counts the reward of a session with two rows once."""
    two = built(index=0, size=2)
    two = msgspec.structs.replace(two, rows=two.rows * 2)
    rows = neutral_rows(merged((scored(two), scored(built(index=1, size=2)))))

    assert [(row["rollout_id"], row["branch_index"], row["n_branches"]) for row in rows] == [
        ("fix-the-bug.0", 0, 2),
        ("fix-the-bug.0", 1, 2),
        ("fix-the-bug.1", 0, 1),
    ]


def test_rows_have_the_counts_by_which_a_loss_is_normalised() -> None:
    """Three rows, and one session; a session without a row counts for the mean, which rows alone would not give."""
    named = {row["rollout_id"]: row for row in neutral_rows(several_rows())}
    assert [(row["n_branches"], row["session_tokens"]) for row in named.values()] == [(1, 5), (1, 5), (1, 5), (3, 8)]

    rows = neutral_rows(with_rowless((1.0, 0.0, 0.0, 1.0)))
    assert {(row["group_sessions"], row["group_mean"], row["group_deviation"]) for row in rows} == {(4, 0.5, 0.5)}
    assert len({row["rollout_id"] for row in rows}) == 3


def test_session_that_stands_alone_has_no_group_to_be_compared_with() -> None:
    (row,) = session_rows(scored(built(index=0, size=2)))

    assert (row["group_sessions"], row["group_mean"], row["group_deviation"]) == (None, None, None)


def test_reward_of_a_call_reaches_its_sampled_tokens_in_every_format() -> None:
    """By `call_rewards[call_of]`; a call without one has NaN, which is null in JSON."""
    session = built(index=0, size=2)
    _, second = session.rows[0].calls
    event = merged((scored(session, call_rewards={second: 0.25}), scored(built(index=1, size=2))))
    first, other = neutral_rows(event)

    assert first["call_rewards"].dtype == np.float32
    of_tokens = first["call_rewards"][first["call_of"][first["call_of"] >= 0]]
    assert np.array_equal(of_tokens, [np.nan] * 6 + [0.25] * 4, equal_nan=True)
    assert np.isnan(other["call_rewards"]).all()

    written, lines = io.BytesIO(), io.BytesIO()
    parquet.write([event], written)
    jsonl.write([event], lines)
    assert str(pq.read_table(written).column("call_rewards").to_pylist()[0]) == "[nan, 0.25]"
    assert json.loads(lines.getvalue().splitlines()[0])["call_rewards"] == [None, 0.25]


def test_session_cut_by_a_budget_is_marked_truncated() -> None:
    rows = neutral_rows(merged((scored(built(index=0, size=2, end=TerminationReason.TOKEN_BUDGET)), scored(built(index=1, size=2)))))

    assert [row["truncated"] for row in rows] == [True, False]
    assert [row["status"] for row in rows] == ["token_budget", "finished"]


def test_blobs_that_were_not_fetched_are_an_error() -> None:
    """Never a row without its tokens."""
    session = built(index=0, size=1)
    lost = msgspec.structs.replace(session.rows[0], ids=BlobRef(digest="0" * 64, size=4))
    event = merged((scored(msgspec.structs.replace(session, rows=(lost,))),))

    with pytest.raises(TypeError, match="not fetched"):
        neutral_rows(event)


def test_lines_are_json_with_null_for_what_was_not_sampled() -> None:
    event = merged(group())
    rows = neutral_rows(event)
    sink = io.BytesIO()

    assert jsonl.write([event], sink) == 4
    lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    assert len(lines) == 4
    assert lines[0]["ids"] == rows[0]["ids"].tolist()
    assert lines[0]["logprobs"][:12] == [None] * 12
    assert lines[0]["logprobs"][12] == pytest.approx(float(rows[0]["logprobs"][12]))


def test_parquet_gives_back_what_was_written() -> None:
    event = merged(group((1.0, 0.0)))
    rows = neutral_rows(event)
    sink = io.BytesIO()

    assert parquet.write([event], sink) == 2
    table = pq.read_table(io.BytesIO(sink.getvalue()))
    assert table.schema.equals(parquet.schema())
    read = table.to_pylist()
    for row, back in zip(rows, read, strict=True):
        for name in parquet.ARRAYS:
            np.testing.assert_array_equal(np.array(back[name], dtype=row[name].dtype), row[name])  # type: ignore[literal-required]
        assert (back["reward"], back["rollout_id"]) == (row["reward"], row["rollout_id"])
        assert back["rewards"] == [{"name": "reward", "value": row["reward"]}]


def rewarded(reward: float | None, **rewards: Any) -> GroupMerged:
    event = merged(group((1.0, 0.0)))
    first, *others = event.members
    assert first.scored is not None
    changed = structs.replace(first, scored=structs.replace(first.scored, reward=reward, rewards=rewards))
    return structs.replace(event, members=(changed, *others))


def test_parquet_holds_recordings_without_a_reward() -> None:
    """Nobody graded them: their reward is null, not a crash."""
    sink = io.BytesIO()
    parquet.write([rewarded(None)], sink)

    assert pq.read_table(io.BytesIO(sink.getvalue()))["reward"].to_pylist() == [None, 0.0]


def test_what_parquet_refuses_is_reported_with_the_file(tmp_path: Path) -> None:
    """In one line; and no half a file is left."""
    with pytest.raises(NotWritten, match=r"cannot write .*rows\.parquet: the rows cannot be written as Parquet: "):
        asyncio.run(write_groups(tmp_path / "rows.parquet", "parquet", [rewarded(1.0, tests="much")]))

    assert list(tmp_path.iterdir()) == []
