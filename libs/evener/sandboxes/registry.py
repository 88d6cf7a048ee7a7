"""The registry of sandbox backends. A new backend is a module that implements `port.Sandboxes`, and one entry here.

A backend is opened on a folder of its process. One that needs more, such as a daemon's address, brings keys of the runner's and the
evaluator's configuration, which open the backends, and takes them here.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from evener.sandboxes.local import open_local
from evener.sandboxes.port import Sandboxes

LOCAL: Final = "local"
BACKENDS: Final[dict[str, Callable[[Path], AbstractAsyncContextManager[Sandboxes]]]] = {LOCAL: open_local}


def usable(backends: Mapping[str, Sandboxes]) -> dict[str, bool]:
    """Return the conditions of readiness of backends: that one of them can open sandboxes, and each that cannot, with the reason."""
    troubles = {name: backend.trouble() for name, backend in backends.items()}
    return {"sandboxes": not all(troubles.values())} | {f"sandboxes {name}: {why}": False for name, why in troubles.items() if why}


@asynccontextmanager
async def open_backends(root: Path) -> AsyncIterator[Mapping[str, Sandboxes]]:
    """Open every backend on a folder of this process; yield them by name. Raises SandboxHeld, SandboxError."""
    async with AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(opened(root)) for name, opened in BACKENDS.items()}
