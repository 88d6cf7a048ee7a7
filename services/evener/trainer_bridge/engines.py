"""The engines of each policy: which engines have joined, which weights each of them has, and how it gets others.

An engine reports its weights by a label, which lasts as long as the process that holds the weights:

- Loading begins with a pause. The engine then takes the label (`loaded_label`: policy, digest, number), then the weights, and resumes.
- Once the engine has proven its weights, its label gets the mark of its joining (`proven_label`), which the gateway waits for.

If the bridge dies at any point, an engine that is paused, or whose label differs from the log, is loaded and proven again.
"""

import asyncio
import time
from collections.abc import Awaitable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import structlog
from msgspec import Struct

from evener.bus.port import Bus
from evener.engines.port import EngineUnreachable, TokenScores, WeightControl
from evener.engines.registry import OPEN_ACCESS, EngineAccess, open_weights
from evener.proto.codec import AnyEvent
from evener.proto.errors import EvenerError
from evener.proto.fleet import Canary, CanaryPrompt, EngineJoined, EngineLeft, Heartbeat, PolicyPublished, PolicyStaged
from evener.proto.topics import Topic
from evener.runtime.faults import point
from evener.service.events import EventLog, plain
from evener.service.fleet_feed import FleetFeed
from evener.service.published import digest_in, loaded_label, proven_label, without_proof
from evener.service.telemetry import Metrics
from evener.trainer_bridge.canary import CanaryFailed, prove
from evener.trainer_bridge.weights import Weights, WeightsRefused, read_weights

CANARY_TEXTS: Final = (
    "The agent reads the file, writes the answer and stops.",
    "What is 12 + 345? Think first, then call the tool with the sum.",
    "def name(values):\n    return {'result': sorted(values)}\n",
)
"""The canary's texts if the trainer gives no canary. They show that the weights changed, not that they are right."""
CANARY_TOKENS: Final = 32
"""The largest number of tokens that are used of each of these texts."""
UNNAMED: Final = "default"
"""The name that vLLM gives to the weights that it was started with."""

T = TypeVar("T")

log = structlog.get_logger()


class EngineHung(EngineUnreachable):
    """The engine has left the fleet. Look at its log, and let it join again. Weights that take longer need a larger `load_seconds`."""


class KnownWeights(Struct, frozen=True, kw_only=True):
    """Weights that an engine has, or that it is to load."""

    version: int
    location: str
    digest: str | None
    """The digest of the weights. None: it is unknown."""
    loaded: str
    """The label of an engine that has loaded the weights."""
    proven: str
    """The label of an engine that has also proven them."""


class PolicyEngine(Struct, eq=False):
    """An engine that samples a policy."""

    joined: EngineJoined
    control: WeightControl | None
    """Exchanges the engine's weights. None: the engine keeps the weights that it was started with."""
    told: str = ""
    """The last trouble with the engine that was logged, so that it is logged once."""

    @property
    def engine_id(self) -> str:
        return self.joined.engine_id


class PolicyEngines:
    """The engines that sample policies, and the policies that gateways serve, according to `fleet`. Frozen engines are not listed."""

    def __init__(
        self, bus: Bus, fleet: FleetFeed, events: EventLog, metrics: Metrics, *, load_seconds: float, access: EngineAccess = OPEN_ACCESS
    ) -> None:
        """`load_seconds`: how long an engine may take to load new weights, or to prove them."""
        self.load_seconds: Final = load_seconds
        self._access: Final = access
        self.changed: Final = asyncio.Event()
        """Set when an engine has joined."""
        self._bus = bus
        self._fleet = fleet
        self._events = events
        self._metrics = metrics
        self._engines: dict[str, PolicyEngine] = {}
        self._served: dict[str, tuple[str, ...]] = {}
        """Gateway id to the policies that the gateway serves."""
        self._left: list[WeightControl] = []
        self._next = 0
        self._origins: dict[str, Weights] = {}
        """Folder to the weights that engines were started with, as they were when they were first seen."""

    def of(self, policy: str) -> list[PolicyEngine]:
        """Return the engines that sample a policy."""
        return [engine for _, engine in sorted(self._engines.items()) if engine.joined.policy == policy]

    def policies(self) -> set[str]:
        """Return the policies that any engine samples."""
        return {engine.joined.policy for engine in self._engines.values() if engine.joined.policy is not None}

    def known(self) -> set[str]:
        """Return the policies that any engine samples, or any gateway serves."""
        return self.policies().union(*self._served.values())

    async def start(self) -> None:
        """Read what `fleet` says of each engine."""
        for record in await self._fleet.now():
            self._take(record.offset, record.event)

    async def refresh(self) -> None:
        """Read `fleet` to its present end."""
        async for record in self._bus.read(Topic.FLEET, 0, self._next):
            self._take(record.offset, plain(record))

    async def follow(self) -> None:
        """Follow `fleet` for ever."""
        async with aclosing(self._fleet.follow()) as batches:
            async for batch in batches:
                for record in batch:
                    self._take(record.offset, record.event)

    async def evict(self, engine: PolicyEngine, error: EvenerError | str) -> None:
        """Remove an engine from the fleet, with an alarm: it hangs, or its weights are unknown."""
        self._metrics.updates.labels("evicted").inc()
        log.error("engine_evicted", engine_id=engine.engine_id, policy=engine.joined.policy, error=str(error))
        left = EngineLeft(engine_id=engine.engine_id, left_at=time.time())
        await self._events.send(Topic.FLEET, engine.engine_id, left)
        await self.refresh()

    async def started_with(self, policy: str, control: WeightControl) -> KnownWeights:
        """Return the weights that an engine was started with, and that no trainer published."""
        location = await control.origin()
        first = await self.first_seen(location)
        label = f"{policy}@0"
        return KnownWeights(version=0, location=location, digest=None if first is None else first.digest, loaded=label, proven=label)

    async def first_seen(self, location: str) -> Weights | None:
        """Return the weights in a folder that an engine names. None: it is a model's name, or a place that only the engine can read."""
        if location not in self._origins and Path(location).is_absolute():
            with suppress(WeightsRefused):
                self._origins[location] = await asyncio.to_thread(read_weights, Path(location))
        return self._origins.get(location)

    async def clean(self) -> None:
        """Close the connections to engines that have left. Do not call this while an update may still use them."""
        while self._left:
            await self._left.pop().aclose()

    async def aclose(self) -> None:
        """Close the connections to all engines."""
        for engine_id in list(self._engines):
            self._forget(engine_id)
        await self.clean()

    def _take(self, offset: int, event: AnyEvent | None) -> None:
        if offset < self._next:  # `refresh` and `follow` meet the same ones
            return
        self._next = offset + 1
        match event:
            case EngineJoined():
                self._forget(event.engine_id)
                self._engines[event.engine_id] = PolicyEngine(event, open_weights(event, self._access, load_seconds=self.load_seconds))
                self.changed.set()
            case EngineLeft():
                self._forget(event.engine_id)
            case Heartbeat(service="provider_gateway"):
                self._served[event.instance_id] = event.policies
            case _:
                pass

    def _forget(self, engine_id: str) -> None:
        engine = self._engines.pop(engine_id, None)
        if engine is not None and engine.control is not None:
            self._left.append(engine.control)


def weights_of(event: PolicyStaged | PolicyPublished, joined: EngineJoined) -> KnownWeights:
    """Return the weights of a version, with the labels of an engine that joined by this event."""
    return KnownWeights(
        version=event.version,
        location=event.location,
        digest=event.digest,
        loaded=loaded_label(event),
        proven=proven_label(event, joined),
    )


async def has(control: WeightControl, wanted: KnownWeights) -> bool:
    """Return whether an engine reports these weights, proven or not."""
    label, paused = await control.label(), await control.paused()
    return not paused and (without_proof(label) == wanted.loaded or (label == UNNAMED and wanted.version == 0))


async def load(control: WeightControl, wanted: KnownWeights) -> float:
    """Exchange the weights while answers are open. Return how many seconds the engine was paused."""
    began = time.monotonic()
    await control.pause()
    await point("bridge.engine_paused")
    await control.relabel(wanted.loaded)
    await point("bridge.engine_relabelled")
    await control.load(wanted.location)
    await point("bridge.engine_loaded")
    await control.resume()
    await point("bridge.engine_resumed")
    return time.monotonic() - began


async def bring(engine: PolicyEngine, control: WeightControl, current: PolicyPublished) -> None:
    """Have an engine that joined, or that came back with other weights, prove the current version. Load the version first if need be.

    Raises CanaryFailed if its weights are unknown, WeightsRefused if the folder has changed, and EngineError.
    """
    wanted = weights_of(current, engine.joined)
    label, paused = await control.label(), await control.paused()
    if label == wanted.proven and not paused:
        return
    if not await has(control, wanted):
        await check_folder(current)
        await _load_and_prove(engine, control, current, wanted)
    elif current.canary is not None:
        try:
            _prove(engine, current, current.canary, None, await scores(control, current.canary))
        except CanaryFailed as failed:
            if not await loadable(wanted):
                raise
            log.warning("engine_label_wrong", engine_id=engine.engine_id, policy=current.policy, error=str(failed))
            await _load_and_prove(engine, control, current, wanted)
    await control.relabel(wanted.proven)
    log.info("engine_updated", engine_id=engine.engine_id, policy=current.policy, version=current.version)


async def loadable(wanted: KnownWeights) -> bool:
    """Return whether the folder still holds these weights, as far as this machine can see. Every byte of it is read."""
    if wanted.digest is None:
        return True
    try:
        return (await asyncio.to_thread(read_weights, Path(wanted.location))).digest == wanted.digest
    except WeightsRefused:
        return False


async def check_folder(version: PolicyStaged | PolicyPublished) -> Weights:
    """Return the weights of a version. Raises WeightsRefused if its folder has been overwritten since."""
    weights = await asyncio.to_thread(read_weights, Path(version.location))
    if weights.digest != version.digest:
        msg = f"{version.location} holds other weights than it did as version {version.version} of {version.policy}"
        raise WeightsRefused(msg)
    return weights


async def in_time(engine_id: str, seconds: float, doing: Awaitable[T]) -> T:
    """Return the result of an engine's work. Raises EngineHung if it takes longer than `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            return await doing
    except TimeoutError as cause:
        msg = f"engine {engine_id} took longer than {seconds:g} s over its weights"
        raise EngineHung(msg) from cause


async def scores(control: WeightControl, canary: Canary) -> list[TokenScores]:
    """Return an engine's scores of the canary, prompt by prompt."""
    prompts = [np.asarray(prompt.ids, np.int32) for prompt in canary.prompts]
    return list(await asyncio.gather(*(control.score(ids) for ids in prompts)))


async def own_canary(control: WeightControl) -> Canary:
    """Return a canary in the ids of an engine's tokenizer."""
    ids = [tuple((await control.tokenize(text))[:CANARY_TOKENS]) for text in CANARY_TEXTS]
    return Canary(prompts=tuple(CanaryPrompt(ids=each) for each in ids if len(each) > 1))


async def _load_and_prove(engine: PolicyEngine, control: WeightControl, current: PolicyPublished, wanted: KnownWeights) -> None:
    """Load the version and prove it. The scores of an engine whose label named another version must change."""
    canary = current.canary or await own_canary(control)
    had_another = digest_in(await control.label()) not in {"", digest_in(wanted.loaded)} and not await control.paused()
    before = await scores(control, canary) if had_another else None
    await load(control, wanted)
    _prove(engine, current, canary, before, await scores(control, canary))


def _prove(
    engine: PolicyEngine, current: PolicyPublished, canary: Canary, before: list[TokenScores] | None, after: list[TokenScores]
) -> None:
    prove(engine.engine_id, canary, before, after, version=current.version, differs=before is not None, joining=True)
