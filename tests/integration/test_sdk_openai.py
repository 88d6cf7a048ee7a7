"""The official OpenAI client, Chat and Responses, as the harness of a real relay, gateway, embedded bus and scripted engine."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.integration.sdk import NONCE, Served, served
from tests.support.sdks import openai

from evener.engines.scripted import Rule, Script, ToolCall, Wait
from evener.proto.reasons import TerminationReason
from evener.proto.sessions import CallClosed, FinishReason
from evener.proto.spec import Budgets, Streaming

WAYS = [(False, Streaming.BUFFERED), (True, Streaming.BUFFERED), (True, Streaming.LIVE)]
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {"cmd": {"type": "string"}}}
CHAT_TOOLS: Any = [{"type": "function", "function": {"name": "run", "description": "Runs.", "parameters": PARAMETERS}}]
SPAWN = {"type": "function", "name": "spawn", "parameters": PARAMETERS}
RESPONSES_TOOLS: Any = [
    {"type": "function", "name": "run", "description": "Runs.", "parameters": PARAMETERS},
    {"type": "custom", "name": "apply_patch", "description": "Edits."},
    {
        "type": "namespace",
        "name": "agents",
        "description": "Helpers.",
        "tools": [{"type": "function", "name": "spawn", "parameters": PARAMETERS}],
    },
]
SCRIPT = Script(
    rules=(
        Rule(match="at the gate", say="one two three four five six", wait=(Wait(before=4),)),
        Rule(match="break", fail=400),
        Rule(match="<tool_response>\nthree", say="It is done."),
        Rule(match="<tool_response>\ntwo", say="More.", tool_calls=(ToolCall(name="run", arguments={"cmd": "cat é"}),)),
        Rule(match="chat turns", say="I look.", tool_calls=(ToolCall(name="run", arguments={"cmd": "ls"}),)),
        Rule(
            match="all turns",
            say="I look.",
            tool_calls=(
                ToolCall(name="run", arguments={"cmd": "ls"}),
                ToolCall(name="apply_patch", arguments={"input": "*** Begin\n"}),
                ToolCall(name="agents__spawn", arguments={"cmd": "x"}),
            ),
        ),
    ),
    default=Rule(say="Hello there."),
)


def official(opened: Served, retries: int = 0) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{opened.url}/v1", api_key=NONCE, max_retries=retries)


async def chat_answer(client: openai.AsyncOpenAI, messages: list[Any], *, stream: bool) -> dict[str, Any]:
    """Ask in Chat; return the message as an agent sends it back."""
    if not stream:
        whole: Any = await client.chat.completions.create(model="policy", messages=messages, tools=CHAT_TOOLS)
        kept: dict[str, Any] = whole.choices[0].message.model_dump(exclude_none=True)
        return kept
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    async for chunk in await client.chat.completions.create(model="policy", messages=messages, tools=CHAT_TOOLS, stream=True):
        delta = chunk.choices[0].delta
        message["content"] += delta.content or ""
        for call in delta.tool_calls or ():
            message.setdefault("tool_calls", []).append(call.model_dump(exclude={"index"}))
    return message


async def responses_answer(client: openai.AsyncOpenAI, items: list[Any], *, stream: bool) -> list[Any]:
    """Ask in Responses; return the items as an agent sends them back."""
    if not stream:
        whole = await client.responses.create(model="policy", input=items, tools=RESPONSES_TOOLS, store=False)
        return [item.model_dump(exclude_none=True) for item in whole.output]
    streamed = await client.responses.create(model="policy", input=items, tools=RESPONSES_TOOLS, store=False, stream=True)
    events = [event async for event in streamed]
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    done = [event.item.model_dump(exclude_none=True) for event in events if event.type == "response.output_item.done"]
    assert events[-1].type == "response.completed"
    assert [item.model_dump(exclude_none=True) for item in events[-1].response.output] == done
    return done


@pytest.mark.parametrize(("stream", "streaming"), WAYS)
async def test_chat_tools_over_several_turns_are_one_row(tmp_path: Path, *, stream: bool, streaming: Streaming) -> None:
    """Three calls, each an extension of the last, all fed."""
    async with served(tmp_path, SCRIPT, streaming=streaming) as opened, official(opened) as client:
        messages: list[Any] = [{"role": "user", "content": "chat turns"}]
        for result in ("two", "three"):
            messages.append(await chat_answer(client, messages, stream=stream))
            messages.append({"role": "tool", "tool_call_id": messages[-1]["tool_calls"][0]["id"], "content": result})
        last = await chat_answer(client, messages, stream=stream)

        assert last["content"] == "It is done."
        await opened.check_one_row(calls=3)


@pytest.mark.parametrize(("stream", "streaming"), WAYS)
async def test_responses_tools_over_several_turns_are_one_row(tmp_path: Path, *, stream: bool, streaming: Streaming) -> None:
    """Three kinds of tools called at once; every item goes back as it came."""
    async with served(tmp_path, SCRIPT, streaming=streaming) as opened, official(opened) as client:
        items: list[Any] = [{"role": "user", "content": "all turns"}]
        answered = await responses_answer(client, items, stream=stream)
        text, run, patch, spawn = answered
        assert (text["content"][0]["text"].strip(), run["arguments"]) == ("I look.", '{"cmd": "ls"}')
        assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "apply_patch", "*** Begin\n")
        assert (spawn["name"], spawn["namespace"]) == ("spawn", "agents")
        items += [
            *answered,
            {"type": "function_call_output", "call_id": run["call_id"], "output": "one"},
            {"type": "custom_tool_call_output", "call_id": patch["call_id"], "output": "one"},
            {"type": "function_call_output", "call_id": spawn["call_id"], "output": [{"type": "input_text", "text": "two"}]},
        ]
        answered = await responses_answer(client, items, stream=stream)
        items += [*answered, {"type": "function_call_output", "call_id": answered[-1]["call_id"], "output": "three"}]
        [last] = await responses_answer(client, items, stream=stream)

        assert last["content"][0]["text"] == "It is done."
        await opened.check_one_row(calls=3)


async def test_usage_is_true_in_both(tmp_path: Path) -> None:
    """As many tokens as the engine was fed and sampled."""
    async with served(tmp_path, SCRIPT) as opened, official(opened) as client:
        chat = await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "hi"}])
        responses = await client.responses.create(model="policy", input="hi there")
        first, second = await opened.hand.engine.recorded(2)

        assert chat.usage is not None
        assert (chat.usage.prompt_tokens, chat.usage.completion_tokens) == (len(first.fed_ids), len(first.sampled_ids))
        assert responses.usage is not None
        assert (responses.usage.input_tokens, responses.usage.output_tokens) == (len(second.fed_ids), len(second.sampled_ids))
        assert responses.output_text == chat.choices[0].message.content == "Hello there."


async def test_a_bad_field_and_a_wrong_key_are_reported_by_their_types(tmp_path: Path) -> None:
    """Without a retry: the default client would try again on anything that could pass."""
    async with served(tmp_path, SCRIPT) as opened, official(opened, retries=2) as client:
        with pytest.raises(openai.BadRequestError) as bad:
            await client.responses.create(model="policy", input="hi", previous_response_id="resp_1")
        assert bad.value.param == "previous_response_id"
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "hi"}], logprobs=True)
        assert bad.value.param == "logprobs"
        stranger = client.with_options(api_key="evkother")
        with pytest.raises(openai.AuthenticationError):
            await stranger.responses.create(model="policy", input="hi")
        assert [model.id async for model in client.models.list()] == ["policy"]
        assert opened.hand.engine.ledger == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_spent_budget_ends_the_harness_at_once(tmp_path: Path, *, stream: bool) -> None:
    """400, whatever is asked for, and never a retry."""
    async with served(tmp_path, SCRIPT, budgets=Budgets(calls=1)) as opened, official(opened, retries=2) as client:
        await client.responses.create(model="policy", input="hi")
        with pytest.raises(openai.BadRequestError, match="budget"):
            await client.responses.create(model="policy", input="again", stream=stream)
        with pytest.raises(openai.BadRequestError, match="budget"):
            await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "again"}], stream=stream)
        assert (await opened.sealed(code=1)).termination_reason is TerminationReason.CALL_BUDGET


async def events_of(client: openai.AsyncOpenAI, api: str, text: str) -> list[Any]:
    """Ask for a stream, and return all of it."""
    return [event async for event in await stream_of(client, api, text)]


async def stream_of(client: openai.AsyncOpenAI, api: str, text: str) -> Any:
    if api == "chat":
        return await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": text}], stream=True)
    return await client.responses.create(model="policy", input=text, stream=True)


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_prompt_beyond_the_context_is_reported_by_its_code(tmp_path: Path, api: str) -> None:
    """Before any header: 400 also where a stream was asked for."""
    async with served(tmp_path, SCRIPT, context=64) as opened, official(opened) as client:
        with pytest.raises(openai.BadRequestError) as overflow:
            await events_of(client, api, "word " * 100)
        assert overflow.value.code == "context_length_exceeded"


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_an_engine_that_fails_under_a_stream_is_reported_in_it(tmp_path: Path, api: str) -> None:
    """The headers are out: the client raises from the stream, and does not take it for a lost connection."""
    async with served(tmp_path, SCRIPT) as opened, official(opened) as client:
        with pytest.raises(openai.APIError) as told:
            await events_of(client, api, "break")
        assert not isinstance(told.value, openai.APIConnectionError)
        assert told.value.code == ("rate_limit_exceeded" if api == "responses" else None)  # what Codex tries again


async def test_a_response_that_fails_is_the_one_that_was_begun(tmp_path: Path) -> None:
    """Its end has the id of its beginning."""
    async with served(tmp_path, SCRIPT) as opened, official(opened) as client:
        events: list[Any] = []
        with suppress(openai.APIError):  # the `error` event that follows
            async for event in await client.responses.create(model="policy", input="break", stream=True):
                events.append(event)  # noqa: PERF401 - all of them, although it raises
        assert (events[0].type, events[-1].type) == ("response.created", "response.failed")
        assert (events[-1].response.id, events[-1].response.model) == (events[0].response.id, "policy")


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_overload_before_the_stream_is_tried_again_by_the_client(tmp_path: Path, api: str) -> None:
    """503 with Retry-After while no gateway owns the session; the client's next try succeeds."""
    async with served(tmp_path, SCRIPT, owned=False) as opened, official(opened, retries=2) as client:
        waiting = asyncio.create_task(events_of(client, api, "hi"))
        await opened.refused()
        opened.own()

        assert await waiting
        assert len(await opened.hand.engine.recorded(1)) == 1


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_client_that_closes_its_stream_stops_the_sampling(tmp_path: Path, api: str) -> None:
    """Sampling stops at the engine; the tokens so far are kept and not trained."""
    async with served(tmp_path, SCRIPT) as opened, official(opened) as client:
        streamed = await stream_of(client, api, "at the gate")
        await anext(aiter(streamed))
        await opened.hand.at_the_gate()
        await streamed.close()
        (entry,) = await opened.hand.engine.recorded(1)
        assert entry.aborted
        closed = await opened.hand.until("s1", CallClosed)
        assert closed.choices[0].finish_reason is FinishReason.ABORTED
        assert (await opened.sealed()).accounting.delivered == 0
