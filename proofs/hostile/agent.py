"""A harness that misbehaves: `python agent.py BEHAVIOUR [ARGUMENT ...]`. Standard library only; it runs in a sandbox.

Each behaviour is a function of this name below. Before it the model is asked once, so that the session has tokens.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

BASE, KEY = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
TOOL = {"name": "step", "description": "Takes a step.", "parameters": {"type": "object", "properties": {}}}
QUIET = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


def ask(messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """Return the model's next message."""
    body = json.dumps({"model": "policy", "messages": messages, **fields}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    with urllib.request.urlopen(urllib.request.Request(f"{BASE}/chat/completions", body, headers)) as answer:  # noqa: S310 - it is told
        message: dict[str, Any] = json.load(answer)["choices"][0]["message"]
    return message


def steps() -> None:
    """Behave: take a step for each tool call, until there is none."""
    instruction = Path(os.environ["HOME"], "instruction.md").read_text()
    messages: list[dict[str, Any]] = [{"role": "user", "content": instruction}]
    while True:
        message = ask(messages, tools=[{"type": "function", "function": TOOL}])
        messages.append(message)
        if not message.get("tool_calls"):
            return
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": "This was step 1 of 1."} for call in message["tool_calls"]]


def deep(levels: str) -> None:
    """Leave a tree of directories."""
    for _ in range(int(levels)):
        os.mkdir("d")  # noqa: PTH102 - a Path would not go so deep
        os.chdir("d")


def sparse(size: str) -> None:
    """Leave a file that is large and holds nothing."""
    with Path("large.bin").open("wb") as file:
        file.truncate(int(size))


def many(files: str) -> None:
    """Leave many small files."""
    for number in range(int(files)):
        folder = f"f{number // 1000}"
        if number % 1000 == 0:
            os.mkdir(folder)  # noqa: PTH102 - quicker
        os.close(os.open(f"{folder}/{number}", os.O_CREAT | os.O_WRONLY))


def odd_names() -> None:
    """Leave files whose names are hard to write down."""
    for name in (b"new\nline", b"\xff\xfe", b"n" * 255, b" ", b"-rf", b"\x1b[2J", "ü\u202e\U0001f600".encode(), b"a\\b'\"`$(x)"):
        Path(os.fsdecode(name)).write_bytes(b"x")


def fifo() -> None:
    """Leave a named pipe that nobody writes to."""
    os.mkfifo("pipe")


def unix_socket() -> None:
    """Leave a socket."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")


def device() -> None:
    """Leave a device, where that is allowed."""
    try:
        os.mknod("zero", 0o666 | 0o020000, os.makedev(1, 5))
    except PermissionError:
        return


def links() -> None:
    """Leave links: outwards, to nothing, to themselves, to an endless file, one to another in a ring."""
    for name, target in (
        ("out", "/etc"),
        ("none", "nowhere"),
        ("self", "self"),
        ("zero", "/dev/zero"),
        ("a", "b"),
        ("b", "a"),
        ("up", ".."),
    ):
        Path(name).symlink_to(target)


def locked() -> None:
    """Leave a file and a folder that may not be opened."""
    Path("file").write_text("x")
    Path("file").chmod(0)
    Path("folder/below").mkdir(parents=True)
    Path("folder").chmod(0)


def replaced() -> None:
    """Put folders where files were, and files where folders were."""
    Path("given.txt").unlink()
    Path("given.txt").mkdir()
    Path("given.txt/inside").write_text("x")
    Path("given/file").unlink()
    Path("given").rmdir()
    Path("given").write_text("x")


def gone() -> None:
    """Remove the working directory."""
    here = Path.cwd()
    os.chdir("/")
    for path in sorted(here.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    here.rmdir()


def home_gone() -> None:
    """Put a file where the home folder was."""
    home = Path(os.environ["HOME"])
    home.rename(home.with_name("elsewhere"))
    home.write_text("x")


def growing() -> None:
    """Leave a file that somebody out of reach goes on writing to for a while."""
    script = "i=0; while [ $i -lt 200 ]; do echo x >> grows.txt; i=$((i+1)); sleep 0.01; done"
    subprocess.Popen(["env", "-i", "setsid", "sh", "-c", script], **QUIET)  # type: ignore[call-overload]


def hard_links() -> None:
    """Leave many names of one file of some size."""
    Path("one").write_bytes(os.urandom(1 << 20))
    for number in range(400):
        os.link("one", f"n{number}")


def large() -> None:
    """Leave a real file of some size."""
    with Path("large.bin").open("wb") as file:
        file.writelines(os.urandom(1 << 20) for _ in range(64))


def orphan(told: str) -> None:
    """Leave a process that has neither our environment nor our session, and say who it is."""
    process = subprocess.Popen(["env", "-i", "setsid", "sleep", "60"], **QUIET)  # type: ignore[call-overload]
    Path(told).write_text(str(process.pid))


def daemon(told: str) -> None:
    """Leave a daemon, forked twice, that keeps our output open."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            Path(told).write_text(str(os.getpid()))
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(60)
        os._exit(0)
    time.sleep(0.3)


def forks(number: str) -> None:
    """Leave many processes."""
    for _ in range(int(number)):
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)


def killed(number: str) -> None:
    """Be killed by a signal."""
    os.kill(os.getpid(), int(number))
    time.sleep(60)


def stopped() -> None:
    """Freeze until the time is up."""
    os.kill(os.getpid(), signal.SIGSTOP)


def deaf() -> None:
    """Ignore what is asked of us, and never end."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    time.sleep(60)


def mute() -> None:
    """Close our output and go on for a while."""
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    time.sleep(0.3)


def noisy(size: str) -> None:
    """Print very much, without an end of line."""
    block, left = b"x" * (1 << 20), int(size)
    while left > 0:
        left -= os.write(1, block[: min(left, len(block))])


def lines(number: str) -> None:
    """Print very many lines, each of which reads like the end of a harness's work."""
    thousand = b'{"type": "result", "result": "x"}\n' * 1000
    for _ in range(int(number) // 1000):
        sys.stdout.buffer.write(thousand)


def binary() -> None:
    """Print what is no text, and fail."""
    os.write(1, bytes(range(256)) * 100 + b"\xff\xfe\x00 last words")
    sys.exit(3)


def exit_code(code: str) -> None:
    """Exit with a code."""
    os._exit(int(code))


def open_calls(number: str) -> None:
    """Exit while calls are open."""
    for _ in range(int(number)):
        message = [{"role": "user", "content": "TAKE YOUR TIME"}]
        threading.Thread(target=ask, args=(message,), daemon=True).start()
    time.sleep(0.5)
    os._exit(0)


def then_wait(behaviour: str, *arguments: str) -> None:
    """Behave so, say that it is done, and wait for the worst."""
    here = Path.cwd()
    globals()[behaviour](*arguments)
    (here / "left").touch()
    time.sleep(60)


def main() -> None:
    """Ask once, then misbehave."""
    behaviour, *arguments = sys.argv[1:]
    if behaviour != "steps":
        ask([{"role": "user", "content": f"{behaviour} {arguments}: what is the answer?"}])
    globals()[behaviour](*arguments)


if __name__ == "__main__":
    main()
