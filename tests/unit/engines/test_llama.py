"""Putting llama.cpp's answers together."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evener.engines.llama import Completion, align, block_seed, cut
from evener.engines.port import EngineError
from evener.proto.sessions import FinishReason


def completion(ids: list[int], **changes: Any) -> Completion:
    return Completion({"tokens": ids, "stop_type": "limit", "truncated": False, "timings": {"cache_n": 0}} | changes)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=12))
def test_a_logprob_never_lands_on_another_token(tokens: list[tuple[int, bool]]) -> None:
    """Whatever is left out: each logprob is given to its own place, or its place is looked up."""
    ids = [token for token, _ in tokens]
    reported = [(token, -float(place)) for place, (token, there) in enumerate(tokens) if there]
    found = align(ids, reported)
    assert len(found) == len(ids)
    assert all(logprob in {None, -float(place)} for place, logprob in enumerate(found))


@given(st.lists(st.integers(0, 1000), unique=True, min_size=1), st.data())
def test_distinct_tokens_keep_every_reported_logprob(ids: list[int], data: st.DataObject) -> None:
    there = data.draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
    found = align(ids, [(token, -1.0) for token, kept in zip(ids, there, strict=True) if kept])
    assert [logprob is not None for logprob in found] == there


def test_logprobs_of_foreign_ids_are_an_error() -> None:
    with pytest.raises(EngineError, match=r"logprobs of the ids \[9\] came with the ids \[1, 2\]"):
        align([1, 2], [(9, -1.0)])


def test_what_was_sampled_after_a_stop_id_is_dropped() -> None:
    """llama.cpp stops at its own end ids only."""
    assert cut(completion([4, 5, 6, 7]), stop_ids=(6,), wanted=4) == ([4, 5, 6], FinishReason.STOP)


def test_the_engines_own_end_ends_an_answer() -> None:
    assert cut(completion([4, 5], stop_type="eos"), stop_ids=(), wanted=16) == ([4, 5], FinishReason.STOP)


def test_a_full_context_ends_an_answer_by_length() -> None:
    assert cut(completion([4, 5], truncated=True), stop_ids=(), wanted=16) == ([4, 5], FinishReason.LENGTH)


def test_a_full_block_continues() -> None:
    assert cut(completion([4, 5]), stop_ids=(), wanted=2) == ([4, 5], None)


def test_a_short_block_without_a_reason_is_an_error() -> None:
    with pytest.raises(EngineError, match="stopped after 2 without saying why"):
        cut(completion([4, 5]), stop_ids=(), wanted=16)


def test_blocks_of_one_answer_draw_apart() -> None:
    """The same seed in two blocks would repeat the first block's draws."""
    assert len({block_seed(seed, place) for seed in range(20) for place in range(20)}) == 400
