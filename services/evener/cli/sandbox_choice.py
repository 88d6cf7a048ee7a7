"""Chooses the sandbox of each task of a run: what the run or the task names, otherwise what the Evener that runs it offers.

Harnesses with tools get a sandbox that isolates them, if there is one, unless their user or the Evener trusts them. A task with an image
gets one that takes images.
"""

import os
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from msgspec import structs

from evener.cli.config import Config
from evener.cli.errors import Usage
from evener.cli.submission import Planned, RunRequest
from evener.cli.task_needs import TaskNeedsMore, check_needs
from evener.client.client import Client
from evener.client.views import FleetView
from evener.harnesses.registry import harness
from evener.proto.errors import EvenerError
from evener.proto.sandbox import SandboxOffer
from evener.proto.spec import HarnessSpec
from evener.sandboxes.registry import BACKENDS, BUBBLEWRAP, DOCKER, LOCAL
from evener.service.config_app import load
from evener.service.exits import complain

RUNNER_FOLDER: Final = "sandbox_runner"
UNTOLD: Final = SandboxOffer(backends=tuple(BACKENDS), default=LOCAL)
"""What is assumed of runners that do not say what they offer."""


class SandboxMissing(EvenerError):
    """Start `evener up` where this sandbox works (docs/sandboxes.md), or choose another one (`--sandbox`)."""


def placed(planned: Iterable[Planned], offer: SandboxOffer) -> list[Planned]:
    """Return the tasks, each in a sandbox that is offered. Raises SandboxMissing, TaskNeedsMore."""
    return [_in(each, _place(each, offer)) for each in planned]


async def placed_there(planned: Iterable[Planned], client: Client) -> list[Planned]:
    """Return the tasks, each in a sandbox of the Evener that a client is connected to. Raises SandboxMissing, TaskNeedsMore."""
    return placed(planned, offered_by(await client.fleet()))


def sandboxes_of(planned: Iterable[Planned]) -> set[str]:
    """Return the sandbox backends of a run."""
    return {each.options.harness.sandbox for each in planned}


def offered_here(*, trust_local: bool) -> SandboxOffer:
    """Return what an `evener up` would offer that a command starts here, with the same environment. Raises ConfigError. Blocks."""
    config = load(Config, (), os.environ, "up")
    backends = tuple(name for name, backend in BACKENDS.items() if backend.is_wanted(config.sandboxes))
    return SandboxOffer(backends=backends, default=config.sandbox or "", trusts_local=trust_local or config.trust_local)


def offered_by(fleet: FleetView) -> SandboxOffer:
    """Return what the living runners of an Evener offer together. A default counts if they agree on it."""
    told = [one.sandboxes for one in fleet.instances if one.service == RUNNER_FOLDER and one.alive and not one.stopping]
    offers = [offer for offer in told if offer is not None]
    if not offers or len(offers) < len(told):
        return UNTOLD
    backends = tuple(name for name in BACKENDS if any(name in offer.backends for offer in offers))
    defaults = {offer.default for offer in offers}
    default = defaults.pop() if len(defaults) == 1 else ""
    return SandboxOffer(backends=backends, default=default, trusts_local=all(offer.trusts_local for offer in offers))


def default_sandbox(spec: HarnessSpec, offer: SandboxOffer) -> str:
    """Return the backend of a task that names none and needs nothing in particular."""
    return next((name for name in _preferred(spec, offer) if name in offer.backends), spec.sandbox)


def trusting(run_request: RunRequest, sandboxes: Collection[str], *, trust_local: bool) -> tuple[str, ...]:
    """Return the options of an `up` that is started for the run. If the run needs trust and has it, warn what that means.

    Raises Usage if the run needs trust and does not have it.
    """
    name = run_request.harness.name
    if harness(name).has_tools and not all(BACKENDS[sandbox].isolates for sandbox in sandboxes):
        danger = f"harness {name} has tools, and a `local` sandbox is a plain process: it runs what the model writes with your rights"
        if not trust_local:
            msg = f"{danger}. Choose another one (--sandbox docker), or give --trust-local if you trust the tasks and the model"
            raise Usage(msg)
        complain(f"warning: {danger}; use tasks and models that you trust")
    return ("--trust-local",) if trust_local else ()


def _place(planned: Planned, offer: SandboxOffer) -> str:
    spec = planned.options.harness
    wanted = (spec.sandbox,) if planned.chosen else _preferred(spec, offer)
    offered = [name for name in wanted if name in offer.backends]
    if not offered:
        msg = f"this Evener has no sandboxes of `{wanted[0]}` (it has {', '.join(offer.backends)})"
        raise SandboxMissing(msg)
    for name in offered:
        try:
            check_needs(planned.task, (name,))
        except TaskNeedsMore as cause:
            lacking = cause
        else:
            return name
    raise lacking


def _preferred(spec: HarnessSpec, offer: SandboxOffer) -> Sequence[str]:
    """Return the backends of a task that names none, the first choice first."""
    if offer.default:
        return (offer.default, DOCKER)
    if harness(spec.name).has_tools and not offer.trusts_local:
        return (BUBBLEWRAP, DOCKER, LOCAL)
    return (spec.sandbox, DOCKER)


def _in(planned: Planned, sandbox: str) -> Planned:
    options = planned.options
    return structs.replace(planned, options=structs.replace(options, harness=structs.replace(options.harness, sandbox=sandbox)))
