"""The commands, as a user gives them, on the real model; those that are interrupted on an engine whose answers wait."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from anyio.from_thread import start_blocking_portal
from tests.support.engines import smollm
from tests.support.forks import Command
from tests.support.waiting import block_until

from evener.engines.scripted import Script, scripted_engine
from evener.engines.scripted.script import GATE, Step, Wait
from evener.proto.codec import decode
from evener.proto.trajectories import TrajectoryBuilt

pytestmark = pytest.mark.engine

ROOT = Path(__file__).parents[2]
TASK = ROOT / "libs/evener/tasks/bundled/small-sum"
START_SECONDS = 300.0
ASKS = """
import json, os, urllib.request
body = json.dumps({"model": "any", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8})
headers = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
print(urllib.request.urlopen(urllib.request.Request(url, body.encode(), headers)).read().decode())
"""


class Shell:
    """Gives commands with a state folder of its own."""

    def __init__(self, state: Path) -> None:
        self.state = state / "evener"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("EVENER_")}
        self.environ = environ | {"XDG_STATE_HOME": str(state), "NO_COLOR": "1"}

    def start(self, *words: str) -> Command:
        """Start a command."""
        return Command("-m", "evener.cli", *words, environment=self.environ)

    def run(self, *words: str, code: int = 0) -> str:
        """Run a command to its end; return its output."""
        process = self.start(*words)
        out, errors = process.communicate()
        assert process.returncode == code, errors
        return out if code == 0 else errors

    def lines(self, *words: str) -> list[Any]:
        """Run a command; return its JSON lines."""
        return [json.loads(line) for line in self.run(*words).splitlines()]


class SlowShell(Shell):
    """Gives commands that start services of their own, on an engine whose answers wait."""

    def __init__(self, state: Path, engine: str, go: Callable[[], None]) -> None:
        super().__init__(state)
        self.environ |= {"EVENER_UP_ENGINE": engine, "EVENER_UP_ENGINE_KIND": "scripted"}
        self.go = go
        """Lets all answers come."""


@pytest.fixture
def slow_shell(tmp_path: Path) -> Iterator[SlowShell]:
    """Commands that cannot have ended before a test interrupts them."""
    waits = Script(default=Step(say="It is 7.", wait=(Wait(before=1),)))
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(scripted_engine(waits, smollm())) as engine:
        yield SlowShell(tmp_path / "state", engine.url, lambda: portal.call(engine.go, GATE, None))


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Commands beside a running `evener up`."""
    shell = Shell(tmp_path_factory.mktemp("state"))
    up = shell.start("up", "--port", "0", "--log-level", "error")
    block_until(lambda: (shell.state / "evener.json").exists() or up.returncode is not None, seconds=START_SECONDS)
    assert up.returncode is None, up.communicate()[1]
    yield shell
    up.send_signal(signal.SIGTERM)
    _, errors = up.communicate()
    assert up.returncode == 0, errors


def test_run_shows_progress_and_the_same_run_again_changes_nothing(shell: Shell) -> None:
    """A run id of one's own makes a submission idempotent."""
    words = ("run", str(TASK), "--harness", "script", "--samples", "2", "--run-id", "twice", "--sampling.max-tokens", "16")
    first, again = shell.lines(*words), shell.lines(*words)
    begun, task, summary = first

    assert begun == {"run": "twice", "tasks": 1}
    assert task["outcome"] == "merged"
    assert len(task["rewards"]) == 2
    assert (summary["outcomes"], summary["ends"]) == ({"merged": 1}, {"finished": 2})
    assert summary["sampled"] == summary["delivered"] + sum(summary["excluded"].values()) > 0
    assert again == first


def test_run_with_nothing_to_train_is_reported_before_and_after_and_by_its_exit_code(shell: Shell) -> None:
    """The embedded engine's logprobs are those of temperature 1."""
    words = ("run", str(TASK), "--harness", "script", "--samples", "2", "--sampling.temperature", "0.7", "--sampling.max-tokens", "8")
    before, after = [line for line in shell.run(*words, code=3).splitlines() if "can be trained" in line]

    assert before.startswith("evener: warning: nothing of this run can be trained: with temperature 0.7 the logprobs that engine ")
    assert "merged, but nothing of it can be trained: all sampled tokens are excluded: constrained" in after


def test_prompt_that_does_not_fit_is_reported_with_its_numbers(shell: Shell, tmp_path: Path) -> None:
    """When the first session ends by it, and in `show`; a run that sampled nothing is no success."""
    (tmp_path / "instruction.md").write_text("word " * 6000)
    (tmp_path / "task.toml").write_text('[metadata.evener]\ngrader = "answer"\nexpected = "word"\n')
    process = shell.start("run", str(tmp_path), "--harness", "script", "--samples", "2", "--run-id", "long")
    out, errors = process.communicate()
    session = json.loads(out.splitlines()[1])["task_id"] + ".0"
    shown = shell.run("show", session)

    assert process.returncode != 0
    numbers = "this model's maximum context length is 4096 tokens; the messages have 6152"
    assert "ended by context_overflow" in errors
    assert numbers in errors
    assert f"failed: context_overflow ({numbers})" in shown


def test_evaluated_groups_never_reach_trainers(shell: Shell, tmp_path: Path) -> None:
    """They are kept beside."""
    words = ("run", str(TASK), "--harness", "script", "--samples", "1", "--purpose", "eval", "--run-id", "judged")
    (told,) = shell.lines(*words, "--sampling.max-tokens", "8")[1:-1]
    process = shell.start("groups", "export", "--run-id", "judged", "--out", str(tmp_path / "t.jsonl"))
    out, warned = process.communicate()
    trained = json.loads(out)
    (judged,) = shell.lines("groups", "export", "--run-id", "judged", "--purpose", "eval", "--out", str(tmp_path / "e.jsonl"))
    (both,) = shell.lines("groups", "export", "--run-id", "judged", "--purpose", "all", "--out", str(tmp_path / "a.jsonl"))
    rows = [json.loads(line) for line in (tmp_path / "e.jsonl").read_text().splitlines()]

    assert told["outcome"] == "kept"
    assert (trained["groups"], judged["groups"], both["groups"]) == (0, 1, 1)
    assert trained["other_purposes"] == {"eval": 1}
    assert "groups of other purposes are not exported (1 eval): use --purpose eval or --purpose all" in warned
    assert {row["purpose"] for row in rows} == {"eval"}


def test_recorded_program_gives_a_trajectory(shell: Shell, tmp_path: Path) -> None:
    """Any program that finds its provider in its environment; the reward is given by hand."""
    out = shell.run("record", "--reward", "0.5", "--sampling.max-tokens", "9", "--", sys.executable, "-c", ASKS)
    opened, _, ended = (json.loads(line) for line in out.splitlines())
    tree = shell.run("show", opened["session"])
    shown = shell.run("show", opened["session"], "--messages")
    as_tokens = shell.run("show", opened["session"], "--tokens")
    row = shell.run("show", opened["session"], "--tokens", "0")
    as_json = json.loads(shell.run("show", opened["session"], "--json"))
    export = ("groups", "export", "--purpose", "collect", "--out")
    rows = {suffix: shell.lines(*export, str(tmp_path / f"rows.{suffix}")) for suffix in ("jsonl", "parquet")}
    (as_datums,) = shell.lines(*export, str(tmp_path / "datums.jsonl"), "--format", "tinker")

    assert as_datums["rows"] == 0
    assert ["is of purpose collect" in why for why in as_datums["refused"].values()] == [True]
    assert (ended["exit_code"], ended["rewards"]) == (0, [0.5])
    assert "#1 root: first" in tree
    assert "Say hello." in shown
    assert "'<|im_start|>'" in row
    assert "<|im_start|>user\nSay hello.<|im_end|>" in as_tokens
    assert as_json["trajectory"]["termination_reason"] == "finished"
    assert as_json["trajectory"]["spec"]["sampling"]["max_tokens"] == 9
    assert rows["jsonl"][0]["rows"] == rows["parquet"][0]["rows"] > 0
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == rows["jsonl"][0]["rows"]
    assert pq.read_table(tmp_path / "rows.parquet").num_rows == rows["parquet"][0]["rows"]


def test_recording_with_quirks_names_what_is_in_no_row(shell: Shell, tmp_path: Path) -> None:
    """The file says that the program's one call is not the agent's work; the last line counts it, and a sentence says why."""
    (tmp_path / "mine.toml").write_text('[[side_calls]]\nname = "greeting"\nlast = "^Say hello"\n')
    process = shell.start("record", "--quirks", str(tmp_path / "mine.toml"), "--", sys.executable, "-c", ASKS)
    out, errors = process.communicate()
    ended = json.loads(out.splitlines()[-1])

    assert process.returncode == 0, errors
    assert (ended["termination_reason"], ended["calls"], ended["rows"]) == ("finished", 1, 0)
    assert ended["excluded"] == {"side_call": ended["tokens"]}
    assert f"{ended['tokens']} of its {ended['tokens']} sampled tokens are in no row: {ended['tokens']} side_call" in errors
    assert json.loads(shell.run("show", ended["session"], "--json"))["calls"][0]["side_call"] == "greeting"


def test_rebuilt_sessions_are_as_recorded(shell: Shell, tmp_path: Path) -> None:
    """By name, since a time, of a run; what was built can be kept. One that is not there is told, and the others are rebuilt."""
    words = ("run", str(TASK), "--harness", "script", "--samples", "2", "--run-id", "again", "--sampling.max-tokens", "8")
    (task_id,) = {line["task_id"] for line in shell.lines(*words)[1:-1]}
    out = shell.run("rebuild", f"{task_id}.0", "--out", str(tmp_path / "built"))
    told = shell.lines("rebuild", "--since", "1h", "--run", "again", "--json")
    event = decode((tmp_path / "built" / f"{task_id}.0.msgpack").read_bytes())
    lines = (tmp_path / "built" / f"{task_id}.0.jsonl").read_text().splitlines()
    missing = shell.run("rebuild", "nothing.0", f"{task_id}.1", code=1)

    assert f"{task_id}.0  " in out
    assert "equal  from the log" in out
    assert sorted(line["session_id"] for line in told) == [f"{task_id}.0", f"{task_id}.1"]
    assert [line["equal"] for line in told] == [True, True]
    assert isinstance(event, TrajectoryBuilt)
    assert [json.loads(line)["rollout_id"] for line in lines] == [event.session_id] * len(event.rows)
    assert missing == "evener: no session 'nothing.0' in the log\n"


def test_program_that_fails_gives_its_exit_code(shell: Shell) -> None:
    """`record` stands between a script and its program without being seen."""
    process = shell.start("record", "--", sys.executable, "-c", "raise SystemExit(3)")
    process.communicate()

    assert process.returncode == 3


def test_recording_without_a_program_stays_open_until_ctrl_c(shell: Shell) -> None:
    """For a conversation by hand with the printed base URL and key."""
    process = shell.start("record")
    opened = json.loads(process.stdout.readline())
    environ = shell.environ | {"OPENAI_BASE_URL": f"{opened['base_url']}/v1", "OPENAI_API_KEY": opened["key"]}
    answered = subprocess.run([sys.executable, "-c", ASKS], env=environ, capture_output=True, text=True, check=False)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate()

    assert answered.returncode == 0, answered.stderr
    assert process.returncode == 0, errors
    assert json.loads(out.splitlines()[-1])["session"] == opened["session"]
    assert "Say hello." in shell.run("show", opened["session"], "--messages")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_left_run_continues_and_the_same_command_shows_it_again(shell: Shell, number: signal.Signals) -> None:
    """Ctrl-C ends the waiting, and nothing else: the same sessions come to their end."""
    run_id = f"left-{number.name}"
    words = ("run", str(TASK), "--harness", "script", "--samples", "4", "--run-id", run_id, "--sampling.max-tokens", "24")
    process = shell.start(*words)
    process.stdout.readline()
    process.send_signal(number)
    _, errors = process.communicate()
    again = shell.lines(*words)

    assert process.returncode == 128 + number
    assert f"evener: run {run_id} continues in the services at http://127.0.0.1:" in errors
    assert f"the same command with --run-id {run_id} shows it again; `evener cancel {run_id}` ends it" in errors
    assert (again[-1]["outcomes"], again[-1]["ends"]) == ({"merged": 1}, {"finished": 4})
    assert again[-2]["attempts"] == 4


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_run_with_its_own_services_stops_where_it_is_and_continues(slow_shell: SlowShell, number: signal.Signals, code: int) -> None:
    """Whoever leaves it takes the services along, also with the terminal; the next start does the rest."""
    shell = slow_shell
    words = ("run", str(TASK), "--harness", "script", "--samples", "4", "--run-id", "left", "--sampling.max-tokens", "32")
    process = shell.start(*words)
    process.stdout.readline()
    process.send_signal(number)
    told = process.stderr.readline()
    shell.go()
    process.communicate()
    assert process.returncode == code
    assert "evener: run left is paused (Ctrl-C again: stop at once); the same command with --run-id left continues it" in told
    assert not (shell.state / "evener.json").exists()

    assert shell.lines(*words)[-1]["outcomes"] == {"merged": 1}


def test_run_whose_lines_nobody_reads_says_that_it_is_left(slow_shell: SlowShell) -> None:
    """`evener run ... | head -1` would look as if the run had ended well."""
    words = ("run", str(TASK), "--harness", "script", "--samples", "2", "--run-id", "unread", "--sampling.max-tokens", "32")
    process = slow_shell.start(*words)
    process.stdout.readline()
    process.stdout.close()
    slow_shell.go()
    _, errors = process.communicate()

    assert process.returncode == 141
    assert "run unread is left before its end; the same command with --run-id unread continues it" in errors


def test_ctrl_c_before_anything_was_submitted_says_so(slow_shell: SlowShell) -> None:
    """While the services of the command's own start."""
    process = slow_shell.start("run", str(TASK), "--harness", "script")
    block_until((slow_shell.state / "up.log").exists, seconds=START_SECONDS)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()

    assert (process.returncode, errors) == (130, "evener: interrupted before anything was submitted\n")


def test_second_ctrl_c_ends_a_run_at_once(slow_shell: SlowShell) -> None:
    """And its services with it."""
    process = slow_shell.start("run", str(TASK), "--harness", "script", "--samples", "4", "--sampling.max-tokens", "512")
    process.stdout.readline()
    pid = json.loads((slow_shell.state / "evener.json").read_bytes())["pid"]
    os.kill(pid, signal.SIGSTOP)  # it cannot drain
    process.send_signal(signal.SIGINT)
    while "is paused" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    process.communicate()

    assert process.returncode == 130
    block_until(lambda: not Path(f"/proc/{pid}").exists(), seconds=START_SECONDS)


def test_cancelled_run_ends_and_keeps_what_was_delivered(shell: Shell, tmp_path: Path) -> None:
    """By the run's name; an unknown run is an error. Sessions that ended before are too few for a group."""
    words = ("--samples", "32", "--group.min-usable", "32", "--run-id", "enough", "--sampling.max-tokens", "512")
    process = shell.start("run", str(TASK), "--harness", "script", *words)
    process.stdout.readline()
    (cancelled,) = shell.lines("cancel", "enough")
    out, errors = process.communicate()
    unknown = shell.run("cancel", "enouhg", code=1)

    assert cancelled == {"run": "enough", "cancelled": 1, "ended_before": 0, "ending": 0}
    assert process.returncode == 1
    assert json.loads(out.splitlines()[-1])["outcomes"] == {"cancelled": 1}
    assert "cancelled by its user" in errors
    assert "there is no run 'enouhg'; did you mean 'enough'?" in unknown
    assert shell.lines("groups", "export", "--run-id", "enough", "--out", str(tmp_path / "x.jsonl"))[0]["rows"] == 0


def test_report_of_any_run_lists_its_sessions(shell: Shell, tmp_path: Path) -> None:
    """Not the demo's alone. A run that is not there, and a folder that is not there, are told."""
    words = ("run", str(TASK), "--harness", "script", "--samples", "3", "--run-id", "told", "--sampling.max-tokens", "8")
    (task_id,) = {line["task_id"] for line in shell.lines(*words)[1:-1]}
    (reported,) = shell.lines("report", "told", "--out", str(tmp_path / "report.html"))
    page = (tmp_path / "report.html").read_text()
    unknown = shell.run("report", "tolt", "--out", str(tmp_path / "x.html"), code=1)
    nowhere = shell.run("report", "told", "--out", str(tmp_path / "nosuch/x.html"), code=1)

    assert (reported["groups"], reported["not_ended"], reported["bytes"]) == (1, 0, len(page.encode()))
    assert all(f"{task_id}.{index}</a>" in page for index in range(3))
    assert "there is no run 'tolt'; did you mean 'told'?" in unknown
    assert f"there is no folder {tmp_path}/nosuch" in nowhere


def test_unknown_session_is_reported(shell: Shell) -> None:
    """By the one who looked for it."""
    assert "no session 'nothing.0' in the log" in shell.run("show", "nothing.0", code=1)


def test_demo_that_is_left_says_how_its_run_is_ended(slow_shell: SlowShell, tmp_path: Path) -> None:
    """It went on with the next command, and nobody knew its name."""
    shell = slow_shell
    shell.environ["EVENER_STOP_SECONDS"] = "1"  # no answer ever comes
    process = shell.start("demo", "--samples", "4", "--out", str(tmp_path / "out"))
    run = json.loads(process.stdout.readline())["run"]
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate()

    assert process.returncode == 143
    assert f"evener: the demo was interrupted and has no report; `evener cancel {run}` ends" in errors
    assert not (tmp_path / "out").exists()
    assert not (shell.state / "evener.json").exists()


def test_demo_starts_what_it_needs_and_leaves_its_report(tmp_path: Path) -> None:
    """From nothing to groups for trainers, by one command; no process of it is left."""
    shell = Shell(tmp_path / "state")
    out = tmp_path / "out"
    shell.run("demo", "--samples", "1", "--out", str(out))
    summary = json.loads((out / "summary.json").read_text())

    assert summary["groups"] == {"submitted": 4, "merged": 4, "dropped": 0}
    assert summary["sessions"]["total"] == 4
    assert summary["tokens"]["delivered"] + sum(summary["tokens"]["excluded"].values()) == summary["tokens"]["sampled"] > 0
    assert summary["fidelity"] == {"fed": summary["rows"], "matched": 0}
    assert (out / "report.html").read_text().startswith("<!doctype html>")
    assert pq.read_table(out / "groups.parquet").num_rows == summary["rows"]
    assert not (shell.state / "evener.json").exists()
