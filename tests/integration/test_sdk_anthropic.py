"""The official Anthropic client as the harness of a real relay, gateway, embedded bus and scripted engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.integration.sdk import NONCE, Served, served
from tests.support.sdks import anthropic

from evener.engines.scripted import Rule, Script, ToolCall, Wait
from evener.proto.reasons import TerminationReason
from evener.proto.sessions import CallClosed, Fidelity, FinishReason
from evener.proto.spec import Budgets, Streaming

TOOLS: Any = [{"name": "run", "description": "Runs.", "input_schema": {"type": "object", "properties": {"cmd": {"type": "string"}}}}]
SCRIPT = Script(
    rules=(
        Rule(match="at the gate", say="one two three four five six", wait=(Wait(before=4),)),
        Rule(match="break", fail=400),
        Rule(match="think long", think="one two three four five six", finish="length"),
        Rule(match="<tool_response>\nfour", think="All done.", say="It is done."),
        Rule(match="<tool_response>\nthree", tool_calls=(ToolCall(name="run", arguments={"cmd": "cat x"}),)),
        Rule(
            match="turns",
            think="Two at once.",
            say="I look.\u2028",
            tool_calls=(ToolCall(name="run", arguments={"cmd": "ls é"}), ToolCall(name="run", arguments={"n": 1.5})),
        ),
    ),
    default=Rule(say="Hello there."),
)
THINKING: Any = {"type": "adaptive"}
WAYS = [(False, Streaming.BUFFERED), (True, Streaming.BUFFERED), (True, Streaming.LIVE)]
HI: Any = [{"role": "user", "content": "hi"}]


def official(opened: Served, retries: int = 0, key: str = NONCE) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=opened.url, api_key=key, max_retries=retries)


async def asked(
    client: anthropic.AsyncAnthropic, messages: list[Any], *, stream: bool = True, thinking: Any = THINKING
) -> anthropic.types.Message:
    given: Any = {"model": "policy", "max_tokens": 2048, "messages": messages, "tools": TOOLS, "system": "Be brief."}
    given |= {"thinking": thinking} if thinking else {}
    if not stream:
        whole: anthropic.types.Message = await client.messages.create(**given)
        return whole
    async with client.messages.stream(**given) as running:
        return await running.get_final_message()


def returned(message: anthropic.types.Message) -> dict[str, Any]:
    """The message as an agent sends it back."""
    return {"role": "assistant", "content": [block.model_dump(exclude_none=True, exclude_unset=True) for block in message.content]}


@pytest.mark.parametrize(("stream", "streaming"), WAYS)
async def test_tools_over_several_turns_are_one_row(tmp_path: Path, *, stream: bool, streaming: Streaming) -> None:
    """Thinking with our key, two calls at once, and the cache marker that moves: all fed."""
    async with served(tmp_path, SCRIPT, streaming=streaming) as opened, official(opened) as client:
        messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "turns", "cache_control": {"type": "ephemeral"}}]}]
        first = await asked(client, messages, stream=stream)
        thinking, text, *calls = first.content
        assert (thinking.type, text.type, first.stop_reason) == ("thinking", "text", "tool_use")
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": content}
            for call, content in zip(calls, ["one", [{"type": "text", "text": "three"}]], strict=True)
            if call.type == "tool_use"
        ]
        messages = [{"role": "user", "content": "turns"}, returned(first), {"role": "user", "content": results}]
        second = await asked(client, messages, stream=stream)
        call = second.content[-1]
        assert call.type == "tool_use"
        messages += [returned(second), {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "four"}]}]
        last = await asked(client, messages, stream=stream)

        assert [block.type for block in last.content] == ["thinking", "text"]
        assert last.stop_reason == "end_turn"
        await opened.check_one_row(calls=3)


@pytest.mark.parametrize(("stream", "streaming"), WAYS)
@pytest.mark.parametrize("thinking", [None, {"type": "disabled"}])
async def test_thinking_that_is_not_asked_for_is_not_shown_and_stays_in_the_row(
    tmp_path: Path, *, stream: bool, streaming: Streaming, thinking: Any
) -> None:
    """The content begins with its text or its call. It comes back without the thinking, also in a request that asks for it then."""
    async with served(tmp_path, SCRIPT, streaming=streaming) as opened, official(opened) as client:
        messages: list[Any] = [{"role": "user", "content": "turns"}]
        for results in (["one", "three"], ["four"]):
            answer = await asked(client, messages, stream=stream, thinking=thinking)
            calls = [block.id for block in answer.content if block.type == "tool_use"]
            assert [block.type for block in answer.content if block.type != "text"] == ["tool_use"] * len(results)
            told = [{"type": "tool_result", "tool_use_id": one, "content": result} for one, result in zip(calls, results, strict=True)]
            messages += [returned(answer), {"role": "user", "content": told}]
        last = await asked(client, messages, stream=stream, thinking=thinking)
        [text] = last.content
        assert text.type == "text"
        assert text.text == "It is done."
        messages += [returned(last), *HI]
        await asked(client, messages, stream=stream, thinking=THINKING)

        trajectory = await opened.sealed()
        assert ([row.fidelity for row in trajectory.rows], len(trajectory.calls)) == ([Fidelity.FED], 4)
        assert trajectory.accounting.delivered == trajectory.accounting.sampled
        assert trajectory.accounting.reinstated > 0


async def test_usage_and_count_are_true(tmp_path: Path) -> None:
    """As many tokens as the engine was fed and sampled; counting samples nothing."""
    async with served(tmp_path, SCRIPT) as opened, official(opened) as client:
        counted = await client.messages.count_tokens(model="policy", messages=HI, tools=TOOLS, system="Be brief.")
        assert opened.hand.engine.ledger == []
        usage = (await asked(client, HI)).usage
        (entry,) = await opened.hand.engine.recorded(1)

        prompt = usage.input_tokens + (usage.cache_read_input_tokens or 0)
        assert counted.input_tokens == prompt == len(entry.fed_ids)
        assert usage.output_tokens == len(entry.sampled_ids)


async def test_an_answer_cut_in_its_thinking_is_whole_on_the_wire(tmp_path: Path) -> None:
    """Its thinking is closed with a signature, so that it can be sent back."""
    async with served(tmp_path, SCRIPT) as opened, official(opened) as client:
        message = await asked(client, [{"role": "user", "content": "think long"}])
        [thinking] = message.content
        assert (message.stop_reason, thinking.type) == ("max_tokens", "thinking")
        assert getattr(thinking, "signature", "")


async def test_a_bad_field_a_wrong_key_and_an_unknown_path_are_reported_by_their_types(tmp_path: Path) -> None:
    async with served(tmp_path, SCRIPT) as opened, official(opened, retries=2) as client:
        with pytest.raises(anthropic.BadRequestError, match=r"tool_choice\.type"):
            await client.messages.create(model="policy", max_tokens=9, messages=HI, tools=TOOLS, tool_choice={"type": "any"})
        async with official(opened, key="evkother") as stranger:
            with pytest.raises(anthropic.AuthenticationError):
                await asked(stranger, HI)
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.batches.create(requests=[])
        assert opened.hand.engine.ledger == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_spent_budget_ends_the_harness_at_once(tmp_path: Path, *, stream: bool) -> None:
    """400, whatever is asked for, and never a retry."""
    async with served(tmp_path, SCRIPT, budgets=Budgets(calls=1)) as opened, official(opened, retries=2) as client:
        await asked(client, HI)
        with pytest.raises(anthropic.BadRequestError, match="budget"):
            await asked(client, [{"role": "user", "content": "again"}], stream=stream)
        assert (await opened.sealed(code=1)).termination_reason is TerminationReason.CALL_BUDGET


async def test_a_prompt_beyond_the_context_is_reported_in_the_words_that_clients_know(tmp_path: Path) -> None:
    """Before any header: 400 also where a stream was asked for."""
    async with served(tmp_path, SCRIPT, context=64) as opened, official(opened) as client:
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 64 maximum"):
            await asked(client, [{"role": "user", "content": "word " * 100}])


async def test_an_engine_that_fails_under_a_stream_is_reported_in_it(tmp_path: Path) -> None:
    """The headers are out: the client raises from the stream, and does not take it for a lost connection."""
    async with served(tmp_path, SCRIPT) as opened, official(opened) as client:
        with pytest.raises(anthropic.APIStatusError, match="service unavailable"):
            await asked(client, [{"role": "user", "content": "break"}])


async def test_overload_before_the_stream_is_tried_again_by_the_client(tmp_path: Path) -> None:
    """503 with Retry-After while no gateway owns the session."""
    async with served(tmp_path, SCRIPT, owned=False) as opened, official(opened, retries=2) as client:
        waiting = asyncio.create_task(asked(client, HI))
        await opened.refused()
        opened.own()

        [text] = (await waiting).content
        assert text.type == "text"
        assert text.text == "Hello there."
        assert len(await opened.hand.engine.recorded(1)) == 1


async def test_a_client_that_closes_its_stream_stops_the_sampling(tmp_path: Path) -> None:
    """Sampling stops at the engine; the tokens so far are kept and not trained."""
    async with served(tmp_path, SCRIPT) as opened, official(opened) as client:
        messages: Any = [{"role": "user", "content": "at the gate"}]
        events = await client.messages.create(model="policy", max_tokens=200, messages=messages, stream=True)
        await anext(aiter(events))
        await opened.hand.at_the_gate()
        await events.close()
        (entry,) = await opened.hand.engine.recorded(1)
        assert entry.aborted
        closed = await opened.hand.until("s1", CallClosed)
        assert closed.choices[0].finish_reason is FinishReason.ABORTED
        assert (await opened.sealed()).accounting.delivered == 0
