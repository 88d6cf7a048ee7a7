"""Bodies before they are parsed: counted, and mended where parsers differ."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evener.dialects.bodies import MAX_SLOW_CHARACTERS, MAX_VALUES, as_utf8, check_size, mended, values_in
from evener.dialects.canonical import MAX_TOLD, RequestError, RequestHints
from evener.dialects.fields import MAX_MODEL_CHARACTERS, read_fields, read_hints, read_json
from evener.dialects.openai_chat import OpenAIChat
from evener.dialects.registry import dialect_for
from evener.tokens.numbers import MAX_DIGITS, MAX_FLOAT

PATH = "/v1/chat/completions"
TEXTS = st.text(st.sampled_from('ab,[]{}:"\\/\né\u2122😀')) | st.text()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
)
ESCAPES = st.lists(st.sampled_from(["\\ud83d", "\\uDE00", "\\udbff", "\\ud83d\\ude00", "\\\\", "\\\\ud800", "\\n", "a", "é", "\\u0041"]))


def members(value: Any) -> int:
    """Count in the parsed value what `values_in` counts in its bytes."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else max(len(inner), 1) + sum(map(members, inner))


@given(VALUES, st.sampled_from([json.dumps, partial(json.dumps, ensure_ascii=False)]), st.integers(1, 40))
def test_values_are_counted_as_a_parser_makes_them(value: Any, spell: Callable[[Any], str], size: int) -> None:
    """Whatever its texts spell, and wherever a slice ends."""
    assert values_in(spell(value).encode(), size) == members(value)


def test_texts_that_look_like_json_are_no_values() -> None:
    """A harness that sends long outputs of tools is served."""
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "[{}," * MAX_VALUES}]}).encode()

    assert len(OpenAIChat().parse(PATH, body).messages[0]["content"]) == 4 * MAX_VALUES


@pytest.mark.parametrize("cell", ["{}", "[]", "0", '{"a":{}}'])
def test_too_many_values_are_refused_before_anything_is_parsed(cell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight megabytes of `{}` took two seconds and 434 MB."""
    body = f'{{"model": "m", "messages": [], "tools": [{",".join([cell] * (MAX_VALUES + 1))}]}}'.encode()
    monkeypatch.setattr(json.JSONDecoder, "decode", lambda *_: pytest.fail("it was parsed"))

    with pytest.raises(RequestError, match=f"more than {MAX_VALUES} JSON values; send fewer"):
        OpenAIChat().parse(PATH, body)
    assert OpenAIChat().hints(PATH, body) == RequestHints()


@pytest.mark.parametrize("letter", ["\\n", "é", "😀"])
def test_more_letters_than_any_context_holds_are_refused_before_anything_is_parsed(letter: str) -> None:
    """Harnesses shorten their histories when they read the kind of this error."""
    check_size(f'"{letter * MAX_SLOW_CHARACTERS}"'.encode())

    with pytest.raises(RequestError, match=f"more than {MAX_SLOW_CHARACTERS} characters") as told:
        read_fields(f'"{letter * (MAX_SLOW_CHARACTERS + 1)}'.encode())  # no JSON: it was not parsed
    assert told.value.kind == "context_length_exceeded"


def test_as_many_values_as_are_served_are_parsed() -> None:
    body = b'{"a":[' + b",".join([b"{}"] * ((MAX_VALUES - 1) // 2)) + b"]}"

    assert list(read_fields(body)) == ["a"]


def test_an_integer_of_absurd_length_is_refused_by_name() -> None:
    """Seven thousand numbers of 4,200 digits took more than a second to read, and as long to write, in which no other thread runs."""
    assert read_json("-" + "9" * (MAX_DIGITS - 1)) == 1 - 10 ** (MAX_DIGITS - 1)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": "@"}).replace(
        '"@"', f"[{'9' * (MAX_DIGITS + 1)}]"
    )

    with pytest.raises(RequestError, match=f"more than {MAX_DIGITS} digits") as told:
        OpenAIChat().parse(PATH, body.encode())
    assert told.value.status == 400


def test_a_number_of_absurd_length_is_refused_by_name() -> None:
    """One of 20 MB in a tool's schema stopped the gateway. Numbers that are written out are served."""
    assert read_json(f"{1.7e308:.6f}") == 1.7e308
    assert read_json("0." + "1" * (MAX_FLOAT - 2)) == 1 / 9
    with pytest.raises(ValueError, match=f"more than {MAX_FLOAT} characters"):
        read_json("0." + "1" * (MAX_FLOAT - 1))
    with pytest.raises(ValueError, match=f"more than {MAX_FLOAT} characters"):
        read_json("1" * MAX_FLOAT + "e1")


@pytest.mark.parametrize(
    ("field", "path"),
    [
        ('"messages": [{"role": "@", "content": "hi"}]', "messages[0].role"),
        ('"messages": [{"role": "user", "content": [{"type": "@"}]}]', "messages[0].content[0].type"),
        ('"messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "@"}]', "tools[0].type"),
        ('"messages": [{"role": "user", "content": "hi"}], "response_format": {"type": "@"}', "response_format"),
    ],
)
def test_what_was_sent_is_not_told_at_length(field: str, path: str) -> None:
    """A role of 10 MB made an answer of 10 MB. The message says where and what is wrong, and so much of it as a reader needs."""
    with pytest.raises(RequestError, match=r"aaaa.* characters left out\] a+") as told:
        OpenAIChat().parse(PATH, f'{{"model": "m", {field}}}'.replace("@", "a" * 100_000).encode())
    assert told.value.field == path
    assert told.value.message.startswith(path)
    assert not told.value.message.endswith("a")
    assert len(OpenAIChat().error(told.value)) < 3 * MAX_TOLD


@given(ESCAPES.map("".join), st.integers(1, 40))
def test_halves_of_pairs_are_mended_as_they_are_read(text: str, size: int) -> None:
    """Both ways to read a body have the same text: U+FFFD where half a letter is left."""
    body = f'{{"{text}": "{text}"}}'.encode()
    whole = mended(body, size)

    assert json.loads(whole) == read_json(body)
    assert read_json(whole) == read_json(body)


def test_body_with_a_lone_half_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight megabytes with one took the runner's loop 2.2 seconds: everything was parsed for two fields."""
    body = b'{"\\ud800": 0, "model": "m", "stream": true, "messages": []}'
    assert read_fields(body).keys() == {"\ufffd", "model", "stream", "messages"}
    parsed: list[str] = []
    parse = json.JSONDecoder.decode

    def note(decoder: json.JSONDecoder, text: str) -> Any:
        parsed.append(text)
        return parse(decoder, text)

    monkeypatch.setattr(json.JSONDecoder, "decode", note)

    assert read_hints(body) == RequestHints(stream=True, model="m")
    assert parsed == ['"m"']


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32-be", "utf-8-sig"])
def test_other_encodings_of_unicode_are_read(encoding: str) -> None:
    """Also where a slice ends within a letter."""
    text = json.dumps({"model": "😀é", "stream": True}, ensure_ascii=False)

    assert as_utf8(text.encode(encoding), 7).decode() == text
    assert read_hints(text.encode(encoding)) == RequestHints(stream=True, model="😀é")


@pytest.mark.parametrize("body", ['{"stream": 1}', '{"stream": null}', '{"stream": "true"}', '{"model": 5}', "[1]", "{", "", "\xff"])
def test_hint_that_cannot_be_read_is_none(body: str) -> None:
    """The gateway refuses it."""
    assert read_hints(body.encode("latin-1")) == RequestHints()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}),
        ("/v1beta/models/MODEL:generateContent", {"contents": [{"parts": [{"text": "hi"}]}]}),
    ],
)
def test_name_of_a_model_is_refused_if_it_is_no_name(path: str, body: dict[str, Any]) -> None:
    """Each event of a live answer repeats it: 10 MB of it made 76 MB of 40 tokens."""

    def parsed(model: str) -> str:
        named, dialect = path.replace("MODEL", model), dialect_for(path)
        assert dialect is not None
        return dialect.parse(named, json.dumps(body if named != path else {**body, "model": model}).encode()).model

    assert parsed("m" * MAX_MODEL_CHARACTERS) == "m" * MAX_MODEL_CHARACTERS
    with pytest.raises(RequestError, match="at most 500 characters"):
        parsed("m" * (MAX_MODEL_CHARACTERS + 1))
