"""An answer as it grows: the same as its chunks, and small."""

import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from evener.engines.answers import Sampled, chunk, join
from evener.engines.port import Chunk, EngineUnreachable
from evener.proto.sessions import FinishReason

TOKENS = 20_000
CHUNKS = st.lists(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(-90, 0, width=32), st.integers(-1, 9)), max_size=5), min_size=1)


def made(tokens: Sequence[tuple[int, float, int]]) -> Chunk:
    ids, logprobs, versions = zip(*tokens, strict=True) if tokens else ((), (), ())
    return structs.replace(chunk(ids, logprobs), versions=np.asarray(versions, np.int32))


@given(CHUNKS)
def test_an_answer_is_its_chunks_one_after_the_other(parts: list[list[tuple[int, float, int]]]) -> None:
    sampled = Sampled()
    for number, part in enumerate(parts):
        sampled.add(made(part))
        so_far = [token for each in parts[: number + 1] for token in each]
        assert sampled.ids.tolist() == [token for token, _, _ in so_far]
        assert len(sampled) == len(so_far)
    whole = sampled.partial()
    assert list(zip(whole.ids.tolist(), whole.logprobs.tolist(), whole.versions.tolist(), strict=True)) == so_far


def test_versions_that_come_at_the_end_replace_those_of_the_chunks() -> None:
    last = structs.replace(chunk([3], [-0.5], finish_reason=FinishReason.STOP), answer_versions=np.asarray([7, 7, 8], np.int32))
    whole = join([chunk([1, 2], [-1.0, -2.0]), last])
    assert (whole.versions.tolist(), whole.finish_reason) == ([7, 7, 8], FinishReason.STOP)


def test_prompt_and_cache_are_kept_from_the_chunk_that_told_them() -> None:
    first = structs.replace(chunk([1], [-1.0]), prompt_ids=np.asarray([5, 6], np.int32))
    whole = join([first, chunk([2], [-1.0], cached_tokens=4, finish_reason=FinishReason.LENGTH)])
    assert whole.prompt_ids is not None
    assert (whole.prompt_ids.tolist(), whole.cached_tokens) == ([5, 6], 4)


def test_pieces_keep_their_versions_and_the_first_one_its_prompt_and_cache() -> None:
    """Each piece tells the versions of its own tokens: at its end, with each token, or not at all."""
    sampled = Sampled()
    versions = ([7, 8], None, [9])
    for number, told in enumerate(versions):
        ids = [10 * number + place for place in range(len(told or [0]))]
        end = chunk(ids, [-1.0] * len(ids), cached_tokens=number, finish_reason=FinishReason.ABORTED)
        prompt, answer = np.asarray([number], np.int32), None if told is None else np.asarray(told, np.int32)
        sampled.add(structs.replace(end, answer_versions=answer, prompt_ids=prompt))
        sampled.go_on()
        assert sampled.finish_reason is None
    sampled.go_on()  # a piece without a token
    assert sampled.continued_at == (2, 3, 4)
    sampled.add(chunk([30], [-1.0], version=4, finish_reason=FinishReason.STOP))
    whole = sampled.whole()
    assert whole.versions.tolist() == [7, 8, -1, 9, 4]
    assert whole.ids.tolist() == [0, 1, 10, 20, 30]
    assert whole.prompt_ids is not None
    assert (whole.prompt_ids.tolist(), whole.cached_tokens) == ([0], 0)


def test_an_answer_without_an_end_is_none() -> None:
    """Whoever sampled it is gone."""
    with pytest.raises(EngineUnreachable):
        join([chunk([1], [-1.0])])


def test_a_token_of_an_open_answer_takes_a_few_bytes() -> None:
    """A call of 32,000 tokens that come one by one: not the 445 bytes of a chunk."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        sampled = Sampled()
        for number in range(TOKENS):
            sampled.add(chunk([number], [-0.5]))
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(sampled) == TOKENS
    assert (after - before) / TOKENS < 20
