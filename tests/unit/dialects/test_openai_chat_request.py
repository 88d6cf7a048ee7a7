"""Requests of real harnesses become canonical; everything else is refused with the place named."""

import copy
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from tests.unit.dialects.arbitrary import damaged, scratched, take

from evener.dialects.canonical import CanonicalRequest, RequestError
from evener.dialects.openai_chat import OpenAIChat
from evener.dialects.registry import dialect_for

PIXEL = "iVBORw0KGgo="
LIKE_PI: dict[str, Any] = {
    "model": "policy",
    "messages": [
        {"role": "developer", "content": "You are an expert coding assistant."},
        {"role": "user", "content": [{"type": "text", "text": "Create hello.txt.", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "Hm.",
            "tool_calls": [{"id": "call1", "type": "function", "function": {"name": "bash", "arguments": '{"command":"echo hi","n":1.0}'}}],
        },
        {"role": "tool", "content": "(no output)", "tool_call_id": "call1"},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}", "detail": "auto"}}]},
    ],
    "stream": True,
    "stream_options": {"include_usage": True},
    "store": False,
    "max_completion_tokens": 4096,
    "tools": [{"type": "function", "function": {"name": "bash", "description": "Run.", "parameters": {"type": "object"}, "strict": False}}],
}
LIKE_QWEN: dict[str, Any] = {
    "model": "qwen",
    "messages": [
        {"role": "system", "content": "You are Qwen Code."},
        {"role": "user", "content": [{"type": "text", "text": "Context."}, {"type": "text", "text": "Task."}]},
        {
            "role": "assistant",
            "content": "On it.",
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{bro"}}],
        },
        {"role": "tool", "content": [{"type": "text", "text": "Error"}], "tool_call_id": "a", "name": "f"},
    ],
    "max_tokens": 32000,
    "temperature": 1,
    "stream": True,
}
LIKE_OPENHANDS: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "hi"}],
    "n": 2,
    "stop": [],
    "tool_choice": "auto",
    "prompt_cache_key": "x",
    "reasoning_effort": "high",
    "temperature": 0.2,
    "top_k": -1,
    "seed": 7,
    "logprobs": False,
    "response_format": {"type": "text"},
    "logit_bias": {},
    "functions": None,
}
BODIES = [LIKE_PI, LIKE_QWEN, LIKE_OPENHANDS]
CHAT = OpenAIChat()
PATH = "/v1/chat/completions"


def parse(body: Any) -> CanonicalRequest:
    return CHAT.parse(PATH, json.dumps(body).encode())


def test_pi_is_understood() -> None:
    """Roles, parts, parsed arguments, images by digest; cache markers and what a model cannot see are gone."""
    request = parse(LIKE_PI)
    digest = hashlib.sha256(b"\x89PNG\r\n\x1a\n").hexdigest()

    assert request.messages == (
        {"role": "developer", "content": "You are an expert coding assistant."},
        {"role": "user", "content": "Create hello.txt."},
        {
            "role": "assistant",
            "content": "",
            "reasoning": "Hm.",
            "tool_calls": [{"id": "call1", "name": "bash", "arguments": {"command": "echo hi", "n": 1.0}}],
        },
        {"role": "tool", "content": "(no output)", "tool_call_id": "call1"},
        {"role": "user", "content": [{"type": "image", "digest": digest, "media_type": "image/png"}]},
    )
    assert request.tools == ({"name": "bash", "description": "Run.", "parameters": {"type": "object"}},)
    assert [(image.digest, image.data) for image in request.images] == [(digest, b"\x89PNG\r\n\x1a\n")]
    assert (request.model, request.stream, request.include_usage, request.max_tokens) == ("policy", True, True, 4096)
    assert request.requested_params == {"store": False, "max_completion_tokens": 4096}


def test_qwen_is_understood() -> None:
    """Lists of text parts are one text, arguments that are no JSON stay as they came."""
    request = parse(LIKE_QWEN)
    assert [message["content"] for message in request.messages] == ["You are Qwen Code.", "Context.\nTask.", "On it.", "Error"]
    assert request.messages[2]["tool_calls"][0]["arguments"] == "{bro"
    assert request.messages[3] == {"role": "tool", "content": "Error", "tool_call_id": "a", "name": "f"}
    assert (request.max_tokens, request.requested_params) == (32000, {"temperature": 1, "max_tokens": 32000})


def test_wishes_are_recorded_not_followed() -> None:
    request = parse(LIKE_OPENHANDS)
    assert request.requested_params == {"prompt_cache_key": "x", "reasoning_effort": "high", "temperature": 0.2, "top_k": -1, "seed": 7}
    assert (request.n, request.stream, request.include_usage) == (2, False, False)


@pytest.mark.parametrize("field", ["use_beam_search", "ignore_eos", "include_stop_str_in_output", "logprobs", "echo"])
@pytest.mark.parametrize("value", [None, False])
def test_null_and_false_ask_for_nothing(field: str, value: Any) -> None:
    assert parse(LIKE_QWEN | {field: value}).requested_params == parse(LIKE_QWEN).requested_params


@pytest.mark.parametrize(("field", "values"), [("best_of", [None, "", 1]), ("add_generation_prompt", [None, "", True])])
def test_where_one_value_is_served_an_empty_text_asks_for_nothing(field: str, values: list[Any]) -> None:
    assert [parse(LIKE_QWEN | {field: value}).requested_params for value in values] == [parse(LIKE_QWEN).requested_params] * 3


def test_what_else_stream_options_ask_for_is_recorded() -> None:
    """False too: a client says with it that it wants none of it."""
    options = {"include_usage": True, "include_obfuscation": False, "continuous_usage_stats": True, "unheard_of": None}
    request = parse(LIKE_QWEN | {"stream_options": options})
    recorded = {"include_obfuscation": False, "continuous_usage_stats": True}
    assert (request.include_usage, request.requested_params["stream_options"]) == (True, recorded)
    assert "stream_options" not in parse(LIKE_PI).requested_params


def test_hosted_tools_are_excluded_and_recorded() -> None:
    tools = [{"type": "web_search"}, {"type": "function", "function": {"name": "f"}}]
    request = parse(LIKE_QWEN | {"tools": tools, "web_search_options": {}})
    assert request.tools == ({"name": "f"},)
    assert request.requested_params["removed_tools"] == ["web_search", "web_search_options"]


def test_what_is_dropped_from_tools_and_messages_is_recorded() -> None:
    """Each name once; what asks for nothing is not recorded, and cache markers ask nothing of a model."""
    function = {"name": "f", "strict": True, "cache_control": {"type": "ephemeral"}}
    tools = [{"type": "function", "function": function}, {"type": "function", "function": {"name": "g", "strict": False}}]
    said = [{"role": "user", "content": "hi", "name": name} for name in ("bob", "ann", "bob")]
    request = parse({"model": "m", "messages": [*said, LIKE_QWEN["messages"][3]], "tools": tools})
    assert request.requested_params == {"tools": {"f": {"strict": True}}, "names": ["bob", "ann"]}
    assert [sorted(message) for message in request.messages[:3]] == [["content", "role"]] * 3


def test_choosing_no_tool_shows_none() -> None:
    request = parse(LIKE_PI | {"tool_choice": "none"})
    assert request.tools == ()
    assert request.requested_params["tool_choice"] == "none"


def test_half_a_surrogate_pair_becomes_text() -> None:
    """JavaScript harnesses cut long outputs inside an emoji."""
    body = b'{"model": "m", "messages": [{"role": "user", "content": "cut \\ud83d and \\ud83d\\ude00"}]}'
    assert CHAT.parse("", body).messages[0]["content"] == "cut \ufffd and 😀"


def test_same_image_twice_is_carried_once() -> None:
    message = LIKE_PI["messages"][4]
    [image] = parse(LIKE_PI | {"messages": [LIKE_PI["messages"][0], message, message]}).images
    assert image.path == "messages[1].content[0].image_url.url"


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return LIKE_PI with the field at `path` (dots and numbers) replaced."""
    body = copy.deepcopy(LIKE_PI)
    *parents, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    at: Any = body
    for step in parents:
        at = at[step]
    at[last] = value
    return body


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("model", None, "model"),
        ("model", "", "model"),
        ("messages", [], "messages"),
        ("messages", "hi", "messages"),
        ("messages.1", "hi", "messages[1]"),
        ("messages.1.role", "robot", "messages[1].role"),
        ("messages.1.content", 7, "messages[1].content"),
        ("messages.1.content.0", {"type": "input_audio"}, "messages[1].content[0].type"),
        ("messages.1.content.0", {"type": "text"}, "messages[1].content[0].text"),
        ("messages.2.content", [{"type": "image_url"}], "messages[2].content[0].type"),
        ("messages.2.tool_calls.0.id", None, "messages[2].tool_calls[0].id"),
        ("messages.2.tool_calls.0.type", "custom", "messages[2].tool_calls[0].type"),
        ("messages.2.tool_calls.0.function", None, "messages[2].tool_calls[0].function"),
        ("messages.2.tool_calls.0.function.arguments", None, "messages[2].tool_calls[0].function.arguments"),
        ("messages.2.function_call", {"name": "f"}, "messages[2].function_call"),
        ("messages.3.tool_call_id", None, "messages[3].tool_call_id"),
        ("messages.4.content.0.image_url.url", "https://example.org/a.png", "messages[4].content[0].image_url.url"),
        ("messages.4.content.0.image_url.url", "data:image/png;base64,!", "messages[4].content[0].image_url.url"),
        ("tools.0.type", "custom", "tools[0].type"),
        ("tools.0.function.name", 1, "tools[0].function.name"),
        ("tools.0.function.parameters", "x", "tools[0].function.parameters"),
        ("tool_choice", "required", "tool_choice"),
        ("tool_choice", {"type": "function", "function": {"name": "bash"}}, "tool_choice"),
        ("response_format", {"type": "json_schema", "json_schema": {}}, "response_format"),
        ("modalities", ["text", "audio"], "modalities"),
        ("n", 0, "n"),
        ("n", True, "n"),
        ("max_completion_tokens", 1.5, "max_completion_tokens"),
        ("temperature", "a", "temperature"),
        ("temperature", -1, "temperature"),
        ("temperature", True, "temperature"),
        ("top_p", 1.5, "top_p"),
        ("frequency_penalty", -3, "frequency_penalty"),
        ("top_k", 0.5, "top_k"),
        ("seed", "7", "seed"),
        ("logprobs", True, "logprobs"),
        ("top_logprobs", 5, "top_logprobs"),
        ("stop", ["END"], "stop"),
        ("stop", "END", "stop"),
        ("stop_token_ids", [1], "stop_token_ids"),
        ("bad_words", ["x"], "bad_words"),
        ("allowed_token_ids", [1], "allowed_token_ids"),
        ("logits_processors", ["x"], "logits_processors"),
        ("truncate_prompt_tokens", 5, "truncate_prompt_tokens"),
        ("echo", True, "echo"),
        ("use_beam_search", True, "use_beam_search"),
        ("best_of", 4, "best_of"),
        ("best_of", 0, "best_of"),
        ("ignore_eos", True, "ignore_eos"),
        ("include_stop_str_in_output", True, "include_stop_str_in_output"),
        ("add_generation_prompt", False, "add_generation_prompt"),
        ("chat_template_kwargs", {"enable_thinking": False}, "chat_template_kwargs"),
        ("messages.2.prefix", True, "messages[2].prefix"),
        ("messages.1.name", 7, "messages[1].name"),
        ("stream", "yes", "stream"),
        ("stream_options", {"include_usage": 1}, "stream_options.include_usage"),
        ("logit_bias", {"1": 5}, "logit_bias"),
        ("functions", [{"name": "f"}], "functions"),
    ],
)
def test_refusal_names_the_field(path: str, value: Any, field: str) -> None:
    """A new user sees at once what to correct."""
    with pytest.raises(RequestError) as refused:
        parse(changed(path, value))

    assert refused.value.field == field
    assert refused.value.message.startswith(f"{field}: ")
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe\xfd",
        b'{"model": NaN}',
        b'{"messages": [{"role": "user", "content": "a"}], "model": 1e999}',
        b"[" * 100_000,
        b'{"messages": [{"role": "user", "content": "a"}], "model": ' + b'{"a":' * 500 + b"1" + b"}" * 501,
    ],
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError, match=r"body|model"):
        CHAT.parse(PATH, body)


@given(damaged(BODIES))
def test_no_change_of_a_real_body_crashes(body: bytes) -> None:
    """Any value anywhere, or anything missing."""
    take(CHAT, PATH, body)


@given(scratched(BODIES))
def test_no_damaged_byte_crashes(body: bytes) -> None:
    take(CHAT, PATH, body)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions", "v1/chat/completions?beta=true", "/chat/completions/?a=b&c"])
def test_paths_with_and_without_version_and_query_are_served(path: str) -> None:
    dialect = dialect_for(path)
    assert dialect is not None
    assert dialect.name == "openai_chat"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models", "/v1/v1/chat/completions", ""])
def test_other_paths_are_not(path: str) -> None:
    assert dialect_for(path) is None
