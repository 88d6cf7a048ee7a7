"""Runs the six services and their engine as one process."""

import importlib
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final, cast

from msgspec import structs

from evener.cli.config import Config
from evener.cli.own_engine import kept, start_own_embedded, start_own_vllm
from evener.engines.registry import ENGINES
from evener.proto.errors import ConfigError
from evener.proto.fleet import EngineJoined, EngineLeft
from evener.proto.topics import Topic
from evener.provider_gateway.config import Config as GatewayConfig
from evener.sandbox_runner.config import Config as RunnerConfig
from evener.sandboxes.registry import BACKENDS
from evener.service.config import ServiceConfig
from evener.service.context import ServiceContext
from evener.service.events import EventLog
from evener.service.host import run_process
from evener.service.supervisor import Wanted
from evener.templates.config import NOT_DOWNLOADED, PolicyConfig, check_source

GGUF: Final = b"GGUF"
"""The first bytes of a model file."""


def run_together(configs: Mapping[str, ServiceConfig]) -> int:
    """Run until a signal; return the exit code."""
    own = cast("Config", configs["up"])
    if own.engine_kind not in ENGINES:
        msg = f"--engine-kind {own.engine_kind!r} is not one of {', '.join(ENGINES)}"
        raise ConfigError(msg)
    check_model(own)
    check_sandbox(own)
    for policy in cast("GatewayConfig", configs["provider_gateway"]).policies:
        check_source(policy.source)
    wanted = [
        Wanted(name=name, config=_told(own, config), open=importlib.import_module(f"evener.{name}.service").open_service)
        for name, config in configs.items()
        if name != "up"
    ]
    return run_process(own, wanted, beside=[partial(open_engine_of, own)], state_file=True)


def check_sandbox(config: Config) -> None:
    """Raise ConfigError for a sandbox that this machine cannot open, before anything is started. Blocks."""
    if config.sandbox is not None and not (backend := BACKENDS[config.sandbox]).is_wanted(config.sandboxes):
        msg = f"--sandbox {config.sandbox}: {backend.needs}"
        raise ConfigError(msg)


def check_model(config: Config) -> None:
    """Raise ConfigError for a path that cannot be the engine's model, before anything is started."""
    if config.model is None:
        if config.engine == "vllm":
            msg = "--engine vllm needs --model, a Hugging Face folder"
            raise ConfigError(msg)
        return
    model = Path(config.model)
    if not model.exists():
        msg = (
            f"model {model}: {NOT_DOWNLOADED}: name a GGUF file, or, for --engine vllm or a URL, a folder in the hub's format "
            "(config.json, tokenizer.json, *.safetensors)"
        )
        raise ConfigError(msg)
    if config.engine == "vllm" or model.is_dir():
        _check_folder(model, config.engine)
    else:
        _check_file(model)


def _check_folder(model: Path, engine: str) -> None:
    if engine == "embedded":
        msg = f"model {model} is a folder; the embedded engine takes a GGUF file, --engine vllm a folder"
        raise ConfigError(msg)
    needed = ("config.json", "tokenizer.json") if engine == "vllm" else ("tokenizer.json",)  # an engine elsewhere has the weights
    for name in needed:
        if not (model / name).is_file():
            msg = f"model {model} is not a Hugging Face folder: it has no {name}"
            raise ConfigError(msg)


def _check_file(model: Path) -> None:
    try:
        with model.open("rb") as file:
            magic = file.read(len(GGUF))
    except OSError as cause:
        msg = f"model {model}: {cause.strerror}"
        raise ConfigError(msg) from cause
    if magic != GGUF:
        msg = f"model {model} is not a GGUF file"
        raise ConfigError(msg)


def _told(own: Config, config: ServiceConfig) -> ServiceConfig:
    """Return the configuration of a service, completed with the settings of `up` that it leaves at their defaults."""
    match config:
        case RunnerConfig():
            sandbox = own.sandbox if config.sandbox is None else config.sandbox
            return structs.replace(config, trust_local=config.trust_local or own.trust_local, sandbox=sandbox)
        case GatewayConfig():
            policies = config.policies
            if policies == GatewayConfig().policies:
                kind = "hf" if own.model and Path(own.model).is_dir() else "gguf"
                source = f"{kind}:{own.model}" if own.model else policies[0].source
                policies = (PolicyConfig(name=own.policy, source=source),)
            return structs.replace(config, policies=policies, required_engine=config.required_engine or engine_id_of(own))
        case _:
            return config


def engine_id_of(config: Config) -> str:
    """Return the id of the engine that `up` is configured for."""
    return f"{config.instance}-engine"


@asynccontextmanager
async def open_engine_of(config: Config, context: ServiceContext) -> AsyncIterator[None]:
    """Let the configured engine join the fleet. It always has the same id, so that a later engine takes its place."""
    events = EventLog(context.bus, context.blobs)
    engine_id = engine_id_of(config)

    async def join(url: str, kind: str) -> None:
        joined = EngineJoined(
            engine_id=engine_id, kind=kind, url=url, policy=config.policy, max_concurrency=config.calls, joined_at=time.time()
        )
        await events.send(Topic.FLEET, engine_id, joined)

    async def left() -> None:
        await events.send(Topic.FLEET, engine_id, EngineLeft(engine_id=engine_id, left_at=time.time()))

    async def evicted() -> None:
        """Wait until another service removes the engine: the bridge does when it does not know the engine's weights."""
        async with aclosing(context.fleet.follow()) as batches:
            await anext(batches)  # what was there before
            async for batch in batches:
                if any(record.key == engine_id and isinstance(record.event, EngineLeft) for record in batch):
                    return

    match config.engine:
        case "none":
            await left()
            yield
        case "embedded":
            async with kept("embedded", lambda: start_own_embedded(config), join, left):
                yield
        case "vllm":
            await left()  # the one of an earlier process
            async with kept("vllm", lambda: start_own_vllm(config), join, left, evicted):
                yield
        case url:
            await join(url, config.engine_kind)
            yield
