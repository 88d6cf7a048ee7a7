"""The official Google client as the harness of a real relay, gateway, embedded bus and scripted engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.integration.sdk import NONCE, Served, served
from tests.support.sdks import genai

from evener.engines.scripted import Rule, Script, ToolCall, Wait
from evener.proto.reasons import TerminationReason
from evener.proto.sessions import CallClosed, FinishReason
from evener.proto.spec import Budgets, Quirks, Streaming, Tolerance

RUN: Any = {"name": "run", "description": "Runs.", "parameters_json_schema": {"type": "object"}}
CONFIG: Any = {
    "system_instruction": "Be brief.",
    "tools": [{"function_declarations": [RUN]}],
    "automatic_function_calling": {"disable": True},
}
SCRIPT = Script(
    rules=(
        Rule(match="at the gate", say="one two three four five six", wait=(Wait(before=4),)),
        Rule(match="break", fail=400),
        Rule(match="<tool_response>\nfour", think="All done.", say="It is done.\u2028"),
        Rule(match="<tool_response>\nthree", tool_calls=(ToolCall(name="run", arguments={"cmd": "cat x"}),)),
        Rule(
            match="turns",
            think="Two at once.",
            say="I look.",
            tool_calls=(ToolCall(name="run", arguments={"cmd": "ls é"}), ToolCall(name="run", arguments={"n": 1.5})),
        ),
    ),
    default=Rule(say="Hello there."),
)


@asynccontextmanager
async def official(opened: Served, key: str = NONCE, attempts: int = 1) -> AsyncIterator[genai.client.AsyncClient]:
    """The client, over the HTTP library that it prefers (its other one, aiohttp, it uses in a deprecated way)."""
    retry = genai.types.HttpRetryOptions(attempts=attempts, initial_delay=0.5)
    async with httpx2.AsyncClient(timeout=60) as http:
        options = genai.types.HttpOptions(base_url=opened.url, retry_options=retry, httpx_async_client=http)
        yield genai.Client(api_key=key, vertexai=False, http_options=options).aio


async def asked(client: genai.client.AsyncClient, contents: Any, *, stream: bool = True) -> list[genai.types.Content]:
    """Ask; return the contents as an agent keeps them: of a stream, one for each event."""
    if not stream:
        whole = await client.models.generate_content(model="policy", contents=contents, config=CONFIG)
        return [one.content for one in whole.candidates or () if one.content]
    events = await client.models.generate_content_stream(model="policy", contents=contents, config=CONFIG)
    return [one.content async for event in events for one in event.candidates or () if one.content]


def calls_of(contents: list[genai.types.Content]) -> list[genai.types.FunctionCall]:
    return [part.function_call for content in contents for part in content.parts or () if part.function_call]


def text_of(contents: list[genai.types.Content]) -> str:
    return "".join(part.text or "" for content in contents for part in content.parts or () if not part.thought)


def results_of(calls: list[genai.types.FunctionCall], *outputs: str) -> genai.types.Content:
    """What the tools gave; ids where the calls have them."""
    parts = [
        genai.types.Part(function_response=genai.types.FunctionResponse(id=call.id, name=call.name, response={"output": output}))
        for call, output in zip(calls, outputs, strict=True)
    ]
    return genai.types.Content(role="user", parts=parts)


def without(contents: list[genai.types.Content], *, ids: bool = False, thoughts: bool = False) -> list[genai.types.Content]:
    """The contents as a client keeps them that drops ids, or thoughts."""
    kept: list[genai.types.Content] = []
    for content in contents:
        parts = [part.model_copy(deep=True) for part in content.parts or () if not (thoughts and part.thought)]
        for part in parts:
            if ids and part.function_call:
                part.function_call.id = None
        kept += [genai.types.Content(role=content.role, parts=parts)] if parts else []
    return kept


@pytest.mark.parametrize(
    ("stream", "streaming", "dropped"),
    [
        (False, Streaming.BUFFERED, {}),
        (True, Streaming.BUFFERED, {"ids": True}),
        (True, Streaming.LIVE, {"thoughts": True}),
    ],
)
async def test_tools_over_several_turns_are_one_row(
    tmp_path: Path,
    *,
    stream: bool,
    streaming: Streaming,
    dropped: dict[str, bool],
) -> None:
    """Two calls at once, called again, done. Ids that the client drops come back from our key, thoughts from the record."""
    quirks = Quirks(tolerances=(Tolerance.REASONING_ABSENT,))
    async with served(tmp_path, SCRIPT, streaming=streaming, quirks=quirks) as opened, official(opened) as client:
        contents: list[Any] = [genai.types.Content(role="user", parts=[genai.types.Part(text="turns")])]
        for outputs in (("one", "three"), ("four",)):
            kept = without(await asked(client, contents, stream=stream), **dropped)
            assert any(part.thought_signature for content in kept for part in content.parts or ())
            contents += [*kept, results_of(calls_of(kept), *outputs)]
        last = await asked(client, contents, stream=stream)

        assert text_of(last) == "It is done.\u2028"
        await opened.check_one_row(calls=3)


async def test_the_clients_own_chat_over_several_turns_is_one_row(tmp_path: Path) -> None:
    """It calls the function itself, and keeps every event of every answer."""
    outputs, ran = iter(["one", "three", "four"]), []

    def run(cmd: str = "", n: float = 0) -> str:
        """Runs."""
        ran.append((cmd, n))
        return next(outputs)

    async with served(tmp_path, SCRIPT) as opened, official(opened) as client:
        chat = client.chats.create(model="policy", config=genai.types.GenerateContentConfig(tools=[run]))
        answer = await chat.send_message("turns")
        assert answer.text == "It is done.\u2028"
        assert ran == [("ls é", 0), ("", 1.5), ("cat x", 0)]
        streamed = [event.text async for event in await chat.send_message_stream("hi")]
        assert "".join(text or "" for text in streamed)
        trajectory = await opened.sealed()
        assert trajectory.accounting.delivered == trajectory.accounting.sampled > 0


async def test_usage_and_count_are_true(tmp_path: Path) -> None:
    """As many tokens as the engine was fed and sampled; counting samples nothing."""
    async with served(tmp_path, SCRIPT) as opened, official(opened) as client:
        counted = await client.models.count_tokens(model="policy", contents="hi")
        assert opened.hand.engine.ledger == []
        answer = await client.models.generate_content(model="policy", contents="hi")
        (entry,) = await opened.hand.engine.recorded(1)

        usage = answer.usage_metadata
        assert usage is not None
        assert counted.total_tokens == usage.prompt_token_count == len(entry.fed_ids)
        assert usage.candidates_token_count == len(entry.sampled_ids)


async def test_a_bad_field_and_a_wrong_key_are_reported_by_their_status(tmp_path: Path) -> None:
    async with served(tmp_path, SCRIPT) as opened, official(opened, attempts=3) as client:
        config = genai.types.GenerateContentConfig(response_mime_type="application/json")
        with pytest.raises(genai.errors.ClientError, match="responseMimeType") as bad:
            await client.models.generate_content(model="policy", contents="hi", config=config)
        assert (bad.value.code, bad.value.status) == (400, "INVALID_ARGUMENT")
        async with official(opened, key="evkother") as stranger:
            with pytest.raises(genai.errors.ClientError) as refused:
                await asked(stranger, "hi")
        assert (refused.value.code, refused.value.status) == (401, "UNAUTHENTICATED")
        assert opened.hand.engine.ledger == []


@pytest.mark.parametrize("stream", [False, True])
async def test_a_spent_budget_ends_the_harness_at_once(tmp_path: Path, *, stream: bool) -> None:
    """400, whatever is asked for, and never a retry."""
    async with served(tmp_path, SCRIPT, budgets=Budgets(calls=1)) as opened, official(opened, attempts=3) as client:
        await asked(client, "hi")
        with pytest.raises(genai.errors.ClientError, match="budget"):
            await asked(client, "again", stream=stream)
        assert (await opened.sealed(code=1)).termination_reason is TerminationReason.CALL_BUDGET


async def test_a_prompt_beyond_the_context_is_reported_in_the_words_that_clients_know(tmp_path: Path) -> None:
    """Before any header: 400 also where a stream was asked for."""
    async with served(tmp_path, SCRIPT, context=64) as opened, official(opened) as client:
        with pytest.raises(
            genai.errors.ClientError, match=r"input token count \(\d+\) exceeds the maximum number of tokens allowed \(64\)"
        ):
            await asked(client, "word " * 100)


async def test_an_engine_that_fails_under_a_stream_is_reported_in_it(tmp_path: Path) -> None:
    """The headers are out: the client raises from the stream, and does not take it for a lost connection."""
    async with served(tmp_path, SCRIPT) as opened, official(opened) as client:
        with pytest.raises(genai.errors.ServerError, match="service unavailable"):
            await asked(client, "break")


async def test_overload_before_the_stream_is_tried_again_by_the_client(tmp_path: Path) -> None:
    """503 while no gateway owns the session."""
    async with served(tmp_path, SCRIPT, owned=False) as opened, official(opened, attempts=5) as client:
        waiting = asyncio.create_task(asked(client, "hi"))
        await opened.refused()
        opened.own()

        assert text_of(await waiting) == "Hello there."
        assert len(await opened.hand.engine.recorded(1)) == 1


async def test_a_client_that_is_cancelled_stops_the_sampling(tmp_path: Path) -> None:
    """Sampling stops at the engine; the tokens so far are kept and not trained."""
    async with served(tmp_path, SCRIPT) as opened, official(opened) as client:
        begun = asyncio.Event()

        async def ask() -> None:
            async for _ in await client.models.generate_content_stream(model="policy", contents="at the gate"):
                begun.set()

        asking = asyncio.create_task(ask())
        await begun.wait()
        await opened.hand.at_the_gate()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        (entry,) = await opened.hand.engine.recorded(1)
        assert entry.aborted
        closed = await opened.hand.until("s1", CallClosed)
        assert closed.choices[0].finish_reason is FinishReason.ABORTED
        assert (await opened.sealed()).accounting.delivered == 0
