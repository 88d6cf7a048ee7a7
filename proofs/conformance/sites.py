"""Where sessions run: a whole Evener and a scripted engine, as one process or as six."""

import asyncio
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex
from typing import Final

import aiohttp
import msgspec
from msgspec import Struct
from tests.support.processes import Program, deployment
from tokenizers import Tokenizer

from evener.cli.harness_check import CHECK_POLICY, CONTEXT_TOKENS
from evener.client.client import Client
from evener.client.views import EngineRequest
from evener.engines.scripted import Script, ScriptedServer, scripted_engine
from evener.service.state_folder import TOKEN_FILE

HOST: Final = "proofs.conformance.host"
NO_QUEUE: Final = (
    *("--provider-gateway.queue", "0", "--provider-gateway.admission-timeout-seconds", "1"),
    *("--sandbox-runner.admission-seconds", "3"),
)
"""Options with which a call that finds no free engine is soon refused."""
READY_SECONDS: Final = 120.0
KEEP_ALIVE_SECONDS: Final = 2
POLL_SECONDS: Final = 0.05


class Site(Struct, frozen=True, kw_only=True, eq=False):
    """An Evener and its engine."""

    engine: ScriptedServer
    client: Client
    gateway: Program
    """The process that its gateway is in."""
    runner: Program
    """The process that its sandbox-runner is in."""
    kill: signal.Signals
    """What ends the gateway there. SIGUSR1: its task, which its supervisor starts again. SIGKILL: its process, started again here."""
    folder: Path

    @property
    def sandboxes(self) -> Path:
        """The folder of the sandboxes."""
        return self.folder / "state" / "sandboxes" / "local" / "local"


@asynccontextmanager
async def six_processes(folder: Path, tokenizer: Tokenizer, servers: str) -> AsyncIterator[Site]:
    """Yield an Evener of six processes on a real Kafka broker; nothing of it runs on after the block."""
    bus = f"kafka://{servers}?prefix=conformance{token_hex(4)}."
    policies = f'[{{name = "{CHECK_POLICY.name}", source = "{CHECK_POLICY.source}", template = "{CHECK_POLICY.template}"}}]'
    async with (
        scripted_engine(Script(), tokenizer, context=CONTEXT_TOKENS) as engine,
        deployment(folder, bus, partitions=1, policies=policies) as six,
    ):
        with (folder / "evener.toml").open("a") as config:
            config.write(f"[sandbox_runner]\ntrust_local = true\nkeep_alive_seconds = {KEEP_ALIVE_SECONDS}\n")
        await six.start()
        await six.ready("scheduler")
        async with six.client() as client:
            joining = EngineRequest(engine_id="scripted", kind="scripted", url=engine.url, policy=CHECK_POLICY.name)
            await client.join_engine(joining)
            await six.ready()
            gateway, runner = six.programs["provider_gateway"], six.programs["sandbox_runner"]
            yield Site(engine=engine, client=client, gateway=gateway, runner=runner, kill=signal.SIGKILL, folder=folder)


@asynccontextmanager
async def site(folder: Path, tokenizer: Tokenizer, options: Sequence[str] = ()) -> AsyncIterator[Site]:
    """Yield an Evener in one process on the embedded bus; nothing of it runs on after the block. `options`: of it."""
    state = folder / "state"
    async with scripted_engine(Script(), tokenizer, context=CONTEXT_TOKENS) as engine:
        up = Program(
            "up", folder, ("-m", HOST, "up", "--state", str(state), "--port", "0", "--trust-local", *_options(engine.url), *options)
        )
        await up.start()
        try:
            await ready(up)
            async with Client(up.url, (state / TOKEN_FILE).read_text().strip()) as client:
                yield Site(engine=engine, client=client, gateway=up, runner=up, kill=signal.SIGUSR1, folder=folder)
        finally:
            up.tell(signal.SIGKILL)
            await up.stop()


async def ready(program: Program) -> None:
    """Wait until all its services are ready."""
    async with asyncio.timeout(READY_SECONDS), aiohttp.ClientSession() as http:
        await program.listening()
        while (await program.readiness(http))[0] != 200:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(POLL_SECONDS)


def _options(engine: str) -> Sequence[str]:
    policies = msgspec.json.encode([CHECK_POLICY]).decode()
    sampled_by = ("--engine", engine, "--engine-kind", "scripted", "--provider-gateway.policies", policies)
    return (*sampled_by, "--sandbox-runner.keep-alive-seconds", str(KEEP_ALIVE_SECONDS))
