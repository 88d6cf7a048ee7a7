"""Requests of real harnesses become canonical; everything else is refused with the place named."""

import copy
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.dialects.arbitrary import damaged, scratched, take

from evener.dialects.canonical import CanonicalRequest, RequestError, ToolForm
from evener.dialects.openai_responses import OpenAIResponses
from evener.tokens.digests import message_digest

PIXEL = "data:image/png;base64,iVBORw0KGgo="
PIXEL_PART = {"type": "image", "digest": hashlib.sha256(b"\x89PNG\r\n\x1a\n").hexdigest(), "media_type": "image/png"}
OBJECT = {"type": "object", "properties": {}}


def said(role: str, text: str) -> dict[str, Any]:
    """A message as Codex spells it."""
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "id": f"msg_{role}", "role": role, "content": [{"type": kind, "text": text}]}


COMMON: dict[str, Any] = {
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199",
    "client_metadata": {"session_id": "x"},
}
SPAWNING = {
    "type": "namespace",
    "name": "multi_agent_v1",
    "description": "Sub-agents.",
    "tools": [
        {"type": "function", "name": "spawn_agent", "description": "Spawn one.", "strict": False, "parameters": OBJECT},
        {"type": "function", "name": "wait_agent", "parameters": OBJECT},
    ],
}
EXEC = {"type": "function", "name": "exec_command", "description": "Runs a command.", "strict": False, "parameters": OBJECT}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edit files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
SEARCH = {"type": "tool_search", "execution": "client", "description": "Find tools.", "parameters": OBJECT}
LIKE_CODEX: dict[str, Any] = COMMON | {
    "model": "policy",
    "input": [
        said("developer", "You are Codex."),
        said("developer", "<skills/>"),
        said("user", "<environment_context/>"),
        said("user", "Create hello.txt."),
        {
            "type": "reasoning",
            "id": "rs_k1x0_0",
            "summary": [{"type": "summary_text", "text": "Hm."}],
            "content": None,
            "encrypted_content": "k1x0",
        },
        {**said("assistant", "On it."), "id": "msg_k1x0_1"},
        {"type": "function_call", "id": "fc_k1x0_2", "call_id": "c1", "name": "exec_command", "arguments": '{"cmd": "ls", "n": 1.0}'},
        {
            "type": "function_call",
            "id": "fc_k1x0_3",
            "call_id": "c2",
            "name": "spawn_agent",
            "namespace": "multi_agent_v1",
            "arguments": "{bro",
        },
        {"type": "function_call_output", "call_id": "c1", "output": "a.txt"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": PIXEL, "detail": "high"}],
        },
    ],
    "tools": [EXEC, SPAWNING, {"type": "web_search"}],
}
LIKE_GPT_5_5: dict[str, Any] = COMMON | {
    "model": "gpt-5.5",
    "text": {"verbosity": "low"},
    "input": [
        said("user", "Go."),
        {
            "type": "custom_tool_call",
            "id": "ctc_k1x0_0",
            "call_id": "c1",
            "name": "apply_patch",
            "input": "*** Begin Patch",
            "status": "completed",
        },
        {"type": "custom_tool_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "Done"}]},
        {"type": "tool_search_call", "id": "tsc_k2x0_0", "call_id": "c2", "execution": "client", "arguments": {"query": "agents"}},
        {"type": "tool_search_output", "call_id": "c2", "status": "completed", "execution": "client", "tools": [SPAWNING]},
        {
            "type": "function_call",
            "id": "fc_k3x0_0",
            "call_id": "c3",
            "namespace": "multi_agent_v1",
            "name": "wait_agent",
            "arguments": "{}",
        },
        {"type": "function_call_output", "call_id": "c3", "output": "ok"},
    ],
    "tools": [EXEC, PATCH, SEARCH],
}
LIKE_GPT_6: dict[str, Any] = COMMON | {
    "model": "gpt-6",
    "reasoning": {"effort": "medium", "context": "all_turns"},
    "parallel_tool_calls": False,
    "input": [
        {
            "type": "additional_tools",
            "role": "developer",
            "tools": [{"type": "namespace", "name": "functions", "description": "", "tools": [{"type": "custom", "name": "exec"}]}],
        },
        said("developer", "You are Codex."),
        said("user", "Go."),
        {"type": "custom_tool_call", "id": "ctc_k1x0_0", "call_id": "c1", "namespace": "functions", "name": "exec", "input": "text('hi')"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "hi"},
        {"type": "configuration_update", "reasoning": {"effort": "low"}},
    ],
}
LIKE_PI: dict[str, Any] = {
    "model": "policy",
    "input": [
        {"role": "developer", "content": "You are an expert coding assistant."},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "Look."}, {"type": "input_image", "detail": "auto", "image_url": PIXEL}],
        },
        {"type": "reasoning", "id": "rs_k1x0_0", "summary": [], "encrypted_content": "k1x0"},
        {"type": "function_call", "id": "fc_k1x0_1", "call_id": "c1", "name": "bash", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "(no output)"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Done.", "annotations": []}],
            "status": "completed",
            "id": "msg_k2x0_0",
        },
    ],
    "stream": True,
    "prompt_cache_key": "x",
    "store": False,
    "max_output_tokens": 4096,
    "tools": [{"type": "function", "name": "bash", "description": "Run.", "parameters": OBJECT, "strict": False}],
}
LIKE_SDK: dict[str, Any] = {
    "model": "m",
    "instructions": "Be brief.",
    "input": "hi",
    "temperature": 0.5,
    "metadata": {"a": "b"},
    "tools": None,
}
BODIES = [LIKE_CODEX, LIKE_GPT_5_5, LIKE_GPT_6, LIKE_PI, LIKE_SDK]
RESPONSES = OpenAIResponses()
PATH = "/v1/responses"
COUNTING_PATH = "/v1/responses/input_tokens"


def parse(body: Any, path: str = PATH) -> CanonicalRequest:
    return RESPONSES.parse(path, json.dumps(body).encode())


def test_codex_is_understood() -> None:
    """The items of one turn are one message with our key; tools in a namespace are functions; hosted ones are left out."""
    request = parse(LIKE_CODEX)

    assert request.messages == (
        {"role": "developer", "content": "You are Codex."},
        {"role": "developer", "content": "<skills/>"},
        {"role": "user", "content": "<environment_context/>"},
        {"role": "user", "content": "Create hello.txt."},
        {
            "role": "assistant",
            "content": "On it.",
            "reasoning": "Hm.",
            "tool_calls": [
                {"id": "c1", "name": "exec_command", "arguments": {"cmd": "ls", "n": 1.0}},
                {"id": "c2", "name": "multi_agent_v1__spawn_agent", "arguments": "{bro"},
            ],
            "key": "k1x0",
        },
        {"role": "tool", "content": "a.txt", "tool_call_id": "c1"},
        {"role": "tool", "content": [{"type": "text", "text": "see"}, PIXEL_PART], "tool_call_id": "c2"},
    )
    assert request.tools == (
        {"name": "exec_command", "description": "Runs a command.", "parameters": OBJECT},
        {"name": "multi_agent_v1__spawn_agent", "description": "Sub-agents.\n\nSpawn one.", "parameters": OBJECT},
        {"name": "multi_agent_v1__wait_agent", "parameters": OBJECT},
    )
    assert request.forms == {
        "multi_agent_v1__spawn_agent": ToolForm(name="spawn_agent", namespace="multi_agent_v1"),
        "multi_agent_v1__wait_agent": ToolForm(name="wait_agent", namespace="multi_agent_v1"),
    }
    assert [image.data for image in request.images] == [b"\x89PNG\r\n\x1a\n"]
    assert (request.stream, request.requested_params["removed_tools"], request.requested_params["store"]) == (True, ["web_search"], False)


def test_freeform_tools_and_tools_found_in_mid_history_are_understood() -> None:
    """What a search found stays in its place, as the text of its result, so that the history only grows."""
    request = parse(LIKE_GPT_5_5)

    assert [tool["name"] for tool in request.tools] == ["exec_command", "apply_patch", "tool_search"]
    assert "start: /.+/" in request.tools[1]["parameters"]["properties"]["input"]["description"]
    calls = [call for message in request.messages for call in message.get("tool_calls", ())]
    assert [(call["name"], call["arguments"]) for call in calls] == [
        ("apply_patch", {"input": "*** Begin Patch"}),
        ("tool_search", {"query": "agents"}),
        ("multi_agent_v1__wait_agent", {}),
    ]
    found = request.messages[4]
    assert (found["role"], found["tool_call_id"]) == ("tool", "c2")
    assert [tool["name"] for tool in json.loads(found["content"])] == ["multi_agent_v1__spawn_agent", "multi_agent_v1__wait_agent"]
    assert request.forms["multi_agent_v1__wait_agent"] == ToolForm(name="wait_agent", namespace="multi_agent_v1")
    assert (request.forms["apply_patch"].freeform, request.forms["tool_search"].search) == (True, True)


def test_tools_before_the_first_answer_are_tools_and_later_ones_are_messages() -> None:
    """A tool list that changed in mid-history would change all that was sampled under it."""
    request = parse(LIKE_GPT_6)
    assert [tool["name"] for tool in request.tools] == ["functions__exec"]
    assert [message["role"] for message in request.messages] == ["developer", "user", "assistant", "tool"]

    late = parse(LIKE_GPT_6 | {"input": [*LIKE_GPT_6["input"], {"type": "additional_tools", "role": "developer", "tools": [EXEC]}]})
    assert late.tools == request.tools
    assert late.messages[:-1] == request.messages
    assert late.messages[-1]["role"] == "developer"
    assert "exec_command" in late.messages[-1]["content"]


def test_pi_and_the_official_client_are_understood() -> None:
    pi = parse(LIKE_PI)
    assert [message.get("key") for message in pi.messages] == [None, None, "k1x0", None, "k2x0"]
    assert "reasoning" not in pi.messages[2]
    assert (pi.max_tokens, pi.requested_params) == (4096, {"prompt_cache_key": "x", "store": False, "max_output_tokens": 4096})
    assert [image.path for image in pi.images] == ["input[1].content[1].image_url"]

    sdk = parse(LIKE_SDK)
    assert sdk.messages == ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"})
    assert (sdk.stream, sdk.tools, sdk.requested_params) == (False, (), {"temperature": 0.5, "metadata": {"a": "b"}})


@pytest.mark.parametrize("body", BODIES)
def test_digests_are_those_of_the_messages(body: dict[str, Any]) -> None:
    """Also when the items are known already."""
    for _ in range(2):
        request = parse(body)
        assert request.digests == tuple(map(message_digest, request.messages))


def test_requests_that_only_count_are_recognised_by_their_path() -> None:
    path = f"{COUNTING_PATH}?x=1"
    assert (RESPONSES.serves(path), RESPONSES.serves("/responses/"), RESPONSES.serves("/v1/responses/compact")) == (True, True, False)
    assert parse(LIKE_SDK, path).count_only
    assert not parse(LIKE_SDK).count_only
    assert json.loads(RESPONSES.counted(7)) == {"object": "response.input_tokens", "input_tokens": 7}

    body = json.dumps(LIKE_CODEX).encode()
    assert [RESPONSES.hints(at, body).stream for at in (path, "/responses")] == [False, True]
    assert RESPONSES.hints("/responses", b"[" * 100_000).model == ""


def turn(*items: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what follows a question, without ids of ours unless the items have them."""
    return list(parse({"model": "m", "input": [said("user", "hi"), *items]}).messages[1:])


def call(name: str, key: str = "") -> dict[str, Any]:
    return {"type": "function_call", "id": f"fc_{key}_0" if key else "fc_68", "call_id": name, "name": name, "arguments": "{}"}


def result(name: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": name, "output": ""}


def test_turns_without_our_ids_are_distinguished_by_their_place() -> None:
    """Reasoning opens a turn, a result ends one; ids of other providers are no keys."""
    thought = {
        "type": "reasoning",
        "id": "rs_68a",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "Hm."}],
        "encrypted_content": "gA==",
    }
    turns = turn(
        thought, said("assistant", "a"), call("f"), call("g"), result("f"), result("g"), call("h"), thought, said("assistant", "b")
    )
    assert [(one["role"], one.get("reasoning"), [c["name"] for c in one.get("tool_calls", ())]) for one in turns] == [
        ("assistant", "Hm.", ["f", "g"]),
        ("tool", None, []),
        ("tool", None, []),
        ("assistant", None, ["h"]),
        ("assistant", "Hm.", []),
    ]
    assert not any("key" in one for one in turns)


def test_parallel_calls_sent_back_between_their_results_are_one_turn_again() -> None:
    """Known by our key; the next answer, although it follows at once, by its own."""
    turns = turn(call("f", "k1"), result("f"), call("g", "k1"), result("g"), call("h", "k2"), said("assistant", "b"))
    assert [(one["role"], [c["name"] for c in one.get("tool_calls", ())]) for one in turns] == [
        ("assistant", ["f", "g"]),
        ("tool", []),
        ("tool", []),
        ("assistant", ["h"]),
    ]


def test_what_is_dropped_from_tools_is_recorded() -> None:
    """By the name that the policy sees; `strict: false` asks for nothing."""
    request = parse(LIKE_CODEX | {"tools": [EXEC | {"strict": True}, SPAWNING | {"defer_loading": True}]})
    assert request.requested_params["tools"] == {"exec_command": {"strict": True}, "multi_agent_v1": {"defer_loading": True}}
    assert "tools" not in parse(LIKE_CODEX).requested_params


def test_choosing_no_tool_shows_none() -> None:
    request = parse(LIKE_CODEX | {"tool_choice": "none"})
    assert (request.tools, request.requested_params["tool_choice"]) == ((), "none")


def changed(body: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return the body with the field at `path` (dots and numbers) replaced."""
    copied = copy.deepcopy(body)
    *parents, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    at: Any = copied
    for step in parents:
        at = at[step]
    at[last] = value
    return copied


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("model", "", "model"),
        ("input", None, "input"),
        ("input", [], "input"),
        ("input", 7, "input"),
        ("input.0", "x", "input[0]"),
        ("input.0.role", "tool", "input[0].role"),
        ("input.0", {"id": "msg_1"}, "input[0]"),
        ("input.0", {"type": "item_reference", "id": "msg_1"}, "input[0]"),
        ("input.0", {"type": "web_search_call"}, "input[0].type"),
        ("input.0", {"type": "compaction", "encrypted_content": "x"}, "input[0].type"),
        ("input.0.content", [{"type": "input_file"}], "input[0].content[0].type"),
        ("input.0.content", [{"type": "input_image", "image_url": PIXEL}], "input[0].content[0].type"),
        ("input.2.content", [{"type": "input_image", "image_url": "https://a/b.png"}], "input[2].content[0].image_url"),
        ("input.6.call_id", None, "input[6].call_id"),
        ("input.6.arguments", 3, "input[6].arguments"),
        ("input.8.output", 3, "input[8].output"),
        ("tools.0.type", "telepathy", "tools[0].type"),
        ("tools.0.type", "local_shell", "tools[0].type"),
        ("tools.0.type", "shell", "tools[0].type"),
        ("tools.0.type", "apply_patch", "tools[0].type"),
        ("tools.0.type", "computer_use_preview_2025_03_11", "tools[0].type"),
        ("input.2.content", [{"type": "input_image", "file_id": "file_1"}], "input[2].content[0].file_id"),
        ("context_management", [{"type": "compaction", "compact_threshold": 1000}], "context_management"),
        ("stop", ["END"], "stop"),
        ("tools.0.name", "", "tools[0].name"),
        ("tools.1.tools.0.type", "namespace", "tools[1].tools[0].type"),
        ("tools.0.name", "multi_agent_v1__wait_agent", "tools"),
        ("tool_choice", "required", "tool_choice"),
        ("tool_choice", {"type": "function", "name": "exec_command"}, "tool_choice"),
        ("tool_choice", {"type": "allowed_tools", "mode": "auto", "tools": []}, "tool_choice"),
        ("text", {"format": {"type": "json_schema", "name": "x", "schema": {}}}, "text.format"),
        ("previous_response_id", "resp_1", "previous_response_id"),
        ("conversation", {"id": "conv_1"}, "conversation"),
        ("background", True, "background"),
        ("prompt", {"id": "pmpt_1"}, "prompt"),
        ("truncation", "auto", "truncation"),
        ("top_logprobs", 3, "top_logprobs"),
        ("include", ["message.output_text.logprobs"], "include"),
        ("max_output_tokens", 0, "max_output_tokens"),
        ("temperature", 3, "temperature"),
        ("instructions", 3, "instructions"),
        ("stream", "yes", "stream"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(path: str, value: Any, field: str) -> None:
    with pytest.raises(RequestError) as refused:
        parse(changed(LIKE_CODEX, path, value))
    assert (refused.value.field, refused.value.status) == (field, 400)
    assert str(refused.value).startswith(f"{field}: ")


@pytest.mark.parametrize("field", ["background", "previous_response_id", "conversation", "truncation", "text", "include", "unheard_of"])
def test_null_asks_for_nothing(field: str) -> None:
    assert parse(LIKE_SDK | {field: None}).messages == parse(LIKE_SDK).messages


def test_an_empty_text_asks_for_nothing() -> None:
    assert parse(LIKE_SDK | {"truncation": ""}).requested_params == parse(LIKE_SDK).requested_params


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'"x"', b"\xff\xfe", b'{"input":' + b"[" * 200_000, b'{"model":"m","input":"\x01"}'])
def test_bodies_that_are_no_request_are_refused(body: bytes) -> None:
    with pytest.raises(RequestError):
        RESPONSES.parse(PATH, body)


@settings(max_examples=300)
@given(damaged(BODIES), st.sampled_from([PATH, COUNTING_PATH]))
def test_no_change_of_a_real_body_crashes(body: bytes, path: str) -> None:
    """Any value anywhere, or anything missing."""
    take(RESPONSES, path, body)


@settings(max_examples=300)
@given(scratched(BODIES))
def test_no_damaged_byte_crashes(body: bytes) -> None:
    take(RESPONSES, PATH, body)
