"""What a harness asked for beside its answer stands in the log, whatever its dialect; so does what became of its limit."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.gateway import POLICY, Hand, gateway

from evener.engines.scripted import Rule, Script
from evener.proto.arrays import inline, int32s
from evener.proto.codec import decode_frame
from evener.proto.ids import new_request_id
from evener.proto.relay import CAPABILITY, REQUEST_ID, Answer
from evener.proto.sessions import CallOpened
from evener.proto.spec import Budgets, Sampling
from evener.templates.open import open_renderer

SCRIPT = Script(default=Rule(say="one two three four five six seven"))
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
GOOGLE = "/v1beta/models/policy:generateContent"
HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
SCHEMA: dict[str, Any] = {"type": "object", "properties": {}}
SEARCH: dict[str, Any] = {"type": "web_search"}
ASKED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    CHAT: (
        {
            "model": "policy",
            "messages": [{"role": "user", "content": "hi", "name": "bob"}],
            "tools": [{"type": "function", "function": {"name": "f", "strict": True, "parameters": SCHEMA}}],
            "web_search_options": {},
            "max_tokens": 3,
            "temperature": 0.2,
            "parallel_tool_calls": False,
            "unheard_of": 1,
        },
        {
            "max_tokens": 3,
            "temperature": 0.2,
            "parallel_tool_calls": False,
            "unheard_of": 1,
            "removed_tools": ["web_search_options"],
            "tools": {"f": {"strict": True}},
            "names": ["bob"],
        },
    ),
    RESPONSES: (
        {
            "model": "policy",
            "input": "hi",
            "tools": [{"type": "function", "name": "f", "strict": True, "parameters": SCHEMA}, SEARCH],
            "max_output_tokens": 3,
            "parallel_tool_calls": False,
        },
        {"max_output_tokens": 3, "parallel_tool_calls": False, "removed_tools": ["web_search"], "tools": {"f": {"strict": True}}},
    ),
    MESSAGES: (
        {
            "model": "policy",
            "messages": [{"role": "user", "content": "hi"}],
            "tools": [{"name": "f", "strict": True, "input_schema": SCHEMA}, {"type": "web_search_20250305", "name": "web_search"}],
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "max_tokens": 3,
        },
        {
            "max_tokens": 3,
            "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "removed_tools": ["web_search_20250305"],
            "tools": {"f": {"strict": True}},
        },
    ),
    GOOGLE: (
        {
            "contents": [{"parts": [{"text": "hi"}]}],
            "tools": [{"functionDeclarations": [{"name": "f", "behavior": "BLOCKING"}]}, {"googleSearch": {}}],
            "generationConfig": {"maxOutputTokens": 3, "thinkingConfig": {"thinkingBudget": 0}},
        },
        {
            "maxOutputTokens": 3,
            "thinkingConfig": {"thinkingBudget": 0},
            "removed_tools": ["googleSearch"],
            "tools": {"f": {"behavior": "BLOCKING"}},
        },
    ),
}


async def posted(hand: Hand, capability: str, path: str, body: Any) -> tuple[int, bytes]:
    """Ask as the relay does; return the status and body that the harness gets."""
    headers = {CAPABILITY: capability, REQUEST_ID: new_request_id()}
    async with hand.http.post(f"{hand.url}/serve{path}", json=body, headers=headers) as answer:
        data = await answer.read()
        if answer.status != 200:
            return answer.status, data
    while data:
        end = 4 + int.from_bytes(data[:4], "big")
        frame, data = decode_frame(data[4:end]), data[end:]
    assert isinstance(frame, Answer)
    return frame.status, frame.body


async def opened(hand: Hand) -> CallOpened:
    """Return the session's last call."""
    return [event for event in await hand.log("s1") if isinstance(event, CallOpened)][-1]


@pytest.mark.parametrize("path", ASKED)
async def test_wishes_and_removed_tools_are_in_the_log(tmp_path: Path, path: str) -> None:
    """And the limit of the answer, which no run set, is the harness's own."""
    body, requested_params = ASKED[path]
    async with gateway(tmp_path, SCRIPT) as hand:
        capability = await hand.start("s1", sampling=Sampling())
        status, _ = await posted(hand, capability, path, body)
        assert status == 200
        call = await opened(hand)
        assert json.loads(inline(call.requested_params)) == requested_params
        assert call.max_tokens == 3


@pytest.mark.parametrize(
    ("sampling", "budget", "requested", "limit"),
    [
        (Sampling(max_tokens=5), None, 3, 5),
        (Sampling(), 4, 9, 4),
        (Sampling(), None, None, None),
    ],
    ids=["run", "budget", "context"],
)
async def test_limit_that_held_is_in_the_log(
    tmp_path: Path, sampling: Sampling, budget: int | None, requested: int | None, limit: int
) -> None:
    """The run's before the harness's; lowered to the budget; else all the context that is left."""
    async with gateway(tmp_path, SCRIPT, context=256) as hand:
        capability = await hand.start("s1", sampling=sampling, budgets=Budgets(tokens=budget))
        asked = {} if requested is None else {"max_tokens": requested}
        await posted(hand, capability, CHAT, {"model": "policy", "messages": [{"role": "user", "content": "hi"}], **asked})
        call = await opened(hand)
        assert call.max_tokens == (256 - call.prompt_tokens if limit is None else limit)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"model": "policy", "messages": [*HI, {"role": "assistant", "content": "One and"}]}),
        (RESPONSES, {"model": "policy", "input": [*HI, {"role": "assistant", "content": "One and"}]}),
        (GOOGLE, {"contents": [{"parts": [{"text": "hi"}]}, {"role": "model", "parts": [{"text": "One and"}]}]}),
    ],
)
async def test_history_that_ends_with_an_answer_is_followed_by_a_new_turn(tmp_path: Path, path: str, body: dict[str, Any]) -> None:
    """The template closes the given answer and opens another one. Anthropic's clients, which would have it continued, are refused."""
    renderer = open_renderer(POLICY)
    given = [*HI, {"role": "assistant", "content": "One and"}]
    async with gateway(tmp_path, SCRIPT) as hand:
        status, _ = await posted(hand, await hand.start("s1"), path, body)
        ids = int32s((await opened(hand)).prompt_delta_ids)
    assert status == 200
    assert ids.tolist() == renderer.render(given, None).tolist()
    assert b"".join(renderer.pieces(ids.tolist())).endswith(b"One and<|im_end|>\n<|im_start|>assistant\n")


def said(path: str, text: str, *, times: int = 1) -> dict[str, Any]:
    """Return a request in which a user says something, so many times."""
    if path == GOOGLE:
        return {"contents": [{"parts": [{"text": text}]}] * times}
    field = "input" if path == RESPONSES else "messages"
    return {"model": "policy", field: [{"role": "user", "content": text}] * times}


@pytest.mark.parametrize(
    ("path", "field", "told"),
    [
        (CHAT, "messages", "maximum context length is 256 tokens"),
        (RESPONSES, "input", "maximum context length is 256 tokens"),
        (MESSAGES, None, "tokens > 256 maximum"),
        (GOOGLE, None, "exceeds the maximum number of tokens allowed (256)"),
    ],
)
async def test_prompt_that_does_not_fit_is_reported_by_the_dialects_own_names(
    tmp_path: Path, path: str, field: str | None, told: str
) -> None:
    async with gateway(tmp_path, SCRIPT, context=256) as hand:
        status, body = await posted(hand, await hand.start("s1"), path, said(path, "word " * 500))
        error = json.loads(body)["error"]
        assert status == 400
        assert error.get("param") == field
        assert told in error["message"]


@pytest.mark.parametrize("path", ASKED)
async def test_absurd_number_of_messages_is_refused_in_the_dialects_shape(tmp_path: Path, path: str) -> None:
    """So large a body is read beside the loop."""
    async with gateway(tmp_path, SCRIPT) as hand:
        status, body = await posted(hand, await hand.start("s1"), path, said(path, "of many", times=20_001))
        assert status == 400
        assert "at most 20000 are served" in json.loads(body)["error"]["message"]
