"""An engine that joined, or came back with other weights: brought to its policy's version and proven, before any gateway uses it."""

import asyncio
from pathlib import Path

import structlog

from evener.engines.port import Scores, WeightControl
from evener.proto.fleet import Canary, PolicyPublished, PolicyStaged
from evener.service.published import digest_in
from evener.trainer_bridge.canary import CanaryFailed, prove
from evener.trainer_bridge.fleet import Joined
from evener.trainer_bridge.updating import Held, has_proven, held, holds, load, loadable, own_canary, scores
from evener.trainer_bridge.weights import Weights, WeightsRefused, read_weights

log = structlog.get_logger()


async def bring(engine: Joined, control: WeightControl, current: PolicyPublished) -> None:
    """Let an engine prove the current version, loaded if need be.

    Raises CanaryFailed: nobody knows its weights; WeightsRefused: the folder is not what it was; EngineError.
    """
    wanted = held(current, engine.joined)
    if await has_proven(control, wanted):
        return
    if await holds(control, wanted):
        await _prove_again(engine, control, current, wanted)
    else:
        await weights_of(current)
        await _load(engine, control, current, wanted)
    await control.relabel(wanted.proven)
    log.info("engine_updated", engine_id=engine.engine_id, policy=current.policy, version=current.version)


async def weights_of(version: PolicyStaged | PolicyPublished) -> Weights:
    """Return the weights of a version, whose folder may have been written over since. Raises WeightsRefused."""
    weights = await asyncio.to_thread(read_weights, Path(version.location))
    if weights.digest != version.digest:
        msg = f"{version.location} holds other weights than it did as version {version.version} of {version.policy}"
        raise WeightsRefused(msg)
    return weights


async def _prove_again(engine: Joined, control: WeightControl, current: PolicyPublished, wanted: Held) -> None:
    """See whether an engine that says it has the version samples by it; load it only if not, and if the folder is still there."""
    if current.canary is None:
        return
    try:
        _prove(engine, current, current.canary, None, await scores(control, current.canary))
    except CanaryFailed as failed:
        if not await loadable(wanted):
            raise
        log.warning("engine_label_wrong", engine_id=engine.engine_id, policy=current.policy, error=str(failed))
        await _load(engine, control, current, wanted)


async def _load(engine: Joined, control: WeightControl, current: PolicyPublished, wanted: Held) -> None:
    """Load the version and prove it. An engine that had another one, by its label, has to score otherwise afterwards."""
    canary = current.canary or await own_canary(control)
    had_another = _names_another(await control.label(), wanted) and not await control.paused()
    before = await scores(control, canary) if had_another else None
    await load(control, wanted)
    _prove(engine, current, canary, before, await scores(control, canary))


def _prove(engine: Joined, current: PolicyPublished, canary: Canary, before: list[Scores] | None, after: list[Scores]) -> None:
    prove(engine.engine_id, canary, before, after, version=current.version, differs=before is not None, joining=True)


def _names_another(label: str, wanted: Held) -> bool:
    """Return whether a label is that of other weights: it has a digest, and another one."""
    return digest_in(label) not in {"", digest_in(wanted.loaded)}
