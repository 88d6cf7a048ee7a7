"""The registry of sandbox backends. A new backend is a module that implements `port.Sandboxes`, and one entry here."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from evener.sandboxes.local import open_local
from evener.sandboxes.port import Sandboxes

LOCAL: Final = "local"
BACKENDS: Final[dict[str, Callable[[Path], AbstractAsyncContextManager[Sandboxes]]]] = {LOCAL: open_local}


@asynccontextmanager
async def open_backends(root: Path) -> AsyncIterator[Mapping[str, Sandboxes]]:
    """Open every backend on a folder of this process; yield them by name. Raises SandboxHeld, SandboxError."""
    async with AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(opened(root)) for name, opened in BACKENDS.items()}
