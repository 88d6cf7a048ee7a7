"""Requests of Claude Code and others become canonical; everything else is refused with the place named."""

import copy
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.dialects.arbitrary import damaged, scratched, take

from evener.dialects.anthropic_messages import AnthropicMessages
from evener.dialects.canonical import CanonicalRequest, RequestError, RequestHints
from evener.dialects.registry import dialect_for

MESSAGES = AnthropicMessages()
PATH = "/v1/messages?beta=true"
PIXEL = "iVBORw0KGgo="
BASH: dict[str, Any] = {"name": "Bash", "description": "Run.", "input_schema": {"type": "object"}}
LIKE_CLAUDE: dict[str, Any] = {
    "model": "policy",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>Date.</system-reminder>"},
                {"type": "text", "text": "Create hello.txt.", "cache_control": {"type": "ephemeral"}},
            ],
        },
        {"role": "system", "content": "You are on Debian."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.\n", "signature": "c1x0"},
                {"type": "text", "text": "\n On it é.\u2028"},
                {"type": "tool_use", "id": "callc1x0x0", "name": "Bash", "input": {"command": "echo", "n": 1}},
                {
                    "type": "tool_use",
                    "id": "callc1x0x1",
                    "name": "Bash",
                    "input": {"__unparsedToolInput": {"raw": "{bro\U0001f600", "len": 6}},
                },
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "callc1x0x0", "content": "done"},
                {"type": "text", "text": "<system-reminder>Tasks.</system-reminder>"},
                {
                    "type": "tool_result",
                    "tool_use_id": "callc1x0x1",
                    "is_error": True,
                    "content": [{"type": "text", "text": "<tool_use_error>bad</tool_use_error>"}],
                    "cache_control": {"type": "ephemeral"},
                },
            ],
        },
    ],
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.329.a99; cc_entrypoint=sdk-cli;"},
        {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be brief."},
    ],
    "tools": [BASH, {"name": "DeferredToolPlaceholder", "description": "-", "input_schema": {"type": "object"}, "defer_loading": True}],
    "metadata": {"user_id": '{"session_id":"x"}'},
    "max_tokens": 32000,
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "output_config": {"effort": "high"},
    "stream": True,
}
LIKE_CLAUDE_LEAN: dict[str, Any] = {
    "model": "policy",
    "messages": [{"role": "user", "content": "Create hello.txt."}],
    "system": [{"type": "text", "text": "You are Claude Code."}],
    "tools": [BASH, {"name": "Read", "description": "Read.", "input_schema": {"type": "object"}}],
    "max_tokens": 32000,
    "temperature": 1,
    "stream": False,
}
LIKE_PI: dict[str, Any] = {
    "model": "policy",
    "messages": [
        {"role": "user", "content": "Look."},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "tool_use", "id": "a", "name": "read", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "a",
                    "is_error": False,
                    "content": [
                        {"type": "text", "text": "An image."},
                        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
                    ],
                }
            ],
        },
    ],
    "system": "You are an expert.",
    "max_tokens": 4096,
    "tool_choice": {"type": "auto"},
    "stream": True,
}
BODIES = [LIKE_CLAUDE, LIKE_CLAUDE_LEAN, LIKE_PI]


def parse(body: dict[str, Any], path: str = PATH, **more: Any) -> CanonicalRequest:
    return MESSAGES.parse(path, json.dumps(body | more).encode())


def said(*content: Any) -> tuple[Any, ...]:
    """Return the messages of a request with this user's content."""
    return parse(LIKE_CLAUDE_LEAN, messages=[{"role": "user", "content": list(content)}]).messages[1:]


def test_claude_codes_request_becomes_canonical() -> None:
    """Reasoning with our key, several results before the text beside them, a system message in its place."""
    request = parse(LIKE_CLAUDE)
    assert list(request.messages) == [
        {
            "role": "system",
            "content": "x-anthropic-billing-header: cc_version=2.1.329.a99; cc_entrypoint=sdk-cli;\nYou are Claude Code.\nBe brief.",
        },
        {"role": "user", "content": "<system-reminder>Date.</system-reminder>\nCreate hello.txt."},
        {"role": "system", "content": "You are on Debian."},
        {
            "role": "assistant",
            "content": "\n On it é.\u2028",
            "reasoning": "Hm.\n",
            "tool_calls": [
                {"id": "callc1x0x0", "name": "Bash", "arguments": {"command": "echo", "n": 1}},
                {"id": "callc1x0x1", "name": "Bash", "arguments": "{bro\U0001f600"},
            ],
            "key": "c1x0",
        },
        {"role": "tool", "content": "done", "tool_call_id": "callc1x0x0"},
        {"role": "tool", "content": "Error: <tool_use_error>bad</tool_use_error>", "tool_call_id": "callc1x0x1"},
        {"role": "user", "content": "<system-reminder>Tasks.</system-reminder>"},
    ]
    assert request.tools == ({"name": "Bash", "description": "Run.", "parameters": {"type": "object"}},)
    assert (request.model, request.stream, request.max_tokens, request.n, request.count_only) == ("policy", True, 32000, 1, False)
    assert request.requested_params == {
        "thinking": {"type": "adaptive"},
        "context_management": LIKE_CLAUDE["context_management"],
        "metadata": LIKE_CLAUDE["metadata"],
        "output_config": {"effort": "high"},
        "deferred_tools": ["DeferredToolPlaceholder"],
        "max_tokens": 32000,
    }


def test_pis_request_becomes_canonical() -> None:
    """An empty signature is no key; an image within a result is named by its digest."""
    request = parse(LIKE_PI)
    [image] = request.images
    assert image.digest == hashlib.sha256(image.data).hexdigest()
    assert request.messages[0] == {"role": "system", "content": "You are an expert."}
    assert "key" not in request.messages[2]
    assert request.messages[3]["content"] == [
        {"type": "text", "text": "An image."},
        {"type": "image", "digest": image.digest, "media_type": "image/png"},
    ]
    assert image.path == "messages[2].content[0].content[1].source.data"
    assert "tool_choice" not in request.requested_params


@pytest.mark.parametrize(
    ("thinking", "withheld"),
    [
        (None, True),
        ({"type": "disabled"}, True),
        ({"type": "enabled", "budget_tokens": 1024}, False),
        ({"type": "adaptive"}, False),
        ({"type": "of tomorrow"}, False),
    ],
)
def test_thinking_is_shown_where_it_is_asked_for(thinking: Any, *, withheld: bool) -> None:
    """A client that did not ask takes the first block for the text."""
    assert parse(LIKE_CLAUDE, thinking=thinking).reasoning_withheld is withheld


def test_a_history_is_the_same_after_the_cache_marker_moved() -> None:
    """Claude flips a message between a string and one text block; neither is another message."""
    marked = [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}]
    assert said(*marked) == parse(LIKE_CLAUDE_LEAN, messages=[{"role": "user", "content": "hi"}]).messages[1:]

    result = {"type": "tool_result", "tool_use_id": "a"}
    as_string, as_blocks = said({**result, "content": "out"}), said({**result, "content": [{"type": "text", "text": "out"}]})
    assert as_string == as_blocks


def test_a_result_without_content_is_empty_and_an_error_with_an_image_is_marked() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}
    result = {"type": "tool_result", "tool_use_id": "a"}
    assert said(result) == ({"role": "tool", "content": "", "tool_call_id": "a"},)
    [marked] = said({**result, "is_error": True, "content": [image]})
    assert marked["content"][0] == {"type": "text", "text": "Error:"}


def test_deferred_tools_are_shown_once_a_result_refers_to_them() -> None:
    """The model is told of a tool when the search for tools has found it."""
    web = {"name": "WebFetch", "input_schema": {"type": "object"}, "defer_loading": True}
    found = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "tool_reference", "tool_name": "WebFetch"}]}
    history = [*LIKE_CLAUDE["messages"][:3], {"role": "user", "content": [found]}]

    assert [tool["name"] for tool in parse(LIKE_CLAUDE, tools=[BASH, web]).tools] == ["Bash"]
    request = parse(LIKE_CLAUDE, tools=[BASH, web], messages=history)
    assert [tool["name"] for tool in request.tools] == ["Bash", "WebFetch"]
    assert request.messages[-1]["content"] == "Tool found: WebFetch"
    assert "deferred_tools" not in request.requested_params


def test_hosted_tools_are_removed_and_recorded() -> None:
    """They would leave the sandbox. Where the search for tools was hosted, deferred ones are shown: nobody else could find them."""
    hosted = [{"type": "web_search_20250305", "name": "web_search"}, {"type": "tool_search_tool_regex_20251119", "name": "search"}]
    request = parse(LIKE_CLAUDE_LEAN, tools=[{**BASH, "defer_loading": True}, *hosted], mcp_servers=[{"type": "url", "url": "https://x"}])
    assert [tool["name"] for tool in request.tools] == ["Bash"]
    assert request.requested_params["removed_tools"] == ["web_search_20250305", "tool_search_tool_regex_20251119", "mcp_servers"]


def test_what_is_dropped_from_tools_is_recorded() -> None:
    marked = {**BASH, "strict": True, "input_examples": [{"command": "ls"}], "cache_control": {"type": "ephemeral"}}
    request = parse(LIKE_CLAUDE_LEAN, tools=[{**marked, "allowed_callers": ["direct"]}])
    assert request.tools == ({"name": "Bash", "description": "Run.", "parameters": {"type": "object"}},)
    assert request.requested_params["tools"] == {"Bash": {"strict": True, "input_examples": [{"command": "ls"}]}}


def test_choosing_no_tools_hides_them() -> None:
    request = parse(LIKE_CLAUDE_LEAN, tool_choice={"type": "none"})
    assert request.tools == ()
    assert request.requested_params["tool_choice"] == {"type": "none"}


def test_counting_asks_for_no_answer() -> None:
    """It has no limit and no stream, and may end with an answer."""
    body = {name: LIKE_CLAUDE[name] for name in ("model", "system", "tools")} | {"messages": LIKE_CLAUDE["messages"][:3]}
    request = parse(body, "/v1/messages/count_tokens?beta=true", stop_sequences=["END"])
    assert (request.count_only, request.stream, request.max_tokens) == (True, False, None)
    assert MESSAGES.counted(12) == b'{"input_tokens":12}'


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}, "messages"),
        ({"messages": [{"role": "tool", "content": "a"}]}, r"messages\[0\].role"),
        ({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}, r"messages\[0\].content\[0\].type"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "https://x"}}]}]}, r"\.source.type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]}, r"messages\[0\].content\[0\].tool_use_id"),
        ({"tool_choice": {"type": "any"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool", "name": "Bash"}}, "tool_choice.type"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, r"tools\[0\].type"),
        ({"tools": [{"input_schema": {}}]}, r"tools\[0\].name"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": 2}, "temperature"),
        ({"stop_sequences": ["END"]}, "stop_sequences"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, r"context_management.edits\[0\].type"),
        ({"tools": [{**BASH, "allowed_callers": ["code_execution_20250825"]}]}, r"tools\[0\].allowed_callers"),
        ({"model": ""}, "model"),
        ({"stream": "yes"}, "stream"),
        ({"system": 1}, "system"),
    ],
)
def test_refusals_name_the_place(change: dict[str, Any], place: str) -> None:
    with pytest.raises(RequestError, match=place):
        parse(LIKE_CLAUDE_LEAN, **change)


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"x"', b"\xff", b'{"messages":' + b"[" * 100_000])
def test_what_is_no_request_is_refused(body: bytes) -> None:
    assert MESSAGES.hints(PATH, body) == RequestHints()
    with pytest.raises(RequestError):
        MESSAGES.parse(PATH, body)


def test_half_a_character_in_a_tools_output_is_replaced() -> None:
    """Harnesses cut long outputs in the middle of a surrogate pair."""
    body = copy.deepcopy(LIKE_CLAUDE_LEAN)
    body["messages"][0]["content"] = "cut \ud83d"
    assert parse(body).messages[1]["content"] == "cut \ufffd"


@pytest.mark.parametrize(
    "path", ["/v1/messages", "/messages", "/v1/messages?beta=true", "/v1/messages/count_tokens", "messages/count_tokens?a"]
)
def test_paths_with_and_without_version_and_query_are_served(path: str) -> None:
    dialect = dialect_for(path)
    assert dialect is not None
    assert dialect.name == "anthropic_messages"


@pytest.mark.parametrize("path", ["/v1/messages/batches", "/v1/complete", "/v1/v1/messages", "/v1/messages/count_tokens/x"])
def test_other_paths_are_not(path: str) -> None:
    assert dialect_for(path) is None


def test_relay_reads_stream_and_model() -> None:
    assert MESSAGES.hints(PATH, json.dumps(LIKE_CLAUDE).encode()) == RequestHints(stream=True, model="policy")
    assert MESSAGES.hints("/v1/messages/count_tokens", json.dumps(LIKE_CLAUDE).encode()) == RequestHints(model="policy")


@given(damaged(BODIES), st.sampled_from([PATH, "/messages/count_tokens"]))
def test_no_change_of_a_real_body_crashes(body: bytes, path: str) -> None:
    """Any value anywhere, or anything missing."""
    take(MESSAGES, path, body)


@given(scratched(BODIES))
def test_no_damaged_byte_crashes(body: bytes) -> None:
    take(MESSAGES, PATH, body)
