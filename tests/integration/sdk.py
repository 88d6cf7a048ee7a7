"""One session behind a real relay, gateway, embedded bus and scripted engine: what an official client is pointed at."""

import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from prometheus_client import CollectorRegistry
from tests.integration.test_gateway import rebuilt
from tests.support.builders import listing
from tests.support.gateway import Hand, gateway
from tests.support.waiting import eventually

from evener.engines.scripted import Script
from evener.proto.reasons import TerminationReason
from evener.proto.sessions import Fidelity, SessionSealed
from evener.proto.spec import Budgets, Quirks, Sampling, Streaming
from evener.proto.topics import Topic
from evener.provider_gateway.config import Config
from evener.sandbox_runner.clock import AgentClock
from evener.sandbox_runner.exchange import Limits
from evener.sandbox_runner.gateway_client import GatewayClient
from evener.sandbox_runner.relay import Opening, Report, open_relay
from evener.sandboxes.port import LOOPBACK
from evener.service.owners import Owners
from evener.service.telemetry import metrics

NONCE = "evknonce"
REFUSED_SECONDS = 4.0
"""More than a call needs on a busy machine until it is admitted."""
LIMITS = Limits(admission_seconds=60, call_seconds=60, keep_alive_seconds=0.05, body_bytes=1 << 20)


class Served(Struct, frozen=True):
    """What a client sees, and what stands behind it."""

    hand: Hand
    url: str
    """The base URL of the session, without the version of a dialect."""
    owners: Owners
    clock: AgentClock
    report: Report

    async def refused(self) -> None:
        """Wait until the relay has refused a call for reasons of ours."""
        await eventually(lambda: self.report.unanswered is not None)

    def own(self) -> None:
        """The gateway lists all partitions."""
        self.owners.read([listing("g", self.hand.url, 0, 1)])

    async def sealed(self, code: int = 0) -> Any:
        """End the session; return its trajectory, checked against the engine's ledger."""
        await self.hand.exit("s1", code=code)
        await self.hand.until("s1", SessionSealed)
        return await rebuilt(self.hand, "s1")

    async def check_one_row(self, calls: int) -> None:
        """End the session: all its calls are one row, all fed, all delivered."""
        trajectory = await self.sealed()
        assert (trajectory.termination_reason, [row.fidelity for row in trajectory.rows], trajectory.inconsistencies) == (
            TerminationReason.FINISHED,
            [Fidelity.FED],
            (),
        )
        assert trajectory.accounting.delivered == trajectory.accounting.sampled > 0
        assert len(trajectory.calls) == calls


@asynccontextmanager
async def served(
    folder: Path,
    script: Script,
    *,
    streaming: Streaming = Streaming.BUFFERED,
    budgets: Budgets | None = None,
    quirks: Quirks | None = None,
    context: int = 4096,
    owned: bool = True,
    config: Config | None = None,
    limits: Limits = LIMITS,
) -> AsyncIterator[Served]:
    """Open everything around the session `s1`. `owned`: the relay knows the gateway from the start; else it waits a while for one."""
    limits = limits if owned else msgspec.structs.replace(limits, admission_seconds=REFUSED_SECONDS)
    async with gateway(folder, script, context=context, config=config) as hand:
        sampling = Sampling(max_tokens=200)
        capability = await hand.start("s1", budgets=budgets, sampling=sampling, streaming=streaming, quirks=quirks)
        partition = hand.bus.partition_of(Topic.SESSIONS, "s1")
        header = quirks.retry_header if quirks else None
        opening = Opening(
            session_id="s1",
            nonce=NONCE,
            capability=capability,
            partition=partition,
            models=("policy",),
            retry_header=header,
            listening=socket.create_server((LOOPBACK, 0)),
        )
        owners = Owners()
        client, clock, report = GatewayClient(hand.http, owners), AgentClock(time.monotonic), Report()
        async with open_relay(opening, client, clock, limits, metrics=metrics(CollectorRegistry()), report=report) as url:
            opened = Served(hand, f"{url}/s/any", owners, clock, report)
            if owned:
                opened.own()
            yield opened
