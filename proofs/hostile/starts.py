"""What an Evener meets when it starts: trees that a harness left, and an odd name of its own. Each input has an Evener of its own."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

from proofs.hostile.control import ODD
from proofs.hostile.input import Input, Kind, Unexpected
from proofs.hostile.running import Site, site
from tests.support.up import EVENER

from evener.proto.spec import Budgets

CANARY_SECONDS: Final = 30.0
START_SECONDS: Final = 60.0


async def removed(folder: Path) -> None:
    """Remove a folder, however deep it is."""
    await (await asyncio.create_subprocess_exec("chmod", "-R", "u+rwx", str(folder))).wait()
    await (await asyncio.create_subprocess_exec("rm", "-rf", str(folder))).wait()


@asynccontextmanager
async def own_site(program: Sequence[str] = EVENER, **options: str | float) -> AsyncIterator[Site]:
    """Yield a site on a folder of its own."""
    folder = Path(tempfile.mkdtemp(prefix="evener-hostile-"))
    try:
        async with site(folder, program=program, **options) as made:
            yield made
    finally:
        await removed(folder)


async def killed_over(_: Site, behaviour: Sequence[str]) -> None:
    """Kill Evener while a harness has left something in its sandbox, and start it again on the same folder."""
    async with own_site() as own:
        await own.start()
        budgets = Budgets(attempts=1)
        working = asyncio.create_task(own.work(["then_wait", *behaviour], budgets=budgets))
        try:
            async with asyncio.timeout(START_SECONDS):
                while not any((own.state / "sandboxes").glob("*/*/*/app/left")):  # noqa: ASYNC110 - a file of other processes
                    await asyncio.sleep(0.05)
        finally:
            working.cancel()
        await own.up.kill()
        await started(own)


async def stopped_over(_: Site, behaviour: Sequence[str]) -> None:
    """Stop Evener in good order after a harness has left something, and start it again."""
    async with own_site() as own:
        await own.start()
        async with asyncio.timeout(START_SECONDS):
            await own.work(behaviour)
        await own.up.stop()
        await started(own)


async def started(own: Site) -> None:
    """Start it. Raises Unexpected unless it becomes ready and works."""
    try:
        await own.start()
    except (AssertionError, TimeoutError) as cause:
        msg = f"it does not start again: {str(cause)[-600:]}"
        raise Unexpected(msg) from None
    await own.canary(CANARY_SECONDS)
    await own.up.stop()


async def named(_: Site, name: str) -> None:
    """Start an Evener of an odd name: it works, or says in a line what is wrong with it."""
    async with own_site(instance=name) as own:
        await own.up.start()
        with suppress(AssertionError):  # it ended
            await own.up.ready()
        if own.up.ended is None:
            await own.canary(CANARY_SECONDS)
            await own.up.stop()
        elif "Traceback" in own.up.log or "evener: " not in own.up.log:
            msg = f"it ends with {own.up.ended}: {own.up.log[-400:]}"
            raise Unexpected(msg)


STARTS: Final = (
    *(
        Input(
            kind=Kind.STARTS,
            name=f"killed over {what}",
            act=partial(killed_over, behaviour=behaviour),
            seconds=60,
            timed=False,
            review=review,
        )
        for what, behaviour, review in (
            ("a tree of directories 1,100 deep", ("deep", "1100"), "1.2"),
            ("a folder that may not be opened", ("locked",), ""),
        )
    ),
    Input(
        kind=Kind.STARTS,
        name="stopped over a tree of directories 5,000 deep",
        act=partial(stopped_over, behaviour=("deep", "5000")),
        seconds=60,
        timed=False,
        review="1.2",
    ),
    *(
        Input(kind=Kind.STARTS, name=f"an instance's name {what}", act=partial(named, name=name), seconds=45, timed=False)
        for what, name in ODD.items()
        if "\x00" not in name
    ),
    Input(kind=Kind.STARTS, name="an instance's name of two lines", act=partial(named, name="a\nb"), seconds=45, timed=False),
)
