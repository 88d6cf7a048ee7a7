"""The blob store of a process: what a host gives its services knows whether the store still holds what the process wrote."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec import structs
from tests.support.service_context import QUICK
from tests.unit.service.services import Toy, for_ever

from evener.blobs.port import NotRead
from evener.service.config import ServiceConfig
from evener.service.context import ServiceContext
from evener.service.host import run_services
from evener.service.supervisor import Wanted


async def test_object_is_not_lost_because_the_folder_of_the_store_is_not_mounted(tmp_path: Path) -> None:
    """An empty folder in its place answers, and has nothing: a session whose blobs are not there now must not end for that."""
    opened: asyncio.Future[ServiceContext] = asyncio.get_running_loop().create_future()

    @asynccontextmanager
    async def beside(context: ServiceContext) -> AsyncIterator[None]:
        opened.set_result(context)
        yield

    config = ServiceConfig(state=str(tmp_path / "state"), blobs=str(tmp_path / "blobs"))
    wanted = [Wanted(name="toy", config=config, open=Toy(for_ever).open)]
    timings = structs.replace(QUICK, answer_seconds=0.1)
    running = asyncio.create_task(run_services(config, wanted, beside=[beside], blob_timings=timings))
    try:
        context = await opened
        ref = await context.blobs.put(b"there")
        (tmp_path / "blobs").rename(tmp_path / "elsewhere")
        (tmp_path / "blobs").mkdir()
        with pytest.raises(NotRead, match="neither is what this process wrote: is it mounted"):
            await context.answering_blobs().get(ref)
        (tmp_path / "blobs").rmdir()
        (tmp_path / "elsewhere").rename(tmp_path / "blobs")
        assert await context.answering_blobs().get(ref) == b"there"
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
