"""A bridge with scripted engines, as the tests of weight updates need it."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from aiohttp import web
from tests.support.builders import heartbeat, joined
from tests.support.service_context import open_parts, operator, running_service
from tests.support.waiting import until

from evener.engines.vllm_weights import VllmWeights
from evener.proto.fleet import EngineJoined, EngineLeft
from evener.proto.topics import Topic
from evener.service.context import ServiceContext
from evener.service.events import EventLog
from evener.trainer_bridge.config import Config
from evener.trainer_bridge.service import open_service

IDS = (5, 17, 99, 300, 301, 302, 44, 8, 120, 7)
PROVEN = re.compile(r"(\w+):[0-9a-f]{12}:[0-9a-f]{8}(@\d+)")
"""The label of an engine that has proven a version, as the gateway wants it."""

Change = Callable[[str, Any, Any], Any]
"""From path, request and answer to the answer that is passed on."""


@asynccontextmanager
async def bridge(folder: Path, **given: Any) -> AsyncIterator[tuple[ServiceContext, aiohttp.ClientSession]]:
    """Yield the context of a running bridge beside a gateway of the policy, and an operator's client of it."""
    async with open_parts(folder, partitions=1) as context, open_service(Config(state=str(folder), **given), context) as service:
        await serve(context, "policy")
        async with running_service(service), operator(service.routes) as http:
            yield context, http


async def serve(context: ServiceContext, *policies: str) -> None:
    """Let a gateway say that it serves policies."""
    sign = heartbeat("provider_gateway", "gateway", at=time.time(), policies=policies)
    await EventLog(context.bus, context.blobs).send(Topic.FLEET, "gateway", sign)


async def join(
    context: ServiceContext, url: str, engine_id: str = "e1", kind: str = "scripted", *, at: float = 1.0, policy: str = "policy"
) -> EngineJoined:
    """Let an engine of a policy join."""
    event = joined(url, engine_id, kind=kind, joined_at=at, policy=policy)
    await EventLog(context.bus, context.blobs).send(Topic.FLEET, engine_id, event)
    return event


async def publish(http: aiohttp.ClientSession, path: Path, version: int, **more: Any) -> tuple[int, Any]:
    """Publish a folder, again while the bridge has just started; return status and answer."""
    body = {"path": str(path), "version": version, **more}

    async def posted() -> tuple[int, Any]:
        async with http.post("/policies/policy/versions", json=body) as answer:
            return answer.status, await answer.json()

    return await until(posted, lambda said: said[0] != 503 or "not owned by this bridge" not in said[1]["error"]["message"])


async def state(url: str) -> tuple[str, bool]:
    """Return an engine's label, that of a proven version without digest and joining, and whether it is paused."""
    control = VllmWeights(url)
    try:
        return PROVEN.sub(r"\1\2", await control.label()), await control.paused()
    finally:
        await control.aclose()


async def until_state(url: str, wanted: tuple[str, bool]) -> None:
    """Wait until an engine has a label, and is or is not paused."""
    await until(lambda: state(url), lambda found: found == wanted)


async def scored(url: str) -> list[float]:
    """Return the logprobs of IDS[1:] by an engine."""
    control = VllmWeights(url)
    try:
        return [float(each) for each in (await control.score(np.asarray(IDS, np.int32))).logprobs[1:]]
    finally:
        await control.aclose()


async def trained(url: str, path: Path) -> list[float]:
    """Return the logprobs of IDS[1:] by weights, as a trainer knows them: of another engine that is given them."""
    control = VllmWeights(url)
    try:
        await control.load(str(path))
    finally:
        await control.aclose()
    return await scored(url)


def canary(logprobs: list[float]) -> dict[str, Any]:
    """Return a canary with the trainer's logprobs."""
    return {"prompts": [{"ids": list(IDS), "logprobs": [None, *logprobs]}]}


async def events(context: ServiceContext, topic: Topic = Topic.POLICIES) -> list[Any]:
    """Return all events of `policies`, or the ends of engines of `fleet`."""
    log = EventLog(context.bus, context.blobs)
    found = [await log.event(record) async for record in context.bus.read(topic, 0)]
    return found if topic is Topic.POLICIES else [event for event in found if isinstance(event, EngineLeft)]


def as_it_is(path: str, body: Any, answer: Any) -> Any:  # noqa: ARG001 (a Change)
    """Pass on without a change."""
    return answer


@asynccontextmanager
async def passing_through(upstream: str, change: Change = as_it_is, *, hold: asyncio.Event | None = None) -> AsyncIterator[str]:
    """A server that passes everything on, and changes answers on the way; asked with None, `change` may answer itself.

    `buffered`: weights are not loaded until it is set.
    """
    async with aiohttp.ClientSession() as session:

        async def pass_on(request: web.Request) -> web.Response:
            body = await request.json() if request.can_read_body else None
            if hold is not None and request.path == "/collective_rpc":
                await hold.wait()
            if (answer := change(request.path, body, None)) is not None:
                return web.json_response(answer)
            async with session.request(request.method, f"{upstream}{request.path_qs}", json=body) as response:
                said = await response.json() if response.content_type == "application/json" else None
                return web.json_response(change(request.path, body, said) or said, status=response.status)

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", pass_on)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()
