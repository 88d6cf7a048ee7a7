"""A real object store, whose objects are files in a folder: versitygw, built from its Go module at first use."""

import asyncio
import os
import subprocess
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from proofs.compose.stand_ins import OBJECTS
from scripts.kafka import cache, die_with_parent, free_ports

KEYS: Final = {"AWS_ACCESS_KEY_ID": "chaos", "AWS_SECRET_ACCESS_KEY": "chaos-secret"}
START_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.1


def environment(port: int) -> dict[str, str]:
    """Return the variables by which a process finds the store."""
    return {"AWS_ENDPOINT": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1", **KEYS}


@asynccontextmanager
async def object_store(folder: Path) -> AsyncIterator[int]:
    """Run a store whose buckets are the folders in `folder`; yield its port."""
    program = await asyncio.to_thread(_built)
    (port,) = await asyncio.to_thread(free_ports, 1)
    told = {"ROOT_ACCESS_KEY": KEYS["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": KEYS["AWS_SECRET_ACCESS_KEY"]}
    words = (str(program), "--port", f"127.0.0.1:{port}", "posix", str(folder))
    with folder.with_name("objects.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *words, stdin=DEVNULL, stdout=log, stderr=log, env=os.environ | told, preexec_fn=die_with_parent
        )
    try:
        await _accepts(port)
        yield port
    finally:
        process.kill()
        await process.wait()


async def _accepts(port: int) -> None:
    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(POLL_SECONDS)
            else:
                writer.close()
                return


def _built() -> Path:
    """Return the program, built if it is missing."""
    folder = cache().with_name(OBJECTS.rpartition("/")[2])
    if not (folder / "versitygw").exists():
        subprocess.run(["go", "install", OBJECTS], env=os.environ | {"GOBIN": str(folder), "CGO_ENABLED": "0"}, check=True)
    return folder / "versitygw"
