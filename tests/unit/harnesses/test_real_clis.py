"""Codex, Claude Code, Qwen Code, Gemini CLI: what they are started with, and what their exits mean."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evener.harnesses.port import HarnessError, Launch, LaunchContext, Probe
from evener.harnesses.printed import last_event
from evener.harnesses.registry import harness

CLIS = ("codex", "claude_code", "qwen_code", "gemini_cli")
SETTINGS: tuple[dict[str, str], ...] = ({}, {"settings": "plain"}, {"settings": "bare"})
BASE = "http://127.0.0.1:1"
FAILED = b'{"type":"result","subtype":"success","is_error":true,"result":"API Error: 400 no more calls"}'


def launch(name: str, options: Mapping[str, str] = {}, *, instruction: str = "Say hi.", answer_tokens: int | None = None) -> Launch:
    context = LaunchContext(
        instruction=instruction,
        base_url=BASE,
        key="nonce",
        model='m"1',
        answer_tokens=answer_tokens,
        workdir="/x/app",
        home="/x/home/agent",
        options=options,
    )
    harness(name).check(options)
    return harness(name).launch(context, Path("/bundle"))


def codex_config(options: Mapping[str, str] = {}) -> dict[str, Any]:
    return tomllib.loads(launch("codex", options).files["/home/agent/.codex/config.toml"].decode())


def settings(name: str, folder: str, options: Mapping[str, str] = {}, answer_tokens: int | None = None) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(
        launch(name, options, answer_tokens=answer_tokens).files[f"/home/agent/{folder}/settings.json"]
    )
    return found


@pytest.mark.parametrize("name", CLIS)
@pytest.mark.parametrize("instruction", ["--help me", "- first", "@notes.txt", "Say hi.\n\nTwice."])
def test_an_instruction_is_never_read_as_a_flag(name: str, instruction: str) -> None:
    """It stands after `--`, or in the same word as its flag."""
    argv = launch(name, instruction=instruction).argv

    assert argv[-1] == f"--prompt={instruction}" or argv[-2:] == ("--", instruction)


@pytest.mark.parametrize(("name", "flag"), [("claude_code", ""), ("qwen_code", "--prompt="), ("gemini_cli", "--prompt=")])
@pytest.mark.parametrize("instruction", ["/app holds it", "/init holds it"])
def test_an_instruction_is_never_read_as_a_command(name: str, flag: str, instruction: str) -> None:
    """Claude Code finds no command /app, calls no model and exits with 0; Gemini CLI makes another task of /init."""
    assert launch(name, instruction=instruction).argv[-1] == f"{flag} {instruction}"


@pytest.mark.parametrize("name", CLIS)
def test_the_key_and_the_home_are_this_sessions(name: str) -> None:
    """Nothing of the user's own configuration is read, and the key stands in no file and no argument."""
    found = launch(name)
    written = b"".join(found.files.values()).decode()

    assert "nonce" in found.environment.values()
    assert not any("nonce" in word for word in (*found.argv, written))
    assert all(place.startswith("/home/agent/") for place in found.files)


def test_codex_is_told_its_provider_and_nothing_of_others() -> None:
    """No update check, no web search, no look-ups at start; text of the run is quoted."""
    config = codex_config()

    assert config["model"] == 'm"1'
    assert config["model_providers"]["evener"] == {
        "name": "evener",
        "base_url": f"{BASE}/v1",
        "env_key": "EVENER_KEY",
        "wire_api": "responses",
    }
    assert (config["check_for_update_on_startup"], config["web_search"], config["analytics"]) == (False, "disabled", {"enabled": False})
    assert config["features"] == {"plugins": False, "apps": False, "remote_plugin": False}
    assert "model_context_window" not in config


def test_codex_lean_has_no_sub_agents_goals_and_skills() -> None:
    """And it is told the model's context."""
    config = codex_config({"tools": "lean", "context_tokens": "32768", "compact_at_tokens": "30000"})

    assert (config["features"]["multi_agent"], config["features"]["goals"]) == (False, False)
    assert config["skills"] == {"bundled": {"enabled": False}}
    assert (config["model_context_window"], config["model_auto_compact_token_limit"]) == (32768, 30000)


def test_claude_code_is_lean_unless_it_is_told_otherwise() -> None:
    """Lean: the history is only appended to."""
    lean, plain, bare = (launch("claude_code", options).environment for options in SETTINGS)

    assert lean["CLAUDE_CODE_TOTAL_TOKENS_REMINDER"] == "off"
    assert lean.items() > plain.items()
    assert bare.items() - lean.items() == {("CLAUDE_CODE_SIMPLE", "1")}
    assert plain["ANTHROPIC_BASE_URL"] == BASE
    assert plain["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"
    assert {name for name, value in plain.items() if value == 'm"1'} >= {"ANTHROPIC_DEFAULT_HAIKU_MODEL", "CLAUDE_CODE_SUBAGENT_MODEL"}


def test_claude_code_is_told_its_tools_and_its_limits() -> None:
    """The run's limit of an answer holds."""
    found = launch("claude_code", {"tools": "Bash,Read", "context_tokens": "120000"}, answer_tokens=64)

    assert found.argv[found.argv.index("--tools") + 1] == "Bash,Read"
    assert found.environment["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "64"
    assert found.environment["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "120000"


def test_what_would_leave_the_sandbox_is_taken_away() -> None:
    """Web tools that ask hosted models and servers, unless they are asked for."""
    lean, plain, chosen = (launch("claude_code", options).argv for options in ({}, {"settings": "plain"}, {"tools": "WebFetch"}))

    assert lean[lean.index("--disallowedTools") + 1] == "WebSearch,WebFetch"
    assert not {*plain, *chosen} & {"--disallowedTools"}
    assert settings("gemini_cli", ".gemini")["tools"] == {"exclude": ["google_web_search", "web_fetch"]}


def test_qwen_code_speaks_two_dialects() -> None:
    """Each has its own variables."""
    chat, anthropic = launch("qwen_code"), launch("qwen_code", {"dialect": "anthropic"})

    assert chat.argv[chat.argv.index("--auth-type") + 1] == "openai"
    assert chat.environment["OPENAI_BASE_URL"] == f"{BASE}/v1"
    assert anthropic.argv[anthropic.argv.index("--auth-type") + 1] == "anthropic"
    assert anthropic.environment["ANTHROPIC_BASE_URL"] == BASE


def test_qwen_code_keeps_no_memory_and_sends_no_statistics() -> None:
    """A memory would be written by a model call after the last answer."""
    found = settings("qwen_code", ".qwen", {"without": "agent,list_agents", "context_tokens": "32768"})

    assert found["memory"] == {"enableManagedAutoMemory": False}
    assert found["privacy"] == {"usageStatisticsEnabled": False}
    assert found["permissions"] == {"deny": ["agent", "list_agents"]}
    assert found["model"]["generationConfig"] == {"contextWindowSize": 32768}
    assert launch("qwen_code", answer_tokens=64).environment["QWEN_CODE_MAX_OUTPUT_TOKENS"] == "64"


def test_gemini_cli_has_a_concrete_model_and_a_trusted_folder() -> None:
    """Else it asks a router for a model, and a person before each tool."""
    found = launch("gemini_cli")

    assert found.argv[found.argv.index("-m") + 1] == 'm"1'
    assert found.environment["GEMINI_CLI_TRUST_WORKSPACE"] == "true"
    assert settings("gemini_cli", ".gemini")["security"] == {"auth": {"selectedType": "gemini-api-key"}}


def test_gemini_cli_is_told_its_tools_and_its_limits() -> None:
    """It knows contexts as shares of a million tokens."""
    found = settings("gemini_cli", ".gemini", {"tools": "read_file", "compact_at_tokens": "262144"}, answer_tokens=64)
    (override,) = found["modelConfigs"]["customOverrides"]

    assert found["tools"] == {"core": ["read_file"]}
    assert found["model"] == {"compressionThreshold": 0.25}
    assert override == {"match": {"model": 'm"1'}, "modelConfig": {"generateContentConfig": {"maxOutputTokens": 64}}}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("codex", {"tools": "some"}, "option tools is 'some', not one of all, lean"),
        ("codex", {"context_tokens": "many"}, "not a number of tokens"),
        ("claude_code", {"settings": "fat"}, "not one of lean, plain, bare"),
        ("claude_code", {"context_tokens": "32768"}, "less than 100000"),
        ("qwen_code", {"dialect": "google"}, "not one of chat, anthropic"),
        ("gemini_cli", {"context_tokens": "1"}, "no option 'context_tokens'"),
    ],
)
def test_wrong_options_are_named(name: str, options: dict[str, str], message: str) -> None:
    """Before anything is started."""
    with pytest.raises(HarnessError, match=message):
        harness(name).check(options)


@pytest.mark.parametrize(
    ("name", "exit_code", "log", "judged"),
    [
        ("codex", 0, b'{"type":"turn.started"}\n{"type":"turn.completed","usage":{}}', (0, "")),
        ("codex", 1, b'{"type":"turn.failed","error":{"message":"no more calls"}}', (1, "no more calls")),
        ("codex", 0, b'{"type":"turn.started"}', (1, '{"type":"turn.started"}')),
        ("codex", 1, b"Not inside a trusted directory", (1, "Not inside a trusted directory")),
        ("claude_code", 0, b'{"type":"result","subtype":"success","is_error":false,"result":"done"}', (0, "")),
        ("claude_code", 0, FAILED, (1, "API Error: 400 no more calls")),
        ("claude_code", 1, b"Not logged in", (1, "Not logged in")),
        ("claude_code", 0, b"", (1, "")),
        ("qwen_code", 0, b'{"type":"result","is_error":false,"result":"done"}', (0, "")),
        ("qwen_code", 1, b'{"type":"result","is_error":true,"error":{"message":"[API Error: 400]"}}', (1, "[API Error: 400]")),
        ("gemini_cli", 0, b'{"type":"message","content":"\\"status\\""}\n{"type":"result","status":"success"}', (0, "")),
        ("gemini_cli", 144, b'{"type":"result","status":"error","error":{"message":"[API Error: 400]"}}', (144, "[API Error: 400]")),
        ("gemini_cli", 41, b"Invalid auth method selected.", (41, "Invalid auth method selected.")),
        ("gemini_cli", -9, b'{"type":"message"}', (-9, '{"type":"message"}')),
    ],
)
def test_an_exit_is_judged_by_the_last_event(name: str, exit_code: int, log: bytes, judged: tuple[int, str]) -> None:
    """Exit codes lie."""
    found = harness(name).exit_meaning(exit_code, log)

    assert (found.exit_code, found.detail) == judged


@pytest.mark.parametrize("name", ["codex", "claude_code", "qwen_code", "gemini_cli"])
@pytest.mark.parametrize("error", [b'"text"', b"null", b'{"message":7}', b"[]", b"[" * 100_000 + b"]" * 100_000, b'"\xff"', b"1" * 5_000])
def test_an_exit_is_judged_whatever_was_printed(name: str, error: bytes) -> None:
    """An agent's tools print to the same output, and programs change their forms."""
    for kind in (b"result", b"turn.failed"):
        found = harness(name).exit_meaning(0, b'{"type":"' + kind + b'","is_error":true,"error":' + error + b',"result":' + error + b"}")
        assert (found.exit_code, type(found.detail)) == (1, str)


def test_events_are_found_in_a_log_that_was_cut() -> None:
    """Lines that are no JSON, or no object, are passed over."""
    assert last_event(b'{"type":"a","n":1}\nnoise\n{"type":"b"}\n{"type":"a", "n', "a") == {"type": "a", "n": 1}
    assert last_event(b"[]\n{}", "a") is None


def test_a_probe_writes_a_file() -> None:
    """By a shell command, or by a tool that writes files."""
    shell = Probe(tool="bash", arguments={"command": "{command}", "timeout": 9})
    tool = Probe(tool="write", arguments={"path": "{path}", "content": "{content}"})

    assert shell.filled("a.txt", "x y") == {"command": "printf '%s' 'x y' > a.txt && cat a.txt", "timeout": 9}
    assert tool.filled("a.txt", "{command}") == {"path": "a.txt", "content": "{command}"}
