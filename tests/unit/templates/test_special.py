"""Special tokens: parsed where the template wrote them, text everywhere else."""

import asyncio
import json
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from evener.runtime.threads import Threads, Unwanted
from evener.templates import special
from evener.templates.control import SEARCHED_CHARACTERS, ControlTokens
from evener.templates.port import PromptTooLong, TemplateError
from evener.templates.source import ModelSource
from evener.templates.special import (
    ENCODER_TEXTS,
    LEAST_FAR,
    MAX_CHARACTERS,
    MAX_IDS,
    SplitEncoder,
    ids_of,
    longest_context,
    written_characters,
)

pytestmark = pytest.mark.engine

SPELLINGS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<file_sep>"]
PARTS = st.sampled_from([*SPELLINGS, "<|im_", "end|>", "<", "|>", " ", "\n", "a", "7", "é", "😀", "\ue000", "\ue001"])
LETTERS = st.characters(exclude_categories=["Cs"], exclude_characters="\x04\x06\x13\x14\x16\x1d", max_codepoint=0x3FFFF)
"""Without the letters for whose bytes this vocabulary has no tokens: they do not survive in any case."""
WORDS = st.text("ab", max_size=5)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.integers(10**300) | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner) | st.dictionaries(WORDS, inner),
)
TEXTS = st.one_of(st.text(LETTERS), st.lists(PARTS, max_size=12).map("".join))


@pytest.fixture(scope="module")
def encoder(source: ModelSource) -> SplitEncoder:
    return SplitEncoder(source.tokenizer, source.template or "")


@pytest.mark.parametrize("text", ENCODER_TEXTS)
def test_text_without_special_tokens_has_the_tokenizers_own_ids(encoder: SplitEncoder, source: ModelSource, text: str) -> None:
    assert encoder.encode(text) == encoder.encode_text(text) == source.tokenizer.encode(text, add_special_tokens=False).ids


@given(TEXTS)
def test_guarded_text_holds_no_special_token_and_decodes_to_itself(encoder: SplitEncoder, source: ModelSource, text: str) -> None:
    """Nobody's text can end a turn, and nothing of it is lost: private-use letters in it neither."""
    guarded, sentinel = encoder.guard(text)
    ids = encoder.encode(guarded, sentinel)

    assert not set(ids) & set(encoder.control.values())
    assert source.tokenizer.decode(ids, skip_special_tokens=False) == text
    assert ids == encoder.encode_text(text)


@given(TEXTS)
def test_parsed_text_is_the_tokenizers_own(encoder: SplitEncoder, source: ModelSource, text: str) -> None:
    """Piece by piece is the same as at once, genuine special tokens included."""
    assert encoder.encode(text) == source.tokenizer.encode(text, add_special_tokens=False).ids


def test_guard_reaches_keys_and_nested_values(encoder: SplitEncoder) -> None:
    """Names of tools and keys of arguments come from outside, too."""
    value = {"<|im_end|>": ["<|im_end|>", {"a": "x<|im_end|>"}], "n": 1, "none": None}
    guarded, sentinel = encoder.guard(value)

    marked = f"<{sentinel}|im_end|>"
    assert guarded == {marked: [marked, {"a": f"x{marked}"}], "n": 1, "none": None}


def test_text_with_all_possible_sentinels_is_refused(encoder: SplitEncoder) -> None:
    """Without a sentinel nothing could be told apart."""
    every = "".join(map(chr, [*range(0xE000, 0xF900), *range(0xF0000, 0xFFFFE)]))
    with pytest.raises(TemplateError, match="private-use"):
        encoder.guard(f"<|im_end|>{every}")


def test_added_tokens_that_the_template_writes_are_special_too(source: ModelSource) -> None:
    """Some models keep `<tool_response>` as an ordinary added token: forging it would forge a tool result."""
    tokenizer = Tokenizer.from_str(source.tokenizer.to_str())
    tokenizer.add_tokens([AddedToken("<tool_response>", normalized=False), AddedToken("<table>", normalized=False)])
    encoder = SplitEncoder(tokenizer, "<tool_response>{{ messages[0].content }}")

    assert "<tool_response>" in encoder.control
    assert "<table>" not in encoder.control
    assert len(encoder.encode_text("<tool_response>")) > 1
    assert encoder.encode_text("<table>") == tokenizer.encode("<table>", add_special_tokens=False).ids


def test_special_token_that_swallows_white_space_does_so_here(source: ModelSource) -> None:
    """As some families have it behind their end-of-turn token."""
    tokenizer = Tokenizer.from_str(source.tokenizer.to_str())
    tokenizer.add_special_tokens(
        [AddedToken("<|end|>", rstrip=True, normalized=False), AddedToken("<|mask|>", lstrip=True, normalized=False)]
    )
    encoder = SplitEncoder(tokenizer, "")

    text = "a <|mask|> b<|end|>\n\n c"
    assert encoder.encode(text) == tokenizer.encode(text, add_special_tokens=False).ids


def test_family_that_joins_across_special_tokens_is_refused() -> None:
    """Its first piece gets a space before it, so pieces cannot be encoded alone."""
    alphabet = [*pre_tokenizers.ByteLevel.alphabet(), "▁"]
    tokenizer = Tokenizer(models.BPE(vocab={letter: id_ for id_, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken("<|end|>", normalized=False)])

    with pytest.raises(TemplateError, match="joins across special tokens"):
        SplitEncoder(tokenizer, "")


def test_a_long_piece_that_comes_again_has_the_same_ids(encoder: SplitEncoder) -> None:
    """Also with a special token that somebody spelled in it."""
    system = "Follow the rules, and mind <|im_end|> in texts.\n" * 60
    guarded, sentinel = encoder.guard(system)
    text = f"<|im_start|>system\n{guarded}<|im_end|>\n"
    expected = encoder.encode(text, sentinel)
    assert [encoder.encode(text, sentinel, again=True) for _ in range(3)] == [expected] * 3


def test_spellings_across_slices_are_found(encoder: SplitEncoder, source: ModelSource) -> None:
    """A long text is searched slice by slice: a token that begins in one and ends in the next is one."""
    text = "".join(f"{'a ' * ((SEARCHED_CHARACTERS - cut) // 2)}<|im_end|>" for cut in (0, 4, 5, 12))
    guarded, sentinel = encoder.guard(text)

    assert sentinel
    assert guarded.count(f"<{sentinel}|im_end|>") == 4
    assert [at for at, _ in encoder.controls(text)] == [at for at in range(len(text)) if text.startswith("<|im_end|>", at)]
    assert encoder.encode(text) == source.tokenizer.encode(text, add_special_tokens=False).ids


def test_spaces_before_a_token_that_swallows_them_cost_no_more_than_letters() -> None:
    """A million spaces were looked at a million times."""
    tokens = ControlTokens({5: AddedToken("<x>", lstrip=True), 6: AddedToken("<y>", rstrip=True)})
    spaces = " " * 1_000_000

    assert list(tokens.written(f"{spaces}a{spaces}<x>{spaces}<y>{spaces}")) == [
        (1_000_001, 2_000_004, 5),
        (3_000_004, 4_000_007, 6),
    ]


def test_other_threads_run_while_a_long_text_is_encoded(encoder: SplitEncoder) -> None:
    """Or the event loop would stand still, although the text is encoded in a thread."""
    words = " ".join(f"word{number * 7919}" for number in range(40_000))
    begun, ticks = threading.Event(), 0

    def encode() -> None:
        begun.set()
        encoder.encode_text(words)

    thread = threading.Thread(target=encode)
    thread.start()
    begun.wait()
    while thread.is_alive():
        ticks += 1
        time.sleep(0.001)

    assert ticks > 5


def test_text_of_more_ids_than_any_prompt_is_refused(source: ModelSource) -> None:
    """They are counted before they are copied."""
    assert len(ids_of(source.tokenizer, " a a a", 3)) == 3

    with pytest.raises(PromptTooLong, match="has 4 tokens; at most 3 are served") as told:
        ids_of(source.tokenizer, " a a a a", 3)
    assert (told.value.tokens, told.value.limit) == (4, 3)


def test_text_far_beyond_the_context_is_given_up_before_all_of_it_is_counted(encoder: SplitEncoder) -> None:
    """Four million letters took a thread six seconds. A text that is a little too long is counted exactly."""
    with longest_context(10):
        assert len(encoder.encode("7" * 1000)) == 1000
        with pytest.raises(PromptTooLong, match="maximum context length is 10 tokens") as told:
            encoder.encode("7" * (2 * LEAST_FAR))
    assert LEAST_FAR < (told.value.tokens or 0) < 2 * LEAST_FAR
    assert len(encoder.encode("7" * (LEAST_FAR + 1))) == LEAST_FAR + 1


def test_many_texts_far_beyond_the_context_are_given_up_too(encoder: SplitEncoder) -> None:
    """A prompt is as long as all of its messages."""
    text = "<|im_start|>" * (LEAST_FAR + 1)
    with longest_context(10), pytest.raises(PromptTooLong):
        encoder.encode(text)


async def test_long_text_that_nobody_waits_for_is_encoded_no_further(source: ModelSource) -> None:
    """The next call of its session would wait for it."""
    begun, go_on, tokenizer = threading.Event(), threading.Event(), source.tokenizer

    def count() -> None:
        begun.set()
        assert go_on.wait(60)
        try:
            special.check_length(tokenizer, "7" * (2 * MAX_IDS + 1))
        except Unwanted:
            ended.set()
            raise

    ended = threading.Event()
    working = asyncio.create_task(Threads("test", 1).run(count))
    await asyncio.to_thread(begun.wait, 60)
    working.cancel()
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert ended.is_set()


def test_text_longer_than_any_prompt_is_refused_before_it_is_encoded(encoder: SplitEncoder) -> None:
    """Blanks and escapes are the template's own, and there may be a hundred for each value."""
    with pytest.raises(PromptTooLong, match=f"at most {MAX_CHARACTERS} are served"):
        encoder.encode("a" * (MAX_CHARACTERS + 1))


@given(VALUES)
def test_characters_are_counted_as_they_are_written(value: Any) -> None:
    """Numbers and brackets too."""
    written = json.dumps(value, separators=(",", ":"))

    assert len(written) <= written_characters(value) <= len(written) + written.count("[") + written.count("{")
