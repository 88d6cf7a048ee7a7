"""Ends a child process."""

import asyncio
from asyncio.subprocess import Process


async def end(process: Process, seconds: float) -> None:
    """End a process, by force if it does not react within this time. Survives a cancellation."""
    try:
        if process.returncode is None:
            process.terminate()
            async with asyncio.timeout(seconds):
                await process.wait()
    except TimeoutError:
        pass
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
