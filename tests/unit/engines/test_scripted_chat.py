"""The scripted engine's chat endpoint: the same script and the same ledger as by ids."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.commands import run
from tests.support.engines import Play
from tests.unit.engines.conftest import Connect

from evener.engines.scripted import Script, Step, ToolCall, Wait

MESSAGES = [{"role": "user", "content": "Go"}]
TOOLS = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}]
CALLS = Script(default=Step(say="Let me see.", tool_calls=(ToolCall(name="bash", arguments={"cmd": "ls"}), ToolCall(name="bash"))))


def body(**changes: Any) -> dict[str, Any]:
    return {"messages": MESSAGES, "tools": TOOLS, "return_token_ids": True, "request_id": "c1"} | changes


def joined(events: list[Any]) -> tuple[str, list[Any], list[int], str]:
    """Return text, tool calls, ids and the finish reason of a stream."""
    choices = [choice for event in events for choice in event["choices"]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    calls = [call for choice in choices for call in choice["delta"].get("tool_calls", ())]
    return text, calls, [id_ for choice in choices for id_ in choice.get("token_ids") or ()], choices[-1]["finish_reason"]


async def test_tool_calls_are_reported_as_such_whole_and_streamed(play: Play, client: Connect) -> None:
    """No beginning of a call is streamed as text."""
    server = await play(CALLS)
    asking = client(server)
    whole = (await asking.post("/v1/chat/completions", body()))["choices"][0]
    text, calls, ids, reason = joined(await asking.post("/v1/chat/completions", body(stream=True)))
    assert whole["message"]["content"] == text == "Let me see."
    assert [(call["function"]["name"], call["function"]["arguments"]) for call in calls] == [("bash", '{"cmd": "ls"}'), ("bash", "{}")]
    assert [call["function"] for call in whole["message"]["tool_calls"]] == [call["function"] for call in calls]
    assert whole["finish_reason"] == reason == "tool_calls"
    assert whole["token_ids"] == ids


async def test_without_tools_a_call_is_text(play: Play, client: Connect) -> None:
    asking = client(await play(CALLS))
    answer = (await asking.post("/v1/chat/completions", body(tool_choice="none")))["choices"][0]
    assert "<tool_call>" in answer["message"]["content"]
    assert answer["finish_reason"] == "stop"


async def test_the_ledger_has_the_rendered_prompt(play: Play, client: Connect) -> None:
    """The ids that the answer reports are those that were fed, tools and a history with calls included."""
    server = await play(Script(default=Step(say="Done.")))
    asking = client(server)
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": '{"cmd": "ls"}'}}
    history = [
        *MESSAGES,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "a.txt"},
    ]
    answer = await asking.post("/v1/chat/completions", body(messages=history))
    (entry,) = await server.recorded(1)
    assert list(entry.fed_ids) == answer["prompt_token_ids"]
    assert list(entry.sampled_ids) == answer["choices"][0]["token_ids"]
    text = asking.tokenizer.decode(entry.fed_ids, skip_special_tokens=False)
    assert all(word in text for word in ("Go", '"cmd": "ls"', "a.txt", '"name": "bash"'))
    assert (await asking.post("/tokenize", {"messages": history, "tools": TOOLS}))["tokens"] == answer["prompt_token_ids"]


async def test_characters_of_several_tokens_are_streamed_whole(play: Play, client: Connect) -> None:
    asking = client(await play(Script(default=Step(say="🦄 日本"))))
    events = await asking.post("/v1/chat/completions", body(stream=True))
    text, _, ids, _ = joined(events)
    assert text == "🦄 日本"
    assert len(ids) > len(text)
    assert not any("\ufffd" in (choice["delta"].get("content") or "") for event in events for choice in event["choices"])


async def test_a_chat_waits_at_gates_and_is_aborted_too(play: Play, client: Connect) -> None:
    server = await play(Script(default=Step(say="one two three", wait=(Wait(before=2),))))
    asking = client(server)
    answering = asyncio.ensure_future(asking.post("/v1/chat/completions", body(stream=True)))
    await server.waiting()
    await asking.post("/pause?mode=abort")
    _, _, ids, reason = joined(await answering)
    assert (len(ids), reason) == (1, "abort")


@pytest.mark.parametrize("messages", [[{"role": "assistant", "content": "", "tool_calls": [{}]}], [{"role": "user", "content": [{}]}]])
async def test_messages_that_cannot_be_rendered_are_refused(play: Play, client: Connect, messages: object) -> None:
    answer = await client(await play(Script())).post("/v1/chat/completions", {"messages": messages})
    assert answer["error"]["code"] == 400


def test_the_program_serves_until_it_is_told_to_end(tmp_path: Path) -> None:
    """`evener engine scripted`: a JSON line with its URL; after SIGTERM, 0 and a whole ledger."""
    script = tmp_path / "script.toml"
    script.write_text('[default]\nsay = "Yes."\n')
    ledger = tmp_path / "ledger.jsonl"
    command = [sys.executable, "-m", "evener.cli", "engine", "scripted", "--script", str(script), "--ledger", str(ledger)]
    asks = (
        "import json, sys, urllib.request as u;"
        "url = json.loads(sys.argv[1])['url'];"
        "body = json.dumps({'messages': [{'role': 'user', 'content': 'Go'}]}).encode();"
        "ask = u.Request(url + '/v1/chat/completions', body);"
        "print(json.load(u.urlopen(ask))['choices'][0]['message']['content'])"
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout
        line = process.stdout.readline()
        said = subprocess.run([sys.executable, "-c", asks, line], capture_output=True, text=True, check=True).stdout
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    assert said == "Yes.\n"
    assert len(ledger.read_text().splitlines()) == 1


def test_the_program_names_what_is_wrong_with_its_script(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"rules": [{"sya": ""}]}')
    ended = run("engine", "scripted", "--script", str(script))
    assert ended.code == 1
    assert "sya" in ended.errors
    assert len(ended.errors.splitlines()) == 1


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/inference/v1/generate", {"token_ids": [66], "sampling_params": {"stop": ["END"]}}),
        ("/inference/v1/generate", {"token_ids": [66], "sampling_params": {"stop": "END"}, "stream": True}),
        ("/v1/completions", {"prompt": [66], "stop": ["END"]}),
        ("/v1/chat/completions", {"messages": MESSAGES, "stop": ["END"]}),
    ],
)
async def test_stop_strings_are_refused_by_name(play: Play, client: Connect, path: str, asked: dict[str, Any]) -> None:
    """They would not be looked for: a server of vLLM that knows ids alone refuses them, too."""
    server = await play(Script(default=Step(say="Go on END and on.")))
    asking = client(server)
    refused = await asking.post(path, asked)

    assert refused["error"]["code"] == 400
    assert refused["error"]["message"].startswith("stop strings are not supported")
    assert server.ledger == []


@pytest.mark.parametrize(("path", "asked"), [("/inference/v1/generate", {"token_ids": []}), ("/v1/completions", {"prompt": []})])
async def test_a_prompt_without_ids_is_refused(play: Play, client: Connect, path: str, asked: dict[str, Any]) -> None:
    """Whole, and in a stream, where vLLM has said 200 before it looks at the prompt."""
    asking = client(await play(Script()))
    refused = await asking.post(path, {"sampling_params": {}} | asked)

    assert (refused["error"]["code"], refused["error"]["message"]) == (400, "The decoder prompt cannot be empty")
    if path == "/inference/v1/generate":
        (streamed,) = await asking.post(path, {"sampling_params": {}, "stream": True} | asked)
        assert streamed == refused
