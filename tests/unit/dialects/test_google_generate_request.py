"""Requests of Gemini CLI, Pi and others become canonical; everything else is refused with the place named."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from tests.unit.dialects.arbitrary import damaged, scratched, take

from evener.dialects.canonical import CanonicalRequest, RequestError, RequestHints
from evener.dialects.google_generate import GoogleGenerate
from evener.dialects.registry import dialect_for
from evener.tokens.digests import Message

GOOGLE = GoogleGenerate()
STREAM = "/v1beta/models/policy:streamGenerateContent?alt=sse"
WHOLE = "/v1beta/models/policy:generateContent"
COUNT = "/v1beta/models/policy:countTokens"
PIXEL = "iVBORw0KGgo="
SIGNATURE = "YzF4MA=="
"""The signature that carries the answer key c1x0."""
LIKE_GEMINI: dict[str, Any] = {
    "contents": [
        {"role": "user", "parts": [{"text": "<session_context>"}, {"text": "Create hello.txt."}]},
        {
            "role": "model",
            "parts": [
                {"text": "On it é."},
                {
                    "functionCall": {"id": "callc1x0x0", "name": "shell", "args": {"command": "echo", "n": 1.0}},
                    "thoughtSignature": SIGNATURE,
                },
                {"functionCall": {"id": "callc1x0x1", "name": "read", "args": {"__unparsedToolInput": {"raw": "{b", "len": 2}}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"id": "callc1x0x0", "name": "shell", "response": {"output": "done"}}},
                {"functionResponse": {"id": "callc1x0x1", "name": "read", "response": {"error": "no such file"}}},
                {"inlineData": {"mimeType": "image/png", "data": PIXEL}},
            ],
        },
    ],
    "systemInstruction": {"role": "user", "parts": [{"text": "You are Gemini CLI."}, {"text": "Be brief."}]},
    "tools": [
        {"functionDeclarations": [{"name": "shell", "description": "Run.", "parametersJsonSchema": {"type": "object"}}, {"name": "read"}]}
    ],
    "generationConfig": {
        "temperature": 1,
        "topP": 0.95,
        "topK": 64,
        "maxOutputTokens": 4096,
        "thinkingConfig": {"includeThoughts": True, "thinkingBudget": 8192},
    },
}
LIKE_PI: dict[str, Any] = {
    "contents": [
        {"role": "user", "parts": [{"text": "Look."}]},
        {
            "role": "model",
            "parts": [
                {"thought": True, "text": "Hm."},
                {"functionCall": {"name": "bash", "args": {"command": "ls"}}, "thoughtSignature": SIGNATURE},
                {"functionCall": {"name": "bash", "args": {"command": "pwd"}}},
                {"functionCall": {"name": "read", "args": {}}},
            ],
        },
        {
            "role": "user",
            "parts": [
                {"functionResponse": {"name": "read", "response": {"output": "r"}}},
                {"functionResponse": {"name": "bash", "response": {"output": "1"}}},
                {"functionResponse": {"name": "bash", "response": {"output": "2", "code": 1}}},
            ],
        },
    ],
    "systemInstruction": {"parts": [{"text": "You are an expert."}]},
    "tools": [{"functionDeclarations": [{"name": "bash", "description": "Run.", "parameters": {"type": "OBJECT"}}]}],
    "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
    "generationConfig": {"candidateCount": 2},
}
LIKE_CURL: dict[str, Any] = {"contents": [{"parts": [{"text": "hi"}]}]}
BODIES = [LIKE_GEMINI, LIKE_PI, LIKE_CURL]


def parse(body: dict[str, Any], path: str = WHOLE, **more: Any) -> CanonicalRequest:
    return GOOGLE.parse(path, json.dumps(body | more).encode())


def contents(*given: Any) -> tuple[Message, ...]:
    """Return the messages of a request with these contents."""
    return parse({"contents": list(given)}).messages


def test_gemini_clis_request_becomes_canonical() -> None:
    """Ids are kept; the key is in a signature; an error is marked; an image stands beside the results."""
    request = parse(LIKE_GEMINI, STREAM)
    [image] = request.images
    assert image.digest == hashlib.sha256(image.data).hexdigest()
    assert list(request.messages) == [
        {"role": "system", "content": "You are Gemini CLI.\nBe brief."},
        {"role": "user", "content": "<session_context>\nCreate hello.txt."},
        {
            "role": "assistant",
            "content": "On it é.",
            "tool_calls": [
                {"id": "callc1x0x0", "name": "shell", "arguments": {"command": "echo", "n": 1.0}},
                {"id": "callc1x0x1", "name": "read", "arguments": "{b"},
            ],
            "key": "c1x0",
        },
        {"role": "tool", "content": "done", "tool_call_id": "callc1x0x0", "name": "shell"},
        {"role": "tool", "content": "Error: no such file", "tool_call_id": "callc1x0x1", "name": "read"},
        {"role": "user", "content": [{"type": "image", "digest": image.digest, "media_type": "image/png"}]},
    ]
    assert request.tools == ({"name": "shell", "description": "Run.", "parameters": {"type": "object"}}, {"name": "read"})
    assert image.path == "contents[2].parts[2].inlineData.data"
    assert (request.model, request.stream, request.max_tokens, request.n) == ("policy", True, 4096, 1)
    assert request.requested_params == {
        "temperature": 1,
        "topP": 0.95,
        "topK": 64,
        "thinkingConfig": {"includeThoughts": True, "thinkingBudget": 8192},
        "maxOutputTokens": 4096,
    }


def test_ids_that_a_client_dropped_come_back_from_our_key() -> None:
    """Pi drops them: calls are numbered as in their answer, results belong to them by name and order."""
    request = parse(LIKE_PI)
    [answer] = [message for message in request.messages if message["role"] == "assistant"]
    assert (answer["reasoning"], answer["key"]) == ("Hm.", "c1x0")
    assert [call["id"] for call in answer["tool_calls"]] == ["callc1x0x0", "callc1x0x1", "callc1x0x2"]
    results = [(message["tool_call_id"], message["content"]) for message in request.messages if message["role"] == "tool"]
    assert results == [("callc1x0x2", "r"), ("callc1x0x0", "1"), ("callc1x0x1", '{"output":"2","code":1}')]
    assert request.n == 2


@pytest.mark.parametrize("signature", [None, "skip_thought_signature_validator", "AAAA", "!!", "Yw"])
def test_ids_dropped_without_our_key_are_empty(signature: str | None) -> None:
    """A foreign signature says nothing ("Yw" could be a key of ours: it only names an answer that does not exist)."""
    call = {"functionCall": {"name": "f"}, **({"thoughtSignature": signature} if signature else {})}
    answer, result = contents(
        {"role": "model", "parts": [call]}, {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {}}}]}
    )
    assert answer["tool_calls"][0]["id"] == ("callcx0" if signature == "Yw" else "")
    assert result["tool_call_id"] == answer["tool_calls"][0]["id"]
    assert result["content"] == "{}"


def test_pieces_of_a_streamed_answer_are_one_answer() -> None:
    """A client may keep each event as a content; two keys are two answers."""
    pieces = [{"role": "model", "parts": [{"text": text}]} for text in ("a", "", " b")]
    first = {"role": "model", "parts": [{"text": "c", "thoughtSignature": SIGNATURE}]}
    second = {"role": "model", "parts": [{"text": "d", "thoughtSignature": "YzJ4MA=="}]}
    assert contents(*pieces, first, second) == (
        {"role": "assistant", "content": "a bc", "key": "c1x0"},
        {"role": "assistant", "content": "d", "key": "c2x0"},
    )


def test_fields_may_be_named_in_snake_case() -> None:
    """The wire takes both, as every JSON form of a protocol buffer does; what is inside of arguments stays."""
    body = {
        "contents": [
            {"role": "model", "parts": [{"function_call": {"name": "f", "args": {"a_b": 1}}, "thought_signature": SIGNATURE}]},
            {"role": "user", "parts": [{"inline_data": {"mime_type": "image/png", "data": PIXEL}}]},
        ],
        "system_instruction": "Be brief.",
        "tools": [{"function_declarations": [{"name": "f", "parameters": {"type": "OBJECT"}}]}, {"google_search": {}}],
        "generation_config": {"max_output_tokens": 5},
    }
    request = parse(body)
    assert request.messages[0] == {"role": "system", "content": "Be brief."}
    assert request.messages[1]["tool_calls"] == [{"id": "callc1x0x0", "name": "f", "arguments": {"a_b": 1}}]
    assert len(request.images) == 1
    assert (request.max_tokens, request.requested_params) == (5, {"removed_tools": ["googleSearch"], "maxOutputTokens": 5})


def test_googles_own_schemas_become_json_schema() -> None:
    own = {
        "type": "OBJECT",
        "properties": {"type": {"type": "STRING"}, "list": {"type": "ARRAY", "items": {"anyOf": [{"type": "INTEGER"}]}}},
        "required": ["type"],
    }
    [tool] = parse(LIKE_CURL, tools=[{"functionDeclarations": [{"name": "f", "parameters": own}]}]).tools
    assert tool["parameters"] == {
        "type": "object",
        "properties": {"type": {"type": "string"}, "list": {"type": "array", "items": {"anyOf": [{"type": "integer"}]}}},
        "required": ["type"],
    }


def test_hosted_tools_are_removed_and_recorded() -> None:
    """They would leave the sandbox."""
    request = parse(
        LIKE_CURL, tools=[{"googleSearch": {}, "urlContext": {}}, {"codeExecution": {}}, {"functionDeclarations": [{"name": "f"}]}]
    )
    assert request.tools == ({"name": "f"},)
    assert request.requested_params["removed_tools"] == ["googleSearch", "urlContext", "codeExecution"]


def test_an_image_may_stand_in_a_result() -> None:
    """Base64 may be the kind for URLs."""
    part = {"inlineData": {"mimeType": "image/png", "data": "-_8="}}
    [message] = contents({"parts": [{"functionResponse": {"id": "a", "name": "f", "response": {"output": "seen"}, "parts": [part]}}]})
    assert [one["type"] for one in message["content"]] == ["text", "image"]


def test_what_is_dropped_from_tools_is_recorded() -> None:
    declared = {"name": "f", "behavior": "NON_BLOCKING", "response": {"type": "OBJECT"}}
    request = parse(LIKE_CURL, tools=[{"functionDeclarations": [declared]}], toolConfig={"retrievalConfig": {"languageCode": "en"}})
    assert request.tools == ({"name": "f"},)
    assert request.requested_params["tools"] == {"f": {"behavior": "NON_BLOCKING", "response": {"type": "OBJECT"}}}
    assert request.requested_params["toolConfig"] == {"retrievalConfig": {"languageCode": "en"}}


def test_a_thought_without_a_text_says_nothing() -> None:
    """Clients keep the signature of a thought whose text they drop."""
    thought = {"thought": True, "thoughtSignature": SIGNATURE}
    assert contents({"role": "model", "parts": [thought, {"text": "On it."}]}) == (
        {"role": "assistant", "content": "On it.", "key": "c1x0"},
    )


def test_choosing_no_tools_hides_them() -> None:
    request = parse(LIKE_PI, toolConfig={"functionCallingConfig": {"mode": "NONE"}})
    assert (request.tools, request.requested_params["tool_choice"]) == ((), "none")


def test_counting_takes_both_forms() -> None:
    stopping = {**LIKE_PI, "generationConfig": {"stopSequences": ["END"]}}
    for body in (LIKE_PI, stopping, {"generateContentRequest": {"model": "models/policy", **LIKE_PI}}):
        request = parse(body, COUNT)
        assert (request.count_only, request.stream, len(request.messages)) == (True, False, 6)
        assert len(request.tools) == 1
    assert GOOGLE.counted(12) == b'{"totalTokens":12}'


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"contents": []}, "contents"),
        ({"contents": None}, "contents"),
        ({"contents": "hi"}, "contents"),
        ({"contents": [{"role": "system", "parts": []}]}, r"contents\[0\].role"),
        ({"contents": [{"parts": [{"fileData": {"fileUri": "gs://x"}}]}]}, r"contents\[0\].parts\[0\]: a part with fileData"),
        ({"contents": [{"role": "model", "parts": [{"executableCode": {}}]}]}, r"contents\[0\].parts\[0\]"),
        ({"contents": [{"parts": [{"inlineData": {"mimeType": "audio/wav", "data": ""}}]}]}, r"inlineData.mimeType"),
        ({"contents": [{"parts": [{"functionResponse": {"response": {}}}]}]}, r"functionResponse.name"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, "toolConfig.functionCallingConfig.mode"),
        ({"tools": [{"computerUse": {}}]}, r"tools\[0\].computerUse"),
        ({"generationConfig": {"responseMimeType": "application/json"}}, "generationConfig.responseMimeType"),
        ({"generationConfig": {"responseSchema": {"type": "OBJECT"}}}, "generationConfig.responseSchema"),
        ({"generationConfig": {"responseModalities": ["AUDIO"]}}, "generationConfig.responseModalities"),
        ({"generationConfig": {"maxOutputTokens": 0}}, "generationConfig.maxOutputTokens"),
        ({"generationConfig": {"candidateCount": 9}}, "generationConfig.candidateCount"),
        ({"generationConfig": {"temperature": 3}}, "generationConfig.temperature"),
        ({"cachedContent": "cachedContents/x"}, "cachedContent"),
        ({"generationConfig": {"stopSequences": ["END"]}}, "generationConfig.stopSequences"),
        ({"toolConfig": {"functionCallingConfig": {"mode": "AUTO", "allowedFunctionNames": ["f"]}}}, r"\.allowedFunctionNames"),
    ],
)
def test_refusals_name_the_place(change: dict[str, Any], place: str) -> None:
    with pytest.raises(RequestError, match=place):
        parse(LIKE_CURL, **change)


def test_an_empty_text_asks_for_nothing() -> None:
    """It is how Google's own formats spell what is not given."""
    assert (
        parse(LIKE_CURL, generationConfig={"responseMimeType": ""}).requested_params
        == parse(LIKE_CURL, generationConfig={}).requested_params
    )


def test_a_stream_that_is_no_event_stream_is_refused() -> None:
    """Without alt=sse it would be a JSON list that grows; no harness asks for it."""
    path = "/v1beta/models/policy:streamGenerateContent"
    assert not GOOGLE.hints(path, b"{}").stream
    with pytest.raises(RequestError, match="alt"):
        parse(LIKE_CURL, path)


@pytest.mark.parametrize(
    ("sent", "meant"),
    [
        ({"contents": {"parts": [{"text": "x"}]}}, {"contents": [{"parts": [{"text": "x"}]}]}),
        ({"contents": [{"parts": {"text": "x"}}]}, {"contents": [{"parts": [{"text": "x"}]}]}),
        (
            {"contents": [{"role": "model", "parts": {"functionCall": {"name": "f"}}}]},
            {"contents": [{"role": "model", "parts": [{"functionCall": {"name": "f"}}]}]},
        ),
        ({"systemInstruction": {"parts": {"text": "s"}}}, {"systemInstruction": {"parts": [{"text": "s"}]}}),
        ({"system_instruction": {"text": "s"}}, {"systemInstruction": {"parts": [{"text": "s"}]}}),
        ({"tools": {"functionDeclarations": [{"name": "f"}]}}, {"tools": [{"functionDeclarations": [{"name": "f"}]}]}),
        ({"tools": [{"functionDeclarations": {"name": "f"}}]}, {"tools": [{"functionDeclarations": [{"name": "f"}]}]}),
        (
            {"generationConfig": {"maxOutputTokens": "10", "temperature": "1", "topP": "0.5", "topK": "4", "candidateCount": "2"}},
            {"generationConfig": {"maxOutputTokens": 10, "temperature": 1, "topP": 0.5, "topK": 4, "candidateCount": 2}},
        ),
        ({"generationConfig": {"maxOutputTokens": "1e3"}}, {"generationConfig": {"maxOutputTokens": 1000.0}}),
    ],
)
def test_one_for_a_list_and_a_number_as_text_mean_what_the_usual_form_means(sent: dict[str, Any], meant: dict[str, Any]) -> None:
    """The API takes both, so a harness that writes them is not told that it sends nonsense."""
    usual = {"contents": [{"parts": [{"text": "hi"}]}]}

    read = [structs.asdict(GOOGLE.parse(WHOLE, json.dumps(usual | one).encode())) for one in (sent, meant)]
    assert read[0] == read[1]


@pytest.mark.parametrize("text", ["", "ten", "true", "[1]", "NaN", "0", "9" * 200, "\ud800"])
def test_texts_without_a_number_are_refused_as_numbers(text: str) -> None:
    """So that nothing else is let in by the way."""
    body = {"contents": [{"parts": [{"text": "x"}]}], "generationConfig": {"maxOutputTokens": text}}
    with pytest.raises(RequestError, match="maxOutputTokens"):
        GOOGLE.parse(WHOLE, json.dumps(body).encode())


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"x"', b"\xff", b'{"contents":' + b"[" * 100_000])
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError):
        GOOGLE.parse(WHOLE, body)


def test_model_without_a_name_is_refused_in_the_dialect() -> None:
    """Not by a 404 that is in no dialect's shape."""
    path = "/v1beta/models/:generateContent"
    assert dialect_for(path) is not None
    with pytest.raises(RequestError, match="model: must not be empty"):
        parse(LIKE_CURL, path)


@pytest.mark.parametrize(
    ("path", "model", "stream"),
    [
        ("/v1beta/models/a%3Fb%0Ac:generateContent", "a?b\nc", False),
        ("/v1beta/models/policy:streamGenerateContent?alt=sse", "policy", True),
        ("/models/policy:streamGenerateContent?key=k&alt=sse", "policy", True),
        ("/v1/models/gemini-2.5-pro:generateContent", "gemini-2.5-pro", False),
        ("/v1beta/models/Qwen/Qwen3-8B%3AgenerateContent", "Qwen/Qwen3-8B", False),
        ("/models/policy:countTokens", "policy", False),
    ],
)
def test_paths_with_and_without_version_say_model_and_stream(path: str, model: str, stream: bool) -> None:  # noqa: FBT001 - expected
    dialect = dialect_for(path)
    assert dialect is not None
    assert dialect.name == "google_generate"
    assert GOOGLE.hints(path, b"\xff") == RequestHints(stream=stream, model=model)
    assert parse(LIKE_CURL, path).model == model


@pytest.mark.parametrize(
    "path", ["/v1beta/models", "/v1beta/models/policy", "/v1beta/models/policy:embedContent", "/v2/models/m:generateContent"]
)
def test_other_paths_are_not(path: str) -> None:
    assert dialect_for(path) is None
    assert GOOGLE.hints(path, b"") == RequestHints()


@given(damaged(BODIES), st.sampled_from([STREAM, WHOLE, COUNT]))
def test_no_change_of_a_real_body_crashes(body: bytes, path: str) -> None:
    """Any value anywhere, or anything missing."""
    take(GOOGLE, path, body)


@given(scratched(BODIES))
def test_no_damaged_byte_crashes(body: bytes) -> None:
    take(GOOGLE, WHOLE, body)
