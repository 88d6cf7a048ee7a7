"""`evener engine`: engines as programs of their own, which join a running Evener."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest
from tests.support.engines import smollm
from tests.support.together import together
from tests.support.waiting import until

from evener.client.client import Client
from evener.engines.llama import LlamaEngine
from evener.engines.scripted import Script, scripted_engine
from evener.service.state_folder import TOKEN_FILE


async def evener(*words: str, **environ: str) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "evener.cli", *words, stdout=PIPE, stderr=PIPE, env={**os.environ, **environ}
    )


async def test_engine_joins_a_running_evener_and_joins_again_with_other_limits(tmp_path: Path) -> None:
    """As a container beside the engine does it, however often it is started."""
    async with (
        scripted_engine(Script(), smollm()) as engine,
        scripted_engine(Script(), smollm()) as another,
        together(tmp_path, engine) as context,
        Client(context.address, token := (tmp_path / TOKEN_FILE).read_text().strip()) as client,
    ):
        for limit in ("8", "9"):
            words = ("engine", "join", another.url, "--name", "e2", "--kind", "scripted", "--concurrency", limit)
            joining = await evener(*words, EVENER_URL=context.address, EVENER_OPERATOR_TOKEN=token)
            out, errors = await joining.communicate()
            assert joining.returncode == 0, errors.decode()
            assert json.loads(out)["url"] == another.url
        await until(client.served_engines, lambda served: {engine.engine_id for engine in served} == {"e1", "e2"})


async def test_unknown_kind_of_engine_is_refused_with_the_kinds_that_the_registry_has() -> None:
    joining = await evener("engine", "join", "http://127.0.0.1:1", "--name", "e2", "--kind", "vlm")
    _, errors = await joining.communicate()

    assert (joining.returncode, b"did you mean 'vllm'?" in errors) == (2, True), errors.decode()


@pytest.mark.engine
async def test_embedded_engine_serves_until_sigterm() -> None:
    """It says where it listens, in a line that a program can read."""
    serving = await evener("engine", "embedded", "--context", "2048", "--slots", "2")
    assert serving.stdout is not None
    engine = LlamaEngine(json.loads(await serving.stdout.readline())["url"])
    assert (await engine.facts()).context_length == 1024
    await engine.aclose()
    serving.send_signal(signal.SIGTERM)
    await serving.communicate()
    assert serving.returncode == 0


@pytest.mark.engine
async def test_embedded_engine_that_cannot_serve_says_why(tmp_path: Path) -> None:
    """Whoever keeps it running sees an exit code, and one line."""
    serving = await evener("engine", "embedded", "--model", str(tmp_path / "none.gguf"))
    _, errors = await serving.communicate()
    assert serving.returncode == 1
    assert f"there is no file {tmp_path / 'none.gguf'}" in errors.decode()
