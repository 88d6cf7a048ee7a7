"""One engine's weights: which version it has, and the way to another.

Where the bridge dies in between, the engine tells by itself: the label is changed before the weights and both while it is paused. So
an engine that samples has the weights that its label names; one that is paused, or labelled otherwise than the log says, is loaded
again.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from evener.engines.port import Scores, WeightControl
from evener.engines.vllm import version_number
from evener.proto.fleet import Canary, CanaryPrompt, PolicyPublished, PolicyStaged
from evener.service.faults import point

TEXTS: Final = (
    "The agent reads the file, writes the answer and stops.",
    "What is 12 + 345? Think first, then call the tool with the sum.",
    "def name(values):\n    return {'result': sorted(values)}\n",
)
"""The canary of a trainer that gives none; it shows that weights changed, not that they are right."""
TOKENS: Final = 32
"""Of each of these texts, at most."""


class Held(Struct, frozen=True, kw_only=True):
    """Weights that engines hold, or are to hold."""

    label: str
    version: int
    location: str


def held(event: PolicyStaged | PolicyPublished) -> Held:
    """Return a version as engines are told of it."""
    return Held(label=f"{event.policy}@{event.version}", version=event.version, location=event.location)


async def held_at_start(policy: str, control: WeightControl) -> Held:
    """Return the weights that no trainer published: those that the engine was started with."""
    return Held(label=f"{policy}@0", version=0, location=await control.origin())


async def has(control: WeightControl, wanted: Held) -> bool:
    """Return whether an engine samples by these weights."""
    label, paused = await control.label(), await control.paused()
    try:
        return not paused and version_number(label) == wanted.version
    except ValueError:  # somebody else's label
        return False


async def load(control: WeightControl, wanted: Held) -> float:
    """Exchange the weights under the open answers; return the seconds in which nothing was sampled."""
    began = time.monotonic()
    await control.pause()
    await point("bridge.engine_paused")
    await control.relabel(wanted.label)
    await point("bridge.engine_relabelled")
    await control.load(wanted.location)
    await point("bridge.engine_loaded")
    await control.resume()
    await point("bridge.engine_resumed")
    return time.monotonic() - began


async def scores(control: WeightControl, canary: Canary) -> list[Scores]:
    """Return what an engine thinks of the canary, prompt by prompt."""
    prompts = [np.asarray(prompt.ids, np.int32) for prompt in canary.prompts]
    return list(await asyncio.gather(*(control.score(ids) for ids in prompts)))


async def own_canary(controls: Sequence[WeightControl]) -> Canary:
    """Return a canary in the ids of the first engine's tokenizer."""
    ids = [tuple((await controls[0].tokenize(text))[:TOKENS]) for text in TEXTS]
    return Canary(prompts=tuple(CanaryPrompt(ids=each) for each in ids if len(each) > 1))
