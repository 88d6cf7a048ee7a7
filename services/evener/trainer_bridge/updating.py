"""One engine's weights: which version it has, and the way to another.

What an engine has it tells by its label, which lives and dies with the process that holds the weights:

- Loading begins with a pause, then the label (`loaded_label`: policy, digest, number), then the weights; then it samples again.
- Only when it has proven what it samples by, its label gets the mark of its joining (`proven_label`). The gateway waits for that one.

So wherever the bridge dies, an engine that is paused, or labelled otherwise than the log says, is loaded and proven again.
"""

import asyncio
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
from msgspec import Struct

from evener.engines.port import EngineUnreachable, Scores, WeightControl
from evener.proto.fleet import Canary, CanaryPrompt, EngineJoined, PolicyPublished, PolicyStaged
from evener.service.faults import point
from evener.service.published import loaded_label, proven_label, without_proof
from evener.trainer_bridge.weights import WeightsRefused, read_weights

TEXTS: Final = (
    "The agent reads the file, writes the answer and stops.",
    "What is 12 + 345? Think first, then call the tool with the sum.",
    "def name(values):\n    return {'result': sorted(values)}\n",
)
"""The canary of a trainer that gives none; it shows that weights changed, not that they are right."""
TOKENS: Final = 32
"""Of each of these texts, at most."""
UNNAMED: Final = "default"
"""How vLLM calls the weights that it was started with."""

Got = TypeVar("Got")


class EngineHung(EngineUnreachable):
    """It has left the fleet. Look at its log, and let it join again; weights that take longer need a larger `load_seconds`."""


class Held(Struct, frozen=True, kw_only=True):
    """Weights that engines hold, or are to hold."""

    version: int
    location: str
    digest: str | None
    """None: nobody knows it."""
    loaded: str
    """The label of an engine that was given them."""
    proven: str
    """Its label once it has proven them."""


def held(event: PolicyStaged | PolicyPublished, joined: EngineJoined) -> Held:
    """Return a version as an engine is told of it."""
    return Held(
        version=event.version,
        location=event.location,
        digest=event.digest,
        loaded=loaded_label(event),
        proven=proven_label(event, joined),
    )


def held_at_start(policy: str, location: str, digest: str | None) -> Held:
    """Return the weights that no trainer published: those that an engine was started with."""
    return Held(version=0, location=location, digest=digest, loaded=f"{policy}@0", proven=f"{policy}@0")


async def holds(control: WeightControl, wanted: Held) -> bool:
    """Return whether an engine says that it samples by these weights, proven or not."""
    label, paused = await control.label(), await control.paused()
    return not paused and (without_proof(label) == wanted.loaded or (label == UNNAMED and wanted.version == 0))


async def has_proven(control: WeightControl, wanted: Held) -> bool:
    """Return whether an engine has proven, since it joined, that it samples by these weights."""
    label, paused = await control.label(), await control.paused()
    return not paused and label == wanted.proven


async def load(control: WeightControl, wanted: Held) -> float:
    """Exchange the weights under the open answers; return the seconds in which nothing was sampled."""
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


async def loadable(wanted: Held) -> bool:
    """Return whether the folder still holds these weights, as far as that can be seen from here. Every byte of it is read."""
    if wanted.digest is None:
        return True
    try:
        return (await asyncio.to_thread(read_weights, Path(wanted.location))).digest == wanted.digest
    except WeightsRefused:
        return False


async def in_time(engine_id: str, seconds: float, doing: Awaitable[Got]) -> Got:
    """Return what an engine does. Raises EngineHung if it takes longer."""
    try:
        async with asyncio.timeout(seconds):
            return await doing
    except TimeoutError as cause:
        msg = f"engine {engine_id} took longer than {seconds:g} s over its weights"
        raise EngineHung(msg) from cause


async def scores(control: WeightControl, canary: Canary) -> list[Scores]:
    """Return what an engine thinks of the canary, prompt by prompt."""
    prompts = [np.asarray(prompt.ids, np.int32) for prompt in canary.prompts]
    return list(await asyncio.gather(*(control.score(ids) for ids in prompts)))


async def own_canary(control: WeightControl) -> Canary:
    """Return a canary in the ids of an engine's tokenizer."""
    ids = [tuple((await control.tokenize(text))[:TOKENS]) for text in TEXTS]
    return Canary(prompts=tuple(CanaryPrompt(ids=each) for each in ids if len(each) > 1))
