"""The canonical form of messages."""

from evener.dialects.canonical import Streamed, parts_of, rest_of, text_of

IMAGE = {"type": "image", "digest": "0" * 64, "media_type": "image/png"}


def test_text_leaves_images_out() -> None:
    assert text_of({"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE, {"type": "text", "text": "b"}]}) == "a\nb"
    assert text_of({"role": "user", "content": "a"}) == "a"


def test_a_string_is_one_part() -> None:
    assert parts_of({"role": "user", "content": "a"}) == [{"type": "text", "text": "a"}]
    assert parts_of({"role": "user", "content": [IMAGE]}) == [IMAGE]


def test_rest_is_what_was_not_streamed() -> None:
    message = {"role": "assistant", "content": "one two", "reasoning": "hm"}
    assert rest_of(message, Streamed(reasoning="hm", text="one")) == Streamed(reasoning="", text=" two")
