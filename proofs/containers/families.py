"""The linear case of the conformance suite, in containers and as plain processes: a trainer is given the same rows."""

import asyncio

from msgspec import Struct
from proofs.conformance.cases import CASES
from proofs.conformance.cells import run
from proofs.conformance.setups import SetUp
from proofs.conformance.sites import Site

from evener.cli.harness_bundles import cache
from evener.harnesses.registry import harness
from evener.proto.arrays import int32s, uint8s
from evener.proto.trajectories import Row
from evener.sandboxes.registry import DOCKER, LOCAL

LINEAR = CASES["linear"]


class Compared(Struct, frozen=True, kw_only=True):
    """What became of a set-up in both sandboxes."""

    set_up: str
    rows: int
    calls: int
    docker_seconds: float
    local_seconds: float
    wrong: tuple[str, ...]
    """What was not as it should be. Empty: nothing."""


async def compared(at: Site, setup: SetUp) -> Compared:
    """Run the linear case of a set-up in `docker` and in `local`; each must also show what the conformance suite wants."""
    await harness(setup.harness).install(await asyncio.to_thread(cache))
    (contained, wrong), (plain, wrong_here) = await run(at, setup, LINEAR, DOCKER), await run(at, setup, LINEAR, LOCAL)
    wanted = setup.wanted(LINEAR.name)
    differences = (*contained.differs(wanted), *wrong, *plain.differs(wanted), *wrong_here)
    same = [trained(row) for row in contained.rows] == [trained(row) for row in plain.rows]
    return Compared(
        set_up=setup.name,
        rows=len(contained.rows),
        calls=contained.calls,
        docker_seconds=contained.seconds,
        local_seconds=plain.seconds,
        wrong=(*differences, *(() if same else ("docker and local do not train the same tokens",))),
    )


def trained(row: Row) -> tuple[object, ...]:
    """Return what a row has in every sandbox: what was sampled, and its place. Prompts name folders and dates."""
    sampled = int32s(row.call_of) >= 0
    ids, masks = int32s(row.ids)[sampled].tolist(), uint8s(row.loss_mask)[sampled].tolist()
    return row.kind, row.root, row.fidelity, row.finish_reason, len(row.calls), ids, masks
