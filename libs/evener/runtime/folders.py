"""Temporary folders of code that runs on the event loop."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from secrets import token_hex

from evener.runtime.threads import to_its_end


@asynccontextmanager
async def temporary_folder(prefix: str, within: Path | None = None) -> AsyncIterator[Path]:
    """Yield a new folder that only this user may read, in `within` or in the system's temporary folder.

    Remove it with its files afterwards.

    It is made and removed in a thread: the removal of 10,000 files takes a third of a second. Files that cannot be removed stay.
    """
    folder = (within or Path(tempfile.gettempdir())) / f"{prefix}{token_hex(8)}"
    try:
        await to_its_end(asyncio.to_thread(folder.mkdir, mode=0o700))
        yield folder
    finally:
        await to_its_end(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))
