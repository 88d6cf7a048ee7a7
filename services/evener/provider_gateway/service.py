"""The provider-gateway: wiring and lifespan. Only this module knows the concrete adapters."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial

import structlog

from evener.engines.registry import EngineAccess
from evener.proto.fleet import Heartbeat
from evener.provider_gateway.answers import Answerer
from evener.provider_gateway.call import CallServices
from evener.provider_gateway.config import Config
from evener.provider_gateway.engine_scheduler import EngineScheduler
from evener.provider_gateway.engines import EnginePool
from evener.provider_gateway.http import Endpoints
from evener.provider_gateway.partitions import OwnedPartitions
from evener.provider_gateway.placement import Placer
from evener.provider_gateway.policies import Policy, open_policies
from evener.provider_gateway.timings import GATEWAY_TIMINGS, GatewayTimings
from evener.runtime.byte_budget import ByteBudget
from evener.runtime.tasks import Tasks
from evener.service.context import Service, ServiceContext
from evener.service.events import EventLog
from evener.service.owners import GATEWAY, Owners
from evener.service.telemetry import metrics
from evener.templates.open import OWN

log = structlog.get_logger()


def _tell_of_templates(policies: Mapping[str, Policy]) -> None:
    """Log if a policy's prompts are not those of its own chat template, or show no tools."""
    for name, policy in policies.items():
        renderer = policy.renderer
        if not renderer.renders_tools:
            log.warning("tools_not_rendered", policy=name, template=renderer.template_name, mend='template = "chatml_tools"')
        elif policy.config.template is None and renderer.template_name != OWN:
            log.info("template_replaced", policy=name, template=renderer.template_name, reason="the model's own template renders no tools")


@asynccontextmanager
async def open_service(config: Config, context: ServiceContext, *, timings: GatewayTimings = GATEWAY_TIMINGS) -> AsyncIterator[Service]:
    """Open the gateway. Policies are loaded, engines join by `fleet`, and the consumer group assigns partitions."""
    policies = await asyncio.to_thread(open_policies, config.policies)
    _tell_of_templates(policies)
    fingerprints = tuple(policy.renderer.fingerprint for policy in policies.values())
    await context.agree(fingerprints)
    blobs = context.waiting_blobs(put_seconds=config.transparent_retry_seconds)
    events = EventLog(context.bus, blobs)
    scheduler = EngineScheduler(queue=config.queue, patience_seconds=config.transparent_retry_seconds)
    renderers = {name: policy.renderer for name, policy in policies.items()}
    measured = metrics(context.registry)
    owners, heartbeat_due, stopping = Owners(), asyncio.Event(), asyncio.Event()
    instance_id = f"{context.instance_id}-{GATEWAY}"

    def changed() -> None:
        """Let the other gateways, and what waits here, see that partitions or engines changed."""
        heartbeat_due.set()
        owners.change.note()

    pool = EnginePool(
        context.bus,
        context.fleet,
        events,
        renderers,
        scheduler,
        required=config.required_engine,
        metrics=measured,
        share=partial(owners.share, name=instance_id),
        changed=changed,
        timings=timings,
        access=EngineAccess(ca_file=config.engine_ca_file, api_keys=config.engine_api_keys),
    )
    measured.calls_waiting.set_function(lambda: scheduler.waiting)
    partitions = OwnedPartitions(
        context.bus,
        EventLog(context.bus, blobs, measured),
        measured,
        owners,
        instance_id=instance_id,
        handover_seconds=config.handover_seconds,
        outreached_seconds=timings.outreached,
        reached=pool.reached,
        changed=changed,
    )
    services = CallServices(
        engines=scheduler,
        placer=Placer(policies, blobs, scheduler.longest_context),
        metrics=measured,
        timings=timings,
        disconnect_grace_seconds=config.disconnect_grace_seconds,
        transparent_retry_seconds=config.transparent_retry_seconds,
    )
    endpoints = Endpoints(
        partitions=partitions,
        answerer=Answerer(services),
        policies=policies,
        engines=scheduler.engines,
        secrets=context.secrets,
        session_lookup_timeout_seconds=config.session_lookup_timeout_seconds,
        admission_timeout_seconds=config.admission_timeout_seconds,
        bodies=ByteBudget(config.bodies_bytes).share(),
    )

    async def run() -> None:
        async with Tasks() as tasks:
            tasks.create_task(pool.follow())
            tasks.create_task(pool.watch_required())
            tasks.create_task(owners.follow(context.fleet))
            tasks.create_task(share_engines())
            tasks.create_task(partitions.run(context.instance_id))

    async def share_engines() -> None:
        """Give the slots that become free when this gateway's shares of engines grow."""
        while True:
            held = owners.held()
            pool.offer_all()
            await owners.change.until(lambda: owners.held() != held)  # noqa: B023 - called before the next turn

    async def drain() -> None:
        stopping.set()
        await partitions.drain()

    def heartbeat() -> Heartbeat:
        reaches = tuple(sorted(pool.reached()))
        told = {"policies": tuple(policies), "fingerprints": fingerprints, "reaches": reaches, **partitions.listing()}
        return context.heartbeat(GATEWAY, stopping=stopping.is_set(), **told)

    yield Service(
        name=GATEWAY,
        routes=endpoints.routes(),
        run=run,
        ready=lambda: pool.ready() | {"partitions": partitions.ready},
        heartbeat=heartbeat,
        heartbeat_due=heartbeat_due,
        drain=drain,
    )
