"""The engines that an update goes to, and what each has before it."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final

from evener.engines.port import EngineError, EngineUnreachable, WeightControl
from evener.proto.errors import EvenerError
from evener.proto.fleet import PolicyPublished, PolicyStaged
from evener.trainer_bridge.driving import Candidate, Missing
from evener.trainer_bridge.fleet import Engines, Joined
from evener.trainer_bridge.policies import Policies
from evener.trainer_bridge.updating import Held, held, held_at_start
from evener.trainer_bridge.weights import Weights, WeightsRefused, check_same_model, read_weights


class NotUpdatable(EvenerError):
    """Serve the policy with vLLM in development mode, or let this engine leave, to publish versions of it."""


class Candidates:
    """Finds them."""

    def __init__(self, policies: Policies, engines: Engines) -> None:
        self._policies = policies
        self._engines = engines
        self._origins: Final[dict[str, Weights]] = {}
        """Weights that engines were started with, by folder, as they were when they were first seen."""

    async def of(self, staged: PolicyStaged, weights: Weights, missing: Missing) -> list[Candidate]:
        """Return the policy's engines; those that do not answer are noted. Raises NotUpdatable, WeightsRefused for another model."""
        current = self._policies.current(staged.policy)
        if current is not None:
            await _check_against(current, weights)
        found: list[Candidate] = []
        for engine in self._engines.of(staged.policy):
            if engine.control is None:
                msg = f"engine {engine.engine_id} of kind {engine.joined.kind} keeps the weights that it was started with"
                raise NotUpdatable(msg)
            try:
                await engine.control.label()
                before = await self._before(engine, engine.control, current, staged, weights)
            except EngineUnreachable as unreachable:
                missing.note(engine, unreachable)
            except EngineError as cause:
                msg = f"engine {engine.engine_id} takes no weights: {cause.args[0]}"
                raise NotUpdatable(msg) from cause
            else:
                found.append(Candidate(engine=engine, control=engine.control, before=before))
        return found

    async def origin(self, policy: str, control: WeightControl) -> Held:
        """Return what an engine was started with; whose digest is known where the folder can be seen from here."""
        origin = await control.origin()
        first = await self._seen(origin)
        return held_at_start(policy, origin, None if first is None else first.digest)

    async def _before(
        self, engine: Joined, control: WeightControl, current: PolicyPublished | None, staged: PolicyStaged, weights: Weights
    ) -> Held:
        if current is not None:
            return held(current, engine.joined)
        before = await self.origin(staged.policy, control)
        if Path(before.location).is_absolute() and Path(staged.location) == await asyncio.to_thread(Path(before.location).resolve):
            msg = f"{staged.location} is what engine {engine.engine_id} was started with (version 0), which must stay to be loaded again"
            raise WeightsRefused(msg)
        if (first := await self._seen(before.location)) is not None:
            check_same_model(weights, first)
        return before

    async def _seen(self, origin: str) -> Weights | None:
        """Return the weights in a folder that an engine names. None: it is a name, or a place that only the engine knows."""
        if origin not in self._origins and Path(origin).is_absolute():
            with suppress(WeightsRefused):
                self._origins[origin] = await asyncio.to_thread(read_weights, Path(origin))
        return self._origins.get(origin)


async def _check_against(current: PolicyPublished, weights: Weights) -> None:
    """Raise WeightsRefused for another model than that of the current version, if its folder is still there."""
    try:
        before = await asyncio.to_thread(read_weights, Path(current.location), digest=current.digest)
    except WeightsRefused:
        return
    check_same_model(weights, before)
