"""Wiring of the provider-gateway: the only place that knows its concrete adapters."""

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import structlog

from evener.blobs.waited import Waited
from evener.proto.fleet import Heartbeat
from evener.proto.topics import Topic
from evener.provider_gateway.calls import Calls
from evener.provider_gateway.config import Config
from evener.provider_gateway.engines import EnginePool
from evener.provider_gateway.engines_http import engines_route
from evener.provider_gateway.http import Endpoints, Patience
from evener.provider_gateway.owner import GROUP
from evener.provider_gateway.owners import SERVICE, Owners
from evener.provider_gateway.policies import Policy, open_policies
from evener.provider_gateway.slots import Slots
from evener.service.events import EventLog
from evener.service.partitions import own_partitions
from evener.service.parts import Parts, Service
from evener.service.telemetry import metrics
from evener.templates.open import OWN

log = structlog.get_logger()


def _tell_of_templates(policies: Mapping[str, Policy]) -> None:
    """Log where a policy's prompts are not what its own chat template makes, or show no tools."""
    for name, policy in policies.items():
        renderer = policy.renderer
        if not renderer.renders_tools:
            log.warning("tools_not_rendered", policy=name, template=renderer.template_name, mend='template = "chatml_tools"')
        elif policy.config.template is None and renderer.template_name != OWN:
            log.info("template_replaced", policy=name, template=renderer.template_name, reason="the model's own renders no tools")


@asynccontextmanager
async def open_service(config: Config, parts: Parts) -> AsyncIterator[Service]:
    """Open the gateway: policies are loaded, engines join by `fleet`, partitions come with the group."""
    policies = await asyncio.to_thread(open_policies, config.policies)
    _tell_of_templates(policies)
    blobs = Waited(parts.blobs, put_seconds=config.unseen_seconds)
    events = EventLog(parts.bus, blobs)
    instance_id = f"{parts.instance_id}-{SERVICE}"
    renderers = {name: policy.renderer for name, policy in policies.items()}
    slots = Slots(queue=config.queue, patience_seconds=config.unseen_seconds)
    pool = EnginePool(parts.bus, events, renderers, slots, required=config.required_engine)
    measured = metrics(parts.registry)
    owners = Owners(parts.bus, EventLog(parts.bus, blobs), measured, instance_id)
    calls = Calls(slots, policies, blobs, measured, lonely_seconds=config.lonely_seconds, unseen_seconds=config.unseen_seconds)
    patience = Patience(known_seconds=config.known_seconds, held_seconds=config.held_seconds)
    endpoints = Endpoints(parts.bus, owners, calls, policies, parts.secrets, patience=patience)
    stopping = asyncio.Event()

    async def run() -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(pool.follow())
                tasks.create_task(pool.lacks_what_is_required())
                tasks.create_task(own_partitions(parts.bus, GROUP, Topic.SESSIONS, owners.serve, keep=True))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def drain() -> None:
        stopping.set()

    def heartbeat() -> Heartbeat:
        return Heartbeat(
            instance_id=instance_id,
            service=SERVICE,
            address=parts.address,
            boot_id=parts.boot_id,
            policies=tuple(policies),
            partitions=() if stopping.is_set() else owners.partitions,
            stopping=stopping.is_set(),
            at=time.time(),
        )

    yield Service(
        name=SERVICE,
        routes=[*endpoints.routes(), engines_route(slots, policies, parts.secrets)],
        run=run,
        ready=lambda: pool.ready() | {"partitions": bool(owners.partitions)},
        heartbeat=heartbeat,
        drain=drain,
    )
