"""What users would put in the gateway's place, each in a virtual environment of its own in the user's cache, made at first use."""

import asyncio
import contextlib
import json
import os
import re
import secrets
import shutil
import socket
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from proofs.bench.gateway_load import Agent, Http
from proofs.bench.gateway_parts import POLL_SECONDS, START_SECONDS, Failed, Policy, answers, program

SESSIONS: Final = 400
TICKS: Final = os.sysconf("SC_CLK_TCK")

LITELLM: Final = "litellm[proxy]==1.106.2"
VERIFIERS: Final = "verifiers==0.4.0"
PY_SPY: Final = "py-spy==0.4.3"

CAPTURES: Final = {
    "evener": "each sampled id, its logprob and policy version, and the placement, committed to the log before the answer",
    "verifiers": "ids and logprobs of a turn and its message graph, in the memory of the process",
    "litellm": "nothing of the tokens; texts and usage where a logger is configured (none was)",
}
"""What is still there afterwards, in each one's configuration here."""

VERIFIERS_PROGRAM: Final = """
import asyncio, json, sys
from verifiers.v1.clients import ModelContext, TrainClientConfig
from verifiers.v1.interception.server import InterceptionServer
from verifiers.v1.session import RolloutSession
from verifiers.v1.trace import AgentInfo, Trace, TraceTask

async def main(engine, tokenizer, sessions):
    from renderers import config_from_name
    client = TrainClientConfig(base_url=engine + "/v1", renderer_model_name=tokenizer, renderer=config_from_name("qwen3"))
    context = ModelContext(model="policy", client=client)
    async with InterceptionServer() as server:
        made = [RolloutSession(ctx=context, trace=Trace.model_construct(task=None, agent=None)) for _ in range(sessions)]
        print(json.dumps([server.register(session)[0] for session in made]))
        print(server.base_url, flush=True)
        await asyncio.Event().wait()

asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
"""


class Peer:
    """A peer that is running."""

    def __init__(self, name: str, version: str, pid: int, agents: Callable[[int], Iterator[Agent]]) -> None:
        self.name = name
        self.version = version
        self.agents = agents
        """Returns its harnesses, with prompts of so many tokens."""
        self._pid = pid

    def cpu_seconds(self) -> float:
        """Return what its process and those that it started have cost so far."""
        return sum(_ticks(pid) for pid in (self._pid, *_children(self._pid))) / TICKS


async def environment(name: str, package: str) -> Path:
    """Return a virtual environment with a package of PyPI, made if missing. Raises Failed."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "evener" / "bench-peers" / f"{name}-{package.split('==')[1]}"
    if not home.is_dir():
        making = home.with_suffix(".new")
        shutil.rmtree(making, ignore_errors=True)
        await _run(sys.executable, "-m", "venv", str(making))
        await _run(str(making / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", package)
        making.rename(home)
    return home


@asynccontextmanager
async def verifiers(folder: Path, policy: Policy, upstream: str) -> AsyncIterator[Peer]:
    """Run its interception server with the training client: ids in, ids and logprobs out."""
    home = await environment("verifiers", VERIFIERS)
    tokenizer = policy.source.removeprefix("hf:")
    words = [str(home / "bin" / "python"), "-c", VERIFIERS_PROGRAM, upstream, tokenizer, str(SESSIONS)]
    async with program("verifiers", folder, words, env=_alone()) as (url, pid):
        lines = (folder / "verifiers.log").read_text().splitlines()
        keys = iter(json.loads(next(line for line in lines if line.startswith("["))))

        def agents(tokens: int) -> Iterator[Agent]:
            return (Agent(f"v{key}", f"{url}/v1/chat/completions", {"authorization": f"Bearer {key}"}, tokens) for key in keys)

        yield Peer("verifiers", VERIFIERS, pid, agents)


@asynccontextmanager
async def litellm(folder: Path, http: Http, upstream: str) -> AsyncIterator[Peer]:
    """Run its proxy with one worker before a provider that speaks OpenAI Chat."""
    home = await environment("litellm", LITELLM)
    model = {"model_name": "policy", "litellm_params": {"model": "openai/policy", "api_base": f"{upstream}/v1", "api_key": "none"}}
    (folder / "litellm.yaml").write_text(json.dumps({"model_list": [model], "litellm_settings": {"telemetry": False}}))
    port = _free_port()
    options = ["--config", str(folder / "litellm.yaml"), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    url = f"http://127.0.0.1:{port}"
    key = f"sk-{secrets.token_hex(32)}"
    words = [str(home / "bin" / "python"), "-c", "import litellm; litellm.run_server()", *options]
    async with program("litellm", folder, words, _alone() | {"LITELLM_MASTER_KEY": key}, tells=re.compile("(initialized)")) as (_, pid):
        async with asyncio.timeout(START_SECONDS):
            while not await answers(http, f"{url}/health/liveliness"):  # noqa: ASYNC110 - of another process
                await asyncio.sleep(POLL_SECONDS)

        def agents(tokens: int) -> Iterator[Agent]:
            return (
                Agent(f"l{number}", f"{url}/v1/chat/completions", {"authorization": f"Bearer {key}"}, tokens) for number in range(SESSIONS)
            )

        yield Peer("litellm", LITELLM, pid, agents)


def _alone() -> dict[str, str]:
    """Return an environment in which nothing is asked of the network."""
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION", "HF_HUB_OFFLINE": "1"}
    return {**os.environ, **quiet, "PYTHONPATH": ""}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


async def _run(*argv: str) -> None:
    process = await asyncio.create_subprocess_exec(*argv, stdout=PIPE, stderr=STDOUT)
    output, _ = await process.communicate()
    if process.returncode:
        msg = f"{' '.join(argv)}: {output.decode(errors='replace')[-600:]}"
        raise Failed(msg)
