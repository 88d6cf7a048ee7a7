"""Streaming `live`, through the relay, as the official clients see it: each dialect's, proven by time."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from tests.integration import test_sdk_anthropic, test_sdk_google, test_sdk_openai
from tests.integration.sdk import Served, served
from tests.support.sdks import anthropic, genai, openai

from evener.dialects.canonical import Streamed
from evener.engines.scripted import Rule, Script, Wait
from evener.proto.sessions import CallClosed, CallOpened, FinishReason
from evener.proto.spec import Streaming

PIECES = ("<think>\n", "four", " five", " six", "\n</think>\n\n", "one", " two", " three")
"""Their marks have four and five tokens, each word is one."""
SCRIPT = Script(
    rules=(
        Rule(match="step by step", pieces=PIECES, wait=tuple(Wait(before=number) for number in (6, 7, 8, 14, 15, 16))),
        Rule(match="break half-way", say="one two three four", wait=(Wait(before=3),), fail="cut", after=3),
    )
)
THINKING: Any = {"type": "enabled", "budget_tokens": 1024}


async def chat(opened: Served, text: str) -> AsyncGenerator[Streamed, None]:
    async with test_sdk_openai.official(opened) as client:
        messages: Any = [{"role": "user", "content": text}]
        async with await client.chat.completions.create(model="policy", messages=messages, stream=True) as chunks:
            async for chunk in chunks:
                delta = chunk.choices[0].delta
                yield Streamed(reasoning=getattr(delta, "reasoning_content", None) or "", text=delta.content or "")


async def responses(opened: Served, text: str) -> AsyncGenerator[Streamed, None]:
    async with test_sdk_openai.official(opened) as client, await client.responses.create(model="policy", input=text, stream=True) as events:
        async for event in events:
            if event.type == "response.reasoning_summary_text.delta":
                yield Streamed(reasoning=event.delta)
            if event.type == "response.output_text.delta":
                yield Streamed(text=event.delta)


async def anthropic_messages(opened: Served, text: str) -> AsyncGenerator[Streamed, None]:
    async with test_sdk_anthropic.official(opened) as client:
        asked: Any = {"model": "policy", "max_tokens": 2048, "messages": [{"role": "user", "content": text}], "thinking": THINKING}
        async with await client.messages.create(**asked, stream=True) as events:
            async for event in events:
                if event.type == "content_block_delta" and event.delta.type == "thinking_delta":
                    yield Streamed(reasoning=event.delta.thinking)
                if event.type == "content_block_delta" and event.delta.type == "text_delta":
                    yield Streamed(text=event.delta.text)


async def google(opened: Served, text: str) -> AsyncGenerator[Streamed, None]:
    async with test_sdk_google.official(opened) as client:
        async for event in await client.models.generate_content_stream(model="policy", contents=text):
            for part in event.parts or ():
                yield Streamed(reasoning=part.text or "") if part.thought else Streamed(text=part.text or "")


Ask = Callable[[Served, str], AsyncGenerator[Streamed, None]]
every_dialect = pytest.mark.parametrize("ask", [chat, responses, anthropic_messages, google])


@every_dialect
async def test_each_word_waits_until_the_client_has_the_one_before(tmp_path: Path, ask: Ask) -> None:
    """The engine goes on only when the client has the delta; the call is committed as open, and not closed, all the while."""
    async with served(tmp_path, SCRIPT, streaming=Streaming.LIVE) as opened, aclosing(ask(opened, "step by step")) as pieces:
        received = []
        async for piece in pieces:
            if piece != Streamed():
                received.append(piece)
                kinds = {type(event) for event in await opened.hand.log("s1")}
                assert CallOpened in kinds
                assert CallClosed not in kinds
                opened.hand.engine.go()
        assert received == [
            *(Streamed(reasoning=word) for word in ("four", " five", " six")),
            *(Streamed(text=word) for word in ("one", " two", " three")),
        ]
        await opened.check_one_row(calls=1)


@pytest.mark.parametrize(
    ("ask", "error"),
    [
        (chat, lambda: openai.APIError),
        (responses, lambda: openai.APIError),
        (anthropic_messages, lambda: anthropic.APIStatusError),
        (google, lambda: genai.errors.ServerError),
    ],
)
async def test_an_answer_that_is_lost_half_way_is_reported_by_an_error_of_the_client(
    tmp_path: Path, ask: Ask, error: Callable[[], type[Exception]]
) -> None:
    """Not sampled again: the client has seen a part of it."""
    received: list[Streamed] = []

    async def listen(opened: Served) -> None:
        async for piece in ask(opened, "break half-way"):
            received.append(piece)
            if piece.text:
                opened.hand.engine.go()

    async with served(tmp_path, SCRIPT, streaming=Streaming.LIVE) as opened:
        with pytest.raises(error(), match="service unavailable: the engine does not answer"):
            await listen(opened)
        text = "".join(piece.text for piece in received)
        assert text
        assert "one two three".startswith(text)  # on a busy machine the last words were not out yet
        assert len(opened.hand.engine.ledger) == 1


@every_dialect
async def test_a_client_that_closes_its_stream_in_mid_answer_stops_the_sampling(tmp_path: Path, ask: Ask) -> None:
    """What was sampled is kept and not trained."""
    async with served(tmp_path, SCRIPT, streaming=Streaming.LIVE) as opened:
        async with aclosing(ask(opened, "step by step")) as pieces:
            while await anext(pieces) == Streamed():
                pass
        (entry,) = await opened.hand.engine.recorded(1)
        assert entry.aborted
        closed = await opened.hand.until("s1", CallClosed)
        assert closed.choices[0].finish_reason is FinishReason.ABORTED
        assert (await opened.sealed()).accounting.delivered == 0
