"""The six services and their engine as one process."""

import importlib
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, cast

from msgspec import structs

from evener.cli.config import Config
from evener.cli.own_engine import kept, start_own_embedded, start_own_vllm
from evener.proto.errors import ConfigError
from evener.proto.fleet import EngineJoined, EngineLeft
from evener.proto.topics import Topic
from evener.provider_gateway.config import Config as GatewayConfig
from evener.sandbox_runner.config import Config as RunnerConfig
from evener.service.config import ServiceConfig
from evener.service.events import EventLog
from evener.service.host import run_process
from evener.service.parts import Parts
from evener.service.supervisor import Wanted
from evener.templates.config import PolicyConfig

GGUF: Final = b"GGUF"
"""How a model file begins."""


def run_together(configs: Mapping[str, ServiceConfig]) -> int:
    """Run until a signal; return the exit code."""
    own = cast("Config", configs["up"])
    check_model(own)
    wanted = [
        Wanted(name=name, config=_told(own, config), open=importlib.import_module(f"evener.{name}.service").open_service)
        for name, config in configs.items()
        if name != "up"
    ]

    @asynccontextmanager
    async def engine(parts: Parts) -> AsyncIterator[None]:
        async with open_engine_of(own, parts):
            yield

    return run_process(own, wanted, beside=[engine], state_file=True)


def check_model(config: Config) -> None:
    """Raise ConfigError for what cannot be the engine's model: said before anything is started."""
    if config.model is None:
        if config.engine == "vllm":
            msg = "engine vllm needs --model, a Hugging Face folder"
            raise ConfigError(msg)
        return
    model = Path(config.model)
    if not model.exists():
        msg = (
            f"model {model}: No such file or directory. Names of a model hub are not taken: name a GGUF file, or, for --engine vllm or a "
            "URL, a folder as the hub has it (config.json, tokenizer.json, *.safetensors)"
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
            msg = f"model {model} is no Hugging Face folder: it has no {name}"
            raise ConfigError(msg)


def _check_file(model: Path) -> None:
    try:
        with model.open("rb") as file:
            magic = file.read(len(GGUF))
    except OSError as cause:
        msg = f"model {model}: {cause.strerror}"
        raise ConfigError(msg) from cause
    if magic != GGUF:
        msg = f"model {model} is no GGUF file"
        raise ConfigError(msg)


def _told(own: Config, config: ServiceConfig) -> ServiceConfig:
    """Pass on what `up` was told and a service needs, unless that was told otherwise."""
    match config:
        case RunnerConfig() if own.trust_local:
            return structs.replace(config, trust_local=True)
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
    """Return the id of the engine that `up` was told of."""
    return f"{config.instance}-engine"


@asynccontextmanager
async def open_engine_of(config: Config, parts: Parts) -> AsyncIterator[None]:
    """Let the engine that `up` was told of join the fleet; it has one id, so that a later one takes its place."""
    events = EventLog(parts.bus, parts.blobs)
    engine_id = engine_id_of(config)

    async def join(url: str, kind: str) -> None:
        joined = EngineJoined(
            engine_id=engine_id, kind=kind, url=url, policy=config.policy, max_concurrency=config.calls, joined_at=time.time()
        )
        await events.send(Topic.FLEET, engine_id, joined)

    async def left() -> None:
        await events.send(Topic.FLEET, engine_id, EngineLeft(engine_id=engine_id, left_at=time.time()))

    async def put_out() -> None:
        """Wait until somebody else lets the engine leave: the bridge, when it does not know its weights."""
        async for batch in parts.bus.follow(Topic.FLEET, 0, await parts.bus.end(Topic.FLEET, 0)):
            for record in batch:
                if record.key == engine_id and isinstance(await events.light(record), EngineLeft):
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
            async with kept("vllm", lambda: start_own_vllm(config), join, left, put_out):
                yield
        case url:
            await join(url, config.engine_kind)
            yield
