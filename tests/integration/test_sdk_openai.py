"""The official OpenAI client, Chat and Responses, as the harness of a real relay, gateway, embedded bus and scripted engine."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from msgspec import Struct
from openai import AsyncOpenAI
from prometheus_client import CollectorRegistry
from tests.integration.gateway import Hand, gateway
from tests.integration.test_gateway import rebuilt

from evener.bus.port import Record
from evener.engines.scripted import Rule, Script, ToolCall
from evener.proto.codec import encode
from evener.proto.ends import End
from evener.proto.fleet import Heartbeat
from evener.proto.sessions import CallClosed, Fidelity, FinishReason, SessionSealed
from evener.proto.spec import Budgets, Sampling
from evener.proto.topics import Topic
from evener.sandbox_runner.clock import AgentClock
from evener.sandbox_runner.exchange import Limits
from evener.sandbox_runner.owners import Owners
from evener.sandbox_runner.relay import LastRequest, Opening, open_relay
from evener.sandbox_runner.relay_client import GatewayClient
from evener.service.telemetry import metrics

NONCE = "evknonce"
LIMITS = Limits(admission_seconds=0.5, call_seconds=30, keep_alive_seconds=0.05, body_bytes=1 << 20)
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
        Rule(match="slowly", say="one two three four five six seven eight nine ten", per_token_ms=40),
        Rule(match="break", fail=500),
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


class Provider(Struct, frozen=True):
    """What the client sees, and what stands behind it."""

    hand: Hand
    client: AsyncOpenAI
    owners: Owners

    def own(self) -> None:
        """The gateway lists all partitions."""
        heartbeat = Heartbeat(
            instance_id="g", service="provider_gateway", address=self.hand.url, boot_id="b", partitions=(0, 1), at=time.time()
        )
        self.owners.read([Record(topic="fleet", partition=0, offset=0, key="g", value=encode(heartbeat), headers=(), timestamp_ms=0)])

    async def sealed(self, code: int = 0) -> Any:
        """End the session; return its trajectory, checked against the engine's ledger."""
        await self.hand.exit("s1", code=code)
        await self.hand.until("s1", SessionSealed)
        return await rebuilt(self.hand, "s1")


@asynccontextmanager
async def provider(
    folder: Path, *, budgets: Budgets | None = None, context: int = 4096, retries: int = 0, owned: bool = True
) -> AsyncIterator[Provider]:
    """Open everything around one session, and a client with its key. `owned`: the relay knows the gateway from the start."""
    async with gateway(folder, SCRIPT, context=context) as hand:
        capability = await hand.start("s1", budgets=budgets, sampling=Sampling(max_tokens=200))
        partition = hand.bus.partition_of(Topic.SESSIONS, "s1")
        opening = Opening(session_id="s1", nonce=NONCE, capability=capability, partition=partition, models=("policy",))
        owners = Owners()
        relay = open_relay(
            opening,
            GatewayClient(hand.http, owners),
            AgentClock(time.monotonic),
            LIMITS,
            metrics=metrics(CollectorRegistry()),
            last=LastRequest(),
        )
        async with relay as url, AsyncOpenAI(base_url=f"{url}/s/any/v1", api_key=NONCE, max_retries=retries) as client:
            opened = Provider(hand, client, owners)
            if owned:
                opened.own()
            yield opened


async def chat_answer(client: AsyncOpenAI, messages: list[Any], *, stream: bool) -> dict[str, Any]:
    """Ask in Chat; return the message as an agent sends it back."""
    if not stream:
        whole = await client.chat.completions.create(model="policy", messages=messages, tools=CHAT_TOOLS)
        return whole.choices[0].message.model_dump(exclude_none=True)
    message: dict[str, Any] = {"role": "assistant", "content": ""}
    async for chunk in await client.chat.completions.create(model="policy", messages=messages, tools=CHAT_TOOLS, stream=True):
        delta = chunk.choices[0].delta
        message["content"] += delta.content or ""
        for call in delta.tool_calls or ():
            message.setdefault("tool_calls", []).append(call.model_dump(exclude={"index"}))
    return message


async def responses_answer(client: AsyncOpenAI, items: list[Any], *, stream: bool) -> list[Any]:
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


def assert_one_row_all_fed(trajectory: Any) -> None:
    assert (trajectory.end, [row.fidelity for row in trajectory.rows], trajectory.doubts) == (End.FINISHED, [Fidelity.FED], ())
    assert trajectory.accounting.delivered == trajectory.accounting.sampled > 0
    assert len(trajectory.calls) == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_tools_over_several_turns_are_one_row(tmp_path: Path, *, stream: bool) -> None:
    """Three calls, each an extension of the last, all fed."""
    async with provider(tmp_path) as opened:
        messages: list[Any] = [{"role": "user", "content": "chat turns"}]
        for result in ("two", "three"):
            messages.append(await chat_answer(opened.client, messages, stream=stream))
            messages.append({"role": "tool", "tool_call_id": messages[-1]["tool_calls"][0]["id"], "content": result})
        last = await chat_answer(opened.client, messages, stream=stream)

        assert last["content"] == "It is done."
        assert_one_row_all_fed(await opened.sealed())


@pytest.mark.parametrize("stream", [False, True])
async def test_responses_tools_over_several_turns_are_one_row(tmp_path: Path, *, stream: bool) -> None:
    """Three kinds of tools called at once; every item goes back as it came."""
    async with provider(tmp_path) as opened:
        items: list[Any] = [{"role": "user", "content": "all turns"}]
        answered = await responses_answer(opened.client, items, stream=stream)
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
        answered = await responses_answer(opened.client, items, stream=stream)
        items += [*answered, {"type": "function_call_output", "call_id": answered[-1]["call_id"], "output": "three"}]
        [last] = await responses_answer(opened.client, items, stream=stream)

        assert last["content"][0]["text"] == "It is done."
        assert_one_row_all_fed(await opened.sealed())


async def test_usage_is_true_in_both(tmp_path: Path) -> None:
    """As many tokens as the engine was fed and sampled."""
    async with provider(tmp_path) as opened:
        chat = await opened.client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "hi"}])
        responses = await opened.client.responses.create(model="policy", input="hi there")
        first, second = await opened.hand.engine.recorded(2)

        assert chat.usage is not None
        assert (chat.usage.prompt_tokens, chat.usage.completion_tokens) == (len(first.fed_ids), len(first.sampled_ids))
        assert responses.usage is not None
        assert (responses.usage.input_tokens, responses.usage.output_tokens) == (len(second.fed_ids), len(second.sampled_ids))
        assert responses.output_text == chat.choices[0].message.content == "Hello there."


async def test_a_bad_field_and_a_wrong_key_are_told_by_their_types(tmp_path: Path) -> None:
    """Without a retry: the default client would try again on anything that could pass."""
    async with provider(tmp_path, retries=2) as opened:
        client = opened.client
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
    async with provider(tmp_path, budgets=Budgets(calls=1), retries=2) as opened:
        client = opened.client
        await client.responses.create(model="policy", input="hi")
        with pytest.raises(openai.BadRequestError, match="budget"):
            await client.responses.create(model="policy", input="again", stream=stream)
        with pytest.raises(openai.BadRequestError, match="budget"):
            await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "again"}], stream=stream)
        assert (await opened.sealed(code=1)).end is End.CALL_BUDGET


async def events_of(client: AsyncOpenAI, api: str, text: str) -> list[Any]:
    """Ask for a stream, and return all of it."""
    return [event async for event in await stream_of(client, api, text)]


async def stream_of(client: AsyncOpenAI, api: str, text: str) -> Any:
    if api == "chat":
        return await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": text}], stream=True)
    return await client.responses.create(model="policy", input=text, stream=True)


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_prompt_beyond_the_context_is_told_by_its_code(tmp_path: Path, api: str) -> None:
    """Before any header: 400 also where a stream was asked for."""
    async with provider(tmp_path, context=64) as opened:
        with pytest.raises(openai.BadRequestError) as overflow:
            await events_of(opened.client, api, "word " * 100)
        assert overflow.value.code == "context_length_exceeded"


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_an_engine_that_fails_under_a_stream_is_told_in_it(tmp_path: Path, api: str) -> None:
    """The headers are out: the client raises from the stream, and does not take it for a lost connection."""
    async with provider(tmp_path) as opened:
        with pytest.raises(openai.APIError) as told:
            await events_of(opened.client, api, "break")
        assert not isinstance(told.value, openai.APIConnectionError)
        assert told.value.code == ("rate_limit_exceeded" if api == "responses" else None)  # what Codex tries again


async def test_overload_before_the_stream_is_tried_again_by_the_client(tmp_path: Path) -> None:
    """503 with Retry-After while no gateway owns the session; both streams succeed at their second try."""
    async with provider(tmp_path, retries=2, owned=False) as opened:
        chat = asyncio.create_task(chat_answer(opened.client, [{"role": "user", "content": "hi"}], stream=True))
        responses = asyncio.create_task(responses_answer(opened.client, [{"role": "user", "content": "hi there"}], stream=True))
        await asyncio.sleep(2 * LIMITS.admission_seconds)
        opened.own()

        assert (await chat)["content"] == "Hello there."
        assert (await responses)[0]["content"][0]["text"] == "Hello there."
        assert len(await opened.hand.engine.recorded(2)) == 2


@pytest.mark.parametrize("api", ["chat", "responses"])
async def test_a_client_that_closes_its_stream_stops_the_sampling(tmp_path: Path, api: str) -> None:
    """At the engine, within a second; what was sampled is kept and not trained."""
    async with provider(tmp_path) as opened:
        streamed = await stream_of(opened.client, api, "slowly")
        await anext(aiter(streamed))
        await asyncio.sleep(0.15)
        await streamed.close()
        (entry,) = await opened.hand.engine.recorded(1, seconds=1.0)
        assert entry.aborted
        closed = await opened.hand.until("s1", CallClosed)
        assert closed.choices[0].finish_reason is FinishReason.ABORTED
        assert (await opened.sealed()).accounting.delivered == 0
