"""A process with one small service: `python toy_program.py MODE --state FOLDER ...`."""

import asyncio
import os
import sys

from tests.unit.service.services import Toy, for_ever

from evener.service.config import ServiceConfig
from evener.service.config_app import load
from evener.service.exits import exit_code
from evener.service.host import run_process
from evener.service.supervisor import Wanted


async def hang(_: int) -> None:
    """Survive every cancellation."""
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            continue


async def slow(_: int) -> None:
    """Take a while to open."""
    await asyncio.Event().wait()


def main() -> int:
    """Run the toy until a signal."""
    toy = {"steady": Toy(for_ever), "hanging": Toy(hang), "slow": Toy(for_ever, opening=slow)}[sys.argv[1]]
    config = load(ServiceConfig, sys.argv[2:], os.environ, "scheduler")
    return run_process(config, [Wanted(name="toy", config=config, open=toy.open)], state_file=True)


if __name__ == "__main__":
    raise SystemExit(exit_code(main))
