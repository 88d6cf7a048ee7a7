"""The command line's frame: quick help, and one clear line for wrong words."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.forks import Command

from evener.cli.up import SERVICES
from evener.harnesses.npm import brings_node
from evener.harnesses.registry import names

HEAVY = ("numpy", "aiohttp", "tokenizers", "starlette", "uvicorn", "aiokafka", "obstore", "pyarrow", "jinja2", "opentelemetry")
SERVING = ("starlette", "uvicorn", "opentelemetry", "prometheus_client", "structlog", "obstore")
HELPS = (
    "--help",
    "up --help",
    "run --help",
    "cancel --help",
    "report --help",
    "runs --help",
    "harness show --help",
    "demo --help",
    "record --help",
    "show --help",
    "rebuild --help",
    "policy publish --help",
    "groups export --help",
    "harness --help",
    "engine scripted --help",
    "engine embedded --help",
    "engine join --help",
    "harness check --help",
)
ROOT = Path(__file__).parents[3]
BUNDLED = ROOT / "libs/evener/tasks/bundled"

TELLS_IMPORTS = """
import sys
from evener.cli.__main__ import main
try:
    main()
finally:
    print(*sys.modules, file=sys.stderr)
"""


def evener(*words: str, state: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end."""
    environ = {name: value for name, value in os.environ.items() if name != "EVENER_URL"}
    if state is not None:
        environ["XDG_STATE_HOME"] = str(state)
    return subprocess.run(
        [sys.executable, "-m", "evener.cli", *words], capture_output=True, text=True, env=environ, check=False, timeout=60
    )


def forked(*words: str, state: Path) -> tuple[int | None, str]:
    """Run a command to its end in a fork; return its exit code, and what it says on stderr."""
    command = Command("-m", "evener.cli", *words, environment=os.environ | {"XDG_STATE_HOME": str(state)})
    _, errors = command.communicate()
    return command.returncode, errors


@pytest.mark.parametrize("words", HELPS)
def test_help_imports_nothing_heavy(words: str) -> None:
    """It answers before a person wonders."""
    told = subprocess.run([sys.executable, "-c", TELLS_IMPORTS, *words.split()], capture_output=True, text=True, check=False)
    imported = told.stderr.split()

    assert told.returncode == 0, told.stderr
    assert "cyclopts" in imported
    assert [name for name in HEAVY if name in imported] == []
    assert len(told.stdout.splitlines()) > 5


@pytest.mark.parametrize("service", SERVICES)
def test_help_of_a_service_imports_nothing_heavy(service: str) -> None:
    """Nor does a wrong option: a container that cannot start says so at once."""
    run = f"runpy.run_module('evener.{service}', run_name='__main__')"
    program = f"import runpy, sys\ntry:\n    {run}\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    told = subprocess.run([sys.executable, "-c", program, "--help"], capture_output=True, text=True, check=False)

    assert told.returncode == 0, told.stderr
    assert [name for name in HEAVY if name in told.stderr.split()] == []
    assert "--log-level" in told.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nosuch"], 'evener: Unknown command "nosuch".'),
        (["run"], 'evener: Command "run" parameter --tasks requires an argument.'),
        (["run", "/nowhere", "--harness", "script"], '"/nowhere" does not exist'),
        (
            ["eval", str(BUNDLED), "nosuch", "--harness", "script"],
            'Invalid value for TASKS. "nosuch" does not exist.',
        ),
        (["run", str(BUNDLED), "--harness", "scrip"], "unknown harness 'scrip' (known: "),
        (["run", str(BUNDLED), "--harness", "script", "--option.turn", "x"], "harness script has no option 'turn'"),
        (["run", str(BUNDLED), "--harness", "script", "--sampling.temp", "1"], "unknown key 'temp' in --sampling.temp"),
        (["run", str(BUNDLED), "--harness", "script", "--sampling.top-p", "2"], "--sampling.top-p: Expected `float` <= 1.0"),
        (
            ["run", str(BUNDLED), "--harness", "script", "--sampling.temperature", "inf"],
            "--sampling.temperature: Expected `float` <= 100.0",
        ),
        (["run", str(BUNDLED), "--harness", "script", "--sampling.temperature", "nan"], "--sampling.temperature: "),
        (["run", str(BUNDLED), "--harness", "script", "--samples", "many"], "many"),
        (["harness", "check", "scrip"], "unknown harness 'scrip' (known: "),
        (["harness", "check", "codex", "--sandbox", "local"], "give --trust-local if you trust the tasks and the model"),
        (["harness", "check", "command", "--option.argv", '["true"]'], "harness command cannot be checked: its tools are not known"),
        (["harness", "check", "codex", "--option.tools", "some"], "option tools is 'some', not one of all, lean"),
        (["harness", "show", "nosuch"], "unknown harness 'nosuch'"),
        (["harness", "install", "nosuch"], "unknown harness 'nosuch'"),
        (["harness", "install"], "name the harnesses to install (claude_code, codex, gemini_cli, "),
        (["groups", "export", "--out", "rows.jsonl", "--purpose", "evil"], "evil"),
        (["groups", "export", "--out", "rows.txt", "--format", "csv"], "--format 'csv' is not one of jsonl, parquet"),
        (["groups", "export", "--out", "rows.txt"], "cannot tell the format of rows.txt: call it *.jsonl or *.parquet"),
        (["rebuild"], "name sessions, or give --since or --run"),
        (["rebuild", "a.0", "--since", "2h"], "sessions by name and --since or --run contradict each other"),
        (["rebuild", "--since", "yesterday"], "--since 'yesterday' is neither an ISO time"),
        (["rebuild", "a.0", "--strategy", "three"], "three"),
        (["record", "--", "/no/such/program"], "there is no program '/no/such/program'"),
        (["record", "--", "/etc/passwd"], "'/etc/passwd' is not executable"),
        (["record", "--task", str(BUNDLED / "small-sum"), "--reward", "1"], "--reward and --task contradict each other"),
        (["up", "--prot", "1"], "Unknown option: --prot. Did you mean --port?"),
        (["up", "--scheduler.leases", "1"], "Unknown option: --scheduler.leases. Did you mean --scheduler.lease-seconds?"),
        (["up", "--log-level", "loud"], 'Invalid value "loud" for --log-level. Choose from: "debug", "info", "warning", "error"'),
        (["up", "--engine-kind", "foo"], "--engine-kind 'foo' is not one of embedded, scripted, vllm, vllm_chat"),
        (["up", "--partitions", "0"], "--partitions: Expected `int` >= 1"),
        (["up", "--engine", "banana"], "--engine 'banana' is not embedded, vllm, none or a base URL such as http://127.0.0.1:8000"),
        (
            ["up", "--model", "Qwen/Qwen3-0.6B"],
            "Qwen/Qwen3-0.6B: No such file or directory. Evener does not download from a model hub: name a ",
        ),
        (
            ["doctor", "--policy", "hf:Qwen/Qwen3-0.6B"],
            "policy source hf:Qwen/Qwen3-0.6B: No such file or directory. Evener does not download from a model hub: name a GGUF file",
        ),
        (
            ["up", "--provider-gateway.policies", '[{"name": "policy", "source": "hf:Qwen/Qwen3-0.6B"}]'],
            "policy source hf:Qwen/Qwen3-0.6B: No such file or directory. Evener does not download from a model hub: name a GGUF file",
        ),
        (["up", "--model", "/no/such.gguf"], "model /no/such.gguf: No such file or directory"),
        (["up", "--model", __file__], "is not a GGUF file"),
        (["run", str(BUNDLED), "--harness", "script", "--samples", "0"], 'Invalid value "0" for --samples. Must be >= 1'),
        (["run", str(BUNDLED), "--harness", "script", "--run-id", "a b"], "--run-id 'a b' is not 1 to 60 letters, digits"),
        (["run", str(BUNDLED), "--harness", "pi", "--sandbox", "local"], "give --trust-local if you trust the tasks and the model"),
        (["demo", "--harness", "pi", "--sandbox", "local"], "give --trust-local if you trust the tasks and the model"),
        (["dead-letters", "replay"], "name records (TOPIC/PARTITION@OFFSET), or filter, or give --all"),
        (["dead-letters", "replay", "sessions/0@1", "--all"], "name records (TOPIC/PARTITION@OFFSET), or filter, or give --all"),
        (["dead-letters", "replay", "sessions"], "'sessions' is not TOPIC/PARTITION@OFFSET, such as sessions/3@17"),
        (["dead-letters", "list", "--since", "yesterday"], "--since 'yesterday' is neither an ISO time"),
        (["topics", "diff", "--bus", "kafka:here"], "bus kafka:here is neither embedded:FOLDER nor kafka://HOST:PORT"),
        (["doctor", "--template", "chatml_tools"], "--template is another template of a policy: name it with --policy"),
        (["show", "a.0", "--json", "--tokens", "0"], "--messages, --tokens, --grader and --json contradict each other: give one"),
        (["show", "a.0", "--messages", "--tokens"], "--messages, --tokens, --grader and --json contradict each other: give one"),
        (["show", "a.0", "--messages", "--json"], "--messages, --tokens, --grader and --json contradict each other: give one"),
        (["record", "--harness", "pi", "--quirks", __file__, "--", "true"], "--harness and --quirks contradict each other"),
        (["record", "--harness", "codx", "--", "true"], "unknown harness 'codx'"),
        (["record", "--quirks", __file__, "--", "true"], "cannot read the quirks in"),
        (["run", str(BUNDLED), "--harness", "command", "--option.argv", '["true"]', "--quirks", __file__], "cannot read the quirks in"),
        (["record", "--reward", "nan", "--", "true"], "--reward nan is not a finite number"),
        (["record", "--sampling.top-p", "2", "--", "true"], "--sampling.top-p: Expected `float` <= 1.0"),
        (["record", "--task", "/nowhere", "--", "true"], '"/nowhere" does not exist'),
        (["up", "--bus", "redis://x", "--port", "0"], "bus redis://x is neither embedded:FOLDER nor kafka://HOST:PORT"),
    ],
)
def test_wrong_words_are_reported_in_one_line_with_code_2(words: list[str], told: str, tmp_path: Path) -> None:
    """What is wrong, and how to mend it; never a traceback."""
    code, errors = forked(*words, state=tmp_path)
    last = errors.splitlines()[-1]

    assert code == 2, errors
    assert told in last
    assert last.startswith("evener: ")
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nosuch"], "evener --help"),
        (["groups", "nosuch"], "evener groups --help"),
        (["groups", "export"], "evener groups export --help"),
        (["groups", "export", "--out", "rows.txt"], "evener groups export --help"),
        (["up", "--prot", "1"], "evener up --help"),
        (["eval", "nosuch", "--harness", "script"], "evener eval --help"),
        (["eval", "--harness", "script"], "evener eval --help"),
        (["record", "--reward", "nan", "--", "harness", "show"], "evener record --help"),
    ],
)
def test_wrong_words_name_the_help_of_their_command(words: list[str], told: str, tmp_path: Path) -> None:
    """The help of all of Evener lists commands, not the arguments of one."""
    code, errors = forked(*words, state=tmp_path)

    assert code == 2, errors
    assert re.findall(r"evener [a-z ]*--help", errors) == [told]


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({}, "holds no task"),
        ({"t/instruction.md": ""}, "instruction.md is empty"),
        ({"t/instruction.md": "Do it."}, "has neither tests/test.sh nor a grader"),
        ({"t/instruction.md": "Do it.", "t/task.toml": "[task"}, "task.toml"),
        (
            {"t/instruction.md": "Do it.", "t/tests/test.sh": "", "t/environment/Dockerfile": "FROM x"},
            "needs what the sandbox `local` cannot give: an image of its own",
        ),
    ],
)
def test_wrong_task_is_reported_before_anything_is_started(files: dict[str, str], told: str, tmp_path: Path) -> None:
    """Nothing to run, so nothing runs."""
    tasks = tmp_path / "tasks"
    tasks.mkdir()
    for name, text in files.items():
        (tasks / name).parent.mkdir(parents=True, exist_ok=True)
        (tasks / name).write_text(text)
    code, errors = forked("run", str(tasks), "--harness", "script", state=tmp_path / "state")

    assert code == 1
    assert told in errors
    assert errors.count("\n") == 1
    assert not (tmp_path / "state").exists()


def test_help_of_run_names_all_harnesses_and_where_their_options_are() -> None:
    """And each says its own."""
    told = " ".join(evener("run", "--help").stdout.split())
    shown = evener("harness", "show", "pi").stdout

    assert [name for name in names() if name not in told] == []
    assert "evener harness show NAME" in told
    assert "`context_tokens`" in shown


def test_debug_shows_where_an_error_comes_from(tmp_path: Path) -> None:
    """For those who mend Evener itself."""
    ended = evener("groups", "export", "--out", "rows.txt", "--debug", state=tmp_path)

    assert "Traceback" in ended.stderr


def test_state_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    """The disk's own words, in one line."""
    (tmp_path / "evener").write_text("a file")
    ended = evener("up", "--port", "0", state=tmp_path)

    assert ended.returncode == 1
    assert ended.stderr.count("\n") == 1
    assert str(tmp_path / "evener") in ended.stderr


def test_doctor_says_what_is_there_and_how_to_get_the_rest(tmp_path: Path) -> None:
    """JSON lines where nobody watches; 0 as long as what every use needs is there."""
    ended = evener("doctor", state=tmp_path)

    assert ended.returncode == 0, ended.stderr
    assert '"what":"Python","good":true' in ended.stdout
    assert '"what":"evener up","good":false,"found":"nothing"' in ended.stdout


def test_doctor_asks_for_node_as_the_harness_does(tmp_path: Path) -> None:
    """Where a bundle can hold a Node of its own, an old one or none is no fault."""
    node = tmp_path / "node"
    node.write_text("#!/bin/sh\necho v18.20.4\n")
    node.chmod(0o755)
    environ = os.environ | {"PATH": f"{tmp_path}:/bin:/usr/bin", "XDG_STATE_HOME": str(tmp_path)}
    told = subprocess.run([sys.executable, "-m", "evener.cli", "doctor"], capture_output=True, text=True, env=environ, check=True)
    check = next(check for check in map(json.loads, told.stdout.splitlines()) if check["what"].startswith("Node.js"))

    assert check["good"] is brings_node()
    assert check["found"].startswith("v18.20")
    assert check["mend"] == "install Node.js 22.19 or later, with npm"


def test_dead_evener_is_reported(tmp_path: Path) -> None:
    """The URL that was given does not answer. A command that only asks imports nothing that serves."""
    environ = os.environ | {"EVENER_URL": "http://127.0.0.1:9", "EVENER_OPERATOR_TOKEN": "t", "XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", TELLS_IMPORTS, "show", "x.0"]
    ended = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)
    imported = ended.stderr.split()

    assert ended.returncode == 1
    assert ended.stderr.startswith("evener: no evener is running at http://127.0.0.1:9. Start Evener with `evener up`")
    assert "aiohttp" in imported
    assert [name for name in SERVING if name in imported] == []


def test_url_that_is_none_is_reported(tmp_path: Path) -> None:
    """Before anything is asked."""
    environ = os.environ | {"EVENER_URL": "banana", "XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "evener.cli", "show", "x.0"]
    ended = subprocess.run(command, capture_output=True, text=True, env=environ, check=False)

    assert ended.returncode == 2
    assert ended.stderr.startswith("evener: EVENER_URL is 'banana', not the base URL of an Evener")


def test_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    """`evener doctor | head -1` ends quietly."""
    environ = os.environ | {"XDG_STATE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "evener.cli", "doctor"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        errors = process.stderr.read()

    assert (process.returncode, errors) == (0, "")
