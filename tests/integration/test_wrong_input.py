"""What a new user gets wrong, on real processes: one clear line, the right exit code, nothing lost. No model is needed."""

import http.server
import json
import os
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from tests.support.engines import smollm
from tests.support.forks import Command, fork
from tests.support.waiting import block_until

from evener.engines.scripted import Script, scripted_engine

START_SECONDS = 300.0
DISK_BYTES = 64 * 1024 * 1024


class Shell:
    """Gives commands with a state folder of its own."""

    def __init__(self, home: Path, **variables: str) -> None:
        self.home = home
        self.state = home / "evener"
        environ = {name: value for name, value in os.environ.items() if not name.startswith("EVENER_")}
        self.environ = environ | {"XDG_STATE_HOME": str(home), "NO_COLOR": "1", **variables}

    def start(self, *words: str) -> Command:
        """Start a command."""
        return Command("-m", "evener.cli", *words, environment=self.environ)

    def run(self, *words: str) -> tuple[int | None, str, str]:
        """Run a command to its end; return exit code, stdout and stderr."""
        process = self.start(*words)
        out, errors = process.communicate()
        return process.returncode, out, errors

    @contextmanager
    def up(self, *words: str) -> Iterator[str]:
        """Run `evener up` in this block, to a clean end; yield its URL."""
        log = self.home.parent / "up.log"
        command = ("-m", "evener.cli", "up", "--port", "0", *words)
        with log.open("w") as sink:
            process = fork(command, stdout=sink.fileno(), stderr=sink.fileno(), environment=self.environ)
        try:
            told = self.state / "evener.json"
            block_until(lambda: told.exists() or process.returncode is not None, seconds=START_SECONDS)
            assert process.returncode is None, log.read_text()
            yield json.loads(told.read_bytes())["url"]
        finally:
            process.terminate()
            code = process.join()
        assert code == 0, log.read_text()
        assert "Traceback" not in log.read_text()

    def ask(self, url: str, body: bytes | None = None) -> tuple[int, Any]:
        """Send a request with the operator's token; return status and JSON."""
        token = (self.state / "operator-token").read_text().strip()
        try:
            request = urllib.request.Request(url, body, {"authorization": f"Bearer {token}"})  # noqa: S310 - a URL of this test
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as refused:
            return refused.code, json.load(refused)

    def has_crashed(self, url: str) -> bool:
        """Whether a service has crashed, and was opened again after it."""
        with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:  # noqa: S310 - a URL of this test
            told = answer.read().decode()
        return any(line.startswith("evener_crashes_total{") and float(line.rpartition(" ")[2]) > 1 for line in told.splitlines())


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """Commands on a fresh state folder."""
    return Shell(tmp_path / "home")


def task(folder: Path, test: str = "echo 1 > /logs/verifier/reward.txt\n") -> Path:
    """Write a task whose reward `test` says."""
    (folder / "tests").mkdir(parents=True)
    (folder / "instruction.md").write_text("Do nothing.\n")
    (folder / "tests" / "test.sh").write_text(test)
    return folder


def runs(path: Path, program: str, *words: str) -> tuple[str, ...]:
    """Return the words that run a shell program as the harness. It calls no model, so nothing of it could be trained."""
    argv = json.dumps(["sh", "-c", program])
    return ("run", str(path), "--harness", "command", "--option.argv", argv, "--trust-local", "--purpose", "eval", *words)


@contextmanager
def rubbish(body: bytes, kind: str) -> Iterator[str]:
    """Serve the same bytes to whatever is asked; yield the base URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length") or 0))
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - the base class looks for it

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(("body", "kind"), [(b"<html>hi</html>", "text/html"), (b'{"a": 1}', "application/json")])
def test_engine_that_answers_rubbish_ends_up_by_name(shell: Shell, body: bytes, kind: str) -> None:
    """It is another kind of server: no waiting helps."""
    with rubbish(body, kind) as url:
        code, _, errors = shell.run("up", "--port", "0", "--engine", url, "--log-level", "error")

    assert code == 1
    assert errors.splitlines()[-1].startswith(f"evener: engine {url} is refused: ")
    assert "Traceback" not in errors


def test_engine_that_is_down_is_named_and_waited_for(shell: Shell, tmp_path: Path) -> None:
    """Engines take minutes to start: `up` says what it waits for, and so does a command beside it; Ctrl-C ends that one."""
    with shell.up("--engine", "http://127.0.0.1:9") as url:
        block_until(lambda: "absent" in json.dumps(shell.ask(f"{url}/readyz")[1]), seconds=START_SECONDS)
        running = shell.start("run", str(task(tmp_path / "t")), "--harness", "script", "--samples", "1")
        running.stdout.readline()
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate()

    assert running.returncode == 130
    assert f"warning: waiting for the evener at {url}, which is not ready: provider_gateway: engine; " in errors
    assert "http://127.0.0.1:9/" in errors
    assert "Traceback" not in errors


def test_run_whose_services_go_away_says_how_it_continues(shell: Shell, tmp_path: Path) -> None:
    """Its name may be one that was drawn for it."""
    with shell.up("--engine", "none"):
        running = shell.start("run", str(task(tmp_path / "t")), "--harness", "script", "--samples", "1")
        run = json.loads(running.stdout.readline())["run"]
    _, errors = running.communicate()

    assert running.returncode == 1
    assert (
        f"run {run} has not ended, and nothing of it is lost; the same command with --run-id {run} continues it; `evener cancel" in errors
    )
    assert errors.splitlines()[-1].startswith("evener: no evener is running at ")


def test_mistakes_beside_a_running_evener(shell: Shell, tmp_path: Path) -> None:
    """All on one `up`, for the time it takes to start: each is told in one line, and nothing of it is run."""
    good = task(tmp_path / "good")
    crashes = task(tmp_path / "crashes", "exit 7\n")
    with shell.up("--engine", "none", "--trust-local") as url:
        block_until(
            lambda: shell.ask(f"{url}/readyz")[1]["services"]["provider_gateway"]["running"], seconds=START_SECONDS
        )  # which knows the policies
        policy = shell.run("run", str(good), "--harness", "script", "--policy", "nope")
        held = shell.run("up", "--port", "0")
        port = Shell(tmp_path / "other").run("up", "--port", url.rpartition(":")[2])
        unknown = shell.run("show", "nope.0")
        ungraded = shell.run(*runs(crashes, "true", "--samples", "1"))
        failing = shell.run(*runs(good, "echo kaput; exit 3", "--samples", "2"))
        pieces = shell.ask(f"{url}/tokens/pieces", b'{"policy": "policy", "ids": [-5]}')
        run = shell.run("groups", "export", "--out", str(tmp_path / "rows.jsonl"), "--run-id", "nope")
        unwritable = shell.run("groups", "export", "--out", str(good / "instruction.md" / "rows.jsonl"))
        shell.environ["EVENER_OPERATOR_TOKEN"] = "wrong"
        token = shell.run("show", "nope.0")

    told = [errors.splitlines()[-1] for _, _, errors in (policy, held, port, unknown, unwritable, token, run)]
    assert [each[0] for each in (policy, held, port, unknown, ungraded, unwritable, token, run)] == [1] * 8
    assert "no gateway knows the policy 'nope' (known: policy)" in told[0]
    assert "is held by process" in told[1]
    assert f"port {url.rpartition(':')[2]} of 127.0.0.1 is in use" in told[2]
    assert "no session 'nope.0'" in told[3]
    assert f"cannot write {good}/instruction.md/rows.jsonl: " in told[4]
    assert "refuses the token" in told[5]
    assert "there is no run 'nope'" in told[6]
    assert not (tmp_path / "rows.jsonl").exists()
    assert [errors.count("\n") for _, _, errors in (held, port, unknown, unwritable, token, run)] == [1] * 6
    assert "tests/test.sh exited with 7 and wrote neither" in ungraded[2].splitlines()[-1]
    assert failing[0] == 0  # a failing agent is data
    assert "but the harness failed in all its sessions: evener show " in failing[2].splitlines()[-1]
    assert pieces[0] == 400
    assert "ids" in pieces[1]["error"]["message"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small real file system under the state, or a skip where this user may mount none."""
    folder = tmp_path / "home"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(file: Path) -> None:
    """Take all the room of the disk under a file."""
    with file.open("ab", buffering=0) as sink:
        for size in (65536, 1024, 1):
            try:
                while sink.write(bytes(size)) == size:
                    pass
            except OSError:
                continue


def test_full_disk_stops_nothing_for_good(disk: Path, tmp_path: Path) -> None:
    """What was acknowledged before goes on when there is room again; what comes meanwhile is refused in one line."""
    shell = Shell(disk)
    path = task(tmp_path / "t")
    with shell.up("--engine", "none", "--trust-local") as url:
        acknowledged = shell.start(*runs(path, "sleep 2", "--samples", "4", "--run-id", "acknowledged"))
        acknowledged.stdout.readline()
        fill(disk / "filler")
        late = shell.run(*runs(path, "true", "--samples", "1", "--run-id", "late"))
        block_until(lambda: shell.ask(f"{url}/readyz")[1]["ready"] is False, seconds=START_SECONDS)
        block_until(lambda: shell.has_crashed(url), seconds=START_SECONDS)
        (disk / "filler").unlink()
        out, errors = acknowledged.communicate()
        again = shell.run(*runs(path, "true", "--samples", "1", "--run-id", "late"))

    assert late[0] == 1
    assert "No space left on device" in late[2] or "disk is full" in late[2]
    assert late[2].count("\n") == 2  # and that this Evener is not ready
    assert "Traceback" not in late[2] + errors
    assert acknowledged.returncode == 0, errors
    assert json.loads(out.splitlines()[-2])["rewards"] == [1.0] * 4
    assert again[0] == 0, again[2]


def test_start_on_a_full_disk_is_reported(disk: Path, tmp_path: Path) -> None:
    """Also by a command that starts one, whose log has no room either."""
    shell = Shell(disk)
    shell.state.mkdir()
    fill(disk / "filler")
    up = shell.run("up", "--port", "0", "--engine", "none")
    run = shell.run("run", str(task(tmp_path / "t")), "--harness", "script")

    assert (up[0], run[0]) == (1, 1)
    assert f"cannot use the state folder {shell.state}: No space left on device" in up[2]
    assert f"the disk of {shell.state} is full" in run[2]
    assert [errors.count("\n") for errors in (up[2], run[2])] == [1, 1]


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """The URL of an engine for services that a command starts. A model of their own would take seconds of CPU at each start."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(scripted_engine(Script(), smollm())) as server:
        yield server.url


@pytest.fixture
def starting(tmp_path: Path, engine: str) -> Shell:
    """Commands that start services of their own."""
    return Shell(tmp_path / "home", EVENER_UP_ENGINE=engine, EVENER_UP_ENGINE_KIND="scripted")


def own_up(shell: Shell) -> int:
    """Return the pid of the `up` that a command started, once it is ready."""
    told = shell.state / "evener.json"
    block_until(told.exists, seconds=START_SECONDS)
    return int(json.loads(told.read_bytes())["pid"])


def test_command_notices_the_end_of_the_up_that_it_started(starting: Shell, tmp_path: Path) -> None:
    """At once, and not as if none had ever run."""
    running = starting.start(*runs(task(tmp_path / "t"), "sleep 600", "--samples", "1"))
    running.stdout.readline()
    os.kill(own_up(starting), signal.SIGKILL)
    _, errors = running.communicate()

    assert running.returncode == 1
    assert "evener: the evener that this command started has ended: " in errors.splitlines()[-1]
    assert "Traceback" not in errors


def test_full_disk_under_a_command_with_its_own_up(disk: Path, starting: Shell, tmp_path: Path) -> None:
    """Its log lies on that disk too: that stops no service, and the run goes on when there is room again."""
    running = starting.start(*runs(task(tmp_path / "t"), "sleep 2", "--samples", "2"))
    running.stdout.readline()
    fill(disk / "filler")
    url = json.loads((starting.state / "evener.json").read_bytes())["url"]
    block_until(lambda: starting.has_crashed(url), seconds=START_SECONDS)
    (disk / "filler").unlink()
    out, errors = running.communicate()

    assert running.returncode == 0, errors
    assert json.loads(out.splitlines()[-2])["rewards"] == [1.0] * 2
    assert "never retrieved" not in (starting.state / "up.log").read_text()


def test_disk_that_stays_full_under_a_command_with_its_own_up_is_reported_once(disk: Path, starting: Shell, tmp_path: Path) -> None:
    """In one line that names it, in some seconds, and not once for each service after minutes."""
    running = starting.start(*runs(task(tmp_path / "t"), "sleep 60", "--samples", "1"))
    running.stdout.readline()
    fill(disk / "filler")
    _, errors = running.communicate()
    told = [line for line in errors.splitlines() if "full" in line]

    assert running.returncode == 1
    assert len(told) == 1
    assert told[0].startswith(f"evener: the disk of {starting.state} is full. Make room and run the command again")


def test_end_on_a_full_disk_is_reported_as_such(disk: Path, starting: Shell, tmp_path: Path) -> None:
    """Whatever the log lost, and wherever it was cut."""
    running = starting.start(*runs(task(tmp_path / "t"), "sleep 60", "--samples", "1"))
    running.stdout.readline()
    fill(disk / "filler")
    os.kill(own_up(starting), signal.SIGKILL)
    _, errors = running.communicate()

    assert running.returncode == 1
    assert f"has ended: the disk of {starting.state} is full" in errors.splitlines()[-1]


def test_start_on_a_disk_that_is_soon_full_is_reported(disk: Path, starting: Shell, tmp_path: Path) -> None:
    """The bus opens, and then no service can begin: nobody waits minutes for that."""
    starting.state.mkdir()
    fill(disk / "filler")
    os.truncate(disk / "filler", (disk / "filler").stat().st_size - 120 * 1024)
    code, _, errors = starting.run(*runs(task(tmp_path / "t"), "true", "--samples", "1"))

    assert code == 1
    assert f"the disk of {starting.state} is full" in errors.splitlines()[-1]
