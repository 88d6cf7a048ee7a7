"""Harness folders: found by name, launched from data, their exits judged."""

import tomllib
from pathlib import Path

import msgspec
import pytest

from evener.harnesses.mcp import not_taken
from evener.harnesses.port import HarnessError, LaunchContext
from evener.harnesses.registry import harness, names
from evener.tasks.tables import McpServer, Transport

CONTEXT = LaunchContext(
    instruction="Say {model}.", base_url="http://127.0.0.1:1", key="k", model="m", workdir="/x/app", home="/x/home/agent", options={}
)


def with_options(**options: str) -> LaunchContext:
    return msgspec.structs.replace(CONTEXT, options=options)


def test_every_folder_is_a_harness_of_its_name() -> None:
    """Adding one is adding a folder."""
    assert set(names()) >= {"command", "pi", "script"}
    for name in names():
        assert harness(name).name == name


def test_an_unknown_harness_is_refused_with_those_that_there_are() -> None:
    """The user reads this line."""
    with pytest.raises(HarnessError, match=r"unknown harness 'scrip' \(known: .*codex.*script\); did you mean 'script'\?"):
        harness("scrip")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("script", {"turn": "x"}, "no option 'turn'"),
        ("pi", {"context_tokens": "many"}, "not a number"),
        ("openhands", {"context_tokens": "16000"}, "less than 16384, the least that it takes"),
        ("command", {}, "is a JSON array of strings"),
        ("command", {"argv": "ls"}, "is a JSON array of strings"),
        ("command", {"argv": "[]"}, "is empty"),
    ],
)
def test_wrong_options_are_named(name: str, options: dict[str, str], message: str) -> None:
    """Before anything is started."""
    with pytest.raises(HarnessError, match=message):
        harness(name).check(options)


def test_a_command_is_filled_in_once() -> None:
    """What an instruction holds in braces stays as it is."""
    argv = '["run", "{instruction}", "--url={base_url}/v1", "{other}"]'

    launch = harness("command").launch(with_options(argv=argv), Path())

    assert launch.argv == ("run", "Say {model}.", "--url=http://127.0.0.1:1/v1", "{other}")


def test_the_script_harness_gets_its_options_as_variables() -> None:
    """It runs with the sandbox's Python, isolated from what is installed for the user."""
    launch = harness("script").launch(with_options(turns="again\nand again"), Path("/bundle"))

    assert launch.argv == ("python3", "-I", "/bundle/agent.py", "/x/home/agent/instruction.md")
    assert launch.environment["SCRIPT_TURNS"] == "again\nand again"
    assert launch.environment["OPENAI_BASE_URL"] == "http://127.0.0.1:1/v1"
    assert launch.files == {"/home/agent/instruction.md": b"Say {model}."}


def test_pi_never_reads_an_instruction_as_a_flag_or_a_file() -> None:
    """`@notes.txt` is Pi's word for a file, `--help` for help."""
    for text in ("@notes.txt", "--help"):
        launch = harness("pi").launch(msgspec.structs.replace(CONTEXT, instruction=text), Path())
        assert launch.argv[-2:] == ("-p", f" {text}")


@pytest.mark.parametrize(
    ("answer_tokens", "options", "believed"),
    [(None, {}, (8192, 1024)), (128, {}, (8192, 128)), (128, {"context_tokens": "32768", "answer_tokens": "512"}, (36864, 512))],
)
def test_pi_is_told_the_models_context_and_the_length_of_its_answers(
    answer_tokens: int | None, options: dict[str, str], believed: tuple[int, int]
) -> None:
    """The run's limit, unless an option says otherwise; and 4096 tokens more than there are, because it keeps so many free."""
    launch = harness("pi").launch(msgspec.structs.replace(with_options(**options), answer_tokens=answer_tokens), Path())
    (model,) = msgspec.json.decode(launch.files["/home/agent/.pi/agent/models.json"])["providers"]["evener"]["models"]

    assert (model["contextWindow"], model["maxTokens"]) == believed


@pytest.mark.parametrize(
    ("exit_code", "log", "judged"),
    [
        (0, b'{"stopReason":"toolUse"}\n{"stopReason":"stop"}', (0, "")),
        (0, b'{"stopReason":"stop"}\n{"stopReason":"error","errorMessage":"503 no \\"engine\\""}', (1, '503 no \\"engine\\"')),
        (0, b"", (1, "")),
        (1, b"Error: Unknown option: -x", (1, "Error: Unknown option: -x")),
        (-9, b'{"stopReason":"stop"}', (-9, '{"stopReason":"stop"}')),
    ],
)
def test_pis_exit_is_judged_by_its_last_stop_reason(exit_code: int, log: bytes, judged: tuple[int, str]) -> None:
    """Its own exit code is 0 also when the model call failed for good."""
    found = harness("pi").exit_meaning(exit_code, log)

    assert (found.exit_code, found.detail) == judged


SERVERS = (
    McpServer(name="search", transport=Transport.STDIO, command="python3", args=("-m", "search")),
    McpServer(name="maps", transport=Transport.HTTP, url="http://maps/mcp", headers={"x-team": "a"}),
)
STDIO = {"command": "python3", "args": ["-m", "search"]}


def test_mcp_servers_of_a_task_are_told_to_harnesses_in_their_own_words() -> None:
    context = msgspec.structs.replace(CONTEXT, mcp_servers=SERVERS)
    claude = harness("claude_code").launch(context, Path()).argv
    codex = tomllib.loads(next(iter(harness("codex").launch(context, Path()).files.values())).decode())
    gemini, qwen = (
        msgspec.json.decode(next(iter(harness(name).launch(context, Path()).files.values()))) for name in ("gemini_cli", "qwen_code")
    )

    told = msgspec.json.decode(claude[claude.index("--mcp-config") + 1])["mcpServers"]
    assert told == {
        "search": {"type": "stdio", **STDIO},
        "maps": {"type": "http", "url": "http://maps/mcp", "headers": {"x-team": "a"}},
    }
    assert codex["mcp_servers"] == {"search": STDIO, "maps": {"url": "http://maps/mcp", "http_headers": {"x-team": "a"}}}
    assert gemini["mcpServers"] == qwen["mcpServers"]
    assert gemini["mcpServers"] == {
        "search": {**STDIO, "trust": True},
        "maps": {"httpUrl": "http://maps/mcp", "headers": {"x-team": "a"}, "trust": True},
    }


def test_harness_takes_servers_by_their_transport() -> None:
    """Codex knows no server-sent events; the script harness knows no servers."""
    events = McpServer(name="old", transport=Transport.SSE, url="http://old")

    assert not_taken(harness("codex"), SERVERS) is None
    assert not_taken(harness("codex"), (*SERVERS, events)) == (
        "the task brings the MCP server 'old' (sse), which the harness codex does not take"
    )
    assert not_taken(harness("script"), SERVERS) is not None
    assert not_taken(harness("script"), ()) is None
