"""What single trainers trip over, as their real packages showed it."""

from typing import Any

import msgspec
import pytest
from msgspec import structs
from tests.support.trainer_groups import resampled, several_rows, single_rows

from evener.formats.registry import trainer_formats
from evener.formats.trainable import Takes
from evener.formats.trainers.prime_rl import TrainingSample
from evener.formats.trainers.verl_transfer_queue import uid_of
from evener.proto.spec import Sampling
from evener.proto.trajectories import GroupMerged

FORMATS = trainer_formats()


def records(name: str, event: GroupMerged, **given: Any) -> list[Any]:
    return FORMATS[name].emit(event, **given).records


@pytest.mark.parametrize("name", ["slime", "miles"])
def test_rows_of_a_session_share_their_rollout_id_and_no_other_rows_do(name: str) -> None:
    """The loss averages within it; groups of different sizes are in one batch."""
    small, large = several_rows((0.0, 1.0)), several_rows()
    rows = [*records(name, small, number=0), *records(name, large, number=1)]
    by_session = {(row["group_index"], row["metadata"]["evener_session_id"]): row["rollout_id"] for row in rows}

    assert len(set(by_session.values())) == len(by_session) == 6
    assert all(row["rollout_id"] == by_session[row["group_index"], row["metadata"]["evener_session_id"]] for row in rows)
    assert len({row["index"] for row in rows}) == len(rows) == 10
    assert [row["metadata"]["evener_rows"] for row in rows[-3:]] == [3, 3, 3]


def test_verl_splits_keys_into_group_session_and_row() -> None:
    """At `_`, which ids of groups have; two groups never become one."""
    (put,) = records("verl_transfer_queue", structs.replace(several_rows(), group_id="run_1.fix_it"))

    assert {len(key.split("_")) for key in put["keys"]} == {3}
    assert len(set(put["keys"])) == 6
    assert len({uid_of(name) for name in ("a_b", "a%5Fb", "a-b", "a%b", "ab")}) == 5


def test_row_of_areal_ends_with_its_last_trained_token() -> None:
    """AReaL puts the reward there, and it would be lost on a token that is not trained."""
    found = records("areal", several_rows())

    assert all(one["loss_mask"][0, -1] == 1 for one in found)
    assert all(one["input_ids"].shape == one["versions"].shape == one["attention_mask"].shape for one in found)
    assert [one["input_ids"].shape[1] for one in found] == [11, 11, 11, 11, 10, 6]


def test_versions_reach_areal_for_each_token() -> None:
    """Its decoupled loss needs them."""
    first = records("areal", single_rows())[0]

    assert first["versions"].tolist() == [[-1, -1, -1, -1, 3, 3, 3, -1, -1, 3, 4]]


def test_sample_of_prime_rl_is_an_array_in_its_order() -> None:
    """A field that moves is another one to the trainer. The temperature is given on every position, context too."""
    (first, *_) = records("prime_rl", resampled(single_rows(), Sampling(temperature=0.7)), takes=Takes(temperature=0.7))
    wire = msgspec.msgpack.decode(msgspec.msgpack.encode(first))

    assert [type(value) for value in wire[:5]] == [list, list, list, list, str]
    assert wire[5:12] == [None] * 7
    assert wire[3] == [0.7] * 11
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(first), type=TrainingSample) == first


def test_datum_of_tinker_is_one_shorter_than_its_row() -> None:
    (first, *_) = records("tinker", single_rows())
    (chunk,) = first["model_input"]["chunks"]

    assert len(chunk["tokens"]) == 10
    assert {name: (one["dtype"], one["shape"]) for name, one in first["loss_fn_inputs"].items()} == {
        "target_tokens": ("int64", [10]),
        "logprobs": ("float32", [10]),
        "advantages": ("float32", [10]),
        "mask": ("float32", [10]),
    }


def test_last_row_of_a_session_is_marked_for_skyrl() -> None:
    (batch,) = records("skyrl", several_rows())

    assert batch["is_last_step"] == [True, True, True, False, False, True]
    assert [one["repetition_id"] for one in batch["trajectory_ids"]] == [0, 1, 2, 3, 3, 3]


def test_calls_of_nemo_gym_begin_with_all_that_came_before() -> None:
    """NeMo-RL asserts it: an answer that another row trains is part of the next prompt."""
    for result in records("nemo_gym", single_rows()):
        seen: list[int] = []
        for item in result["response"]["output"]:
            assert item["prompt_token_ids"][: len(seen)] == seen
            seen = item["prompt_token_ids"] + item["generation_token_ids"]
            assert len(item["generation_token_ids"]) == len(item["generation_log_probs"])


def test_branch_whose_beginning_another_row_trains_is_no_step_of_atif() -> None:
    """Its first answer is in the prompt of its only step: it is trained once."""
    session = records("atif", several_rows())[-1]
    branch, sub_agent = session["subagent_trajectories"]

    assert [len(one["steps"]) for one in (session, branch, sub_agent)] == [2, 1, 1]
    assert branch["steps"][0]["metrics"]["prompt_tokens"] == 8
    assert [one["trajectory_id"] for one in (session, branch, sub_agent)] == ["task.3.0", "task.3.1", "task.3.2"]


def test_all_formats_say_by_which_settings_a_session_counts_once() -> None:
    assert all(kind.once and kind.trainer for kind in FORMATS.values())
