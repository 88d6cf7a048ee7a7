"""The harnesses that this runner has installed."""

import asyncio
from pathlib import Path

from evener.harnesses.port import Harness, HarnessMissing


class Bundles:
    """Installed harnesses; one installation at a time."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache.expanduser()
        self._installing = asyncio.Lock()
        self._installed: dict[str, Path] = {}

    async def bundle(self, harness: Harness) -> Path:
        """Return the harness's folder, installing it at first use. Raises HarnessMissing: that of another machine may succeed."""
        async with self._installing:
            if harness.name not in self._installed:
                try:
                    self._installed[harness.name] = await harness.install(self._cache)
                except (HarnessMissing, OSError) as cause:
                    msg = f"harness {harness.name} cannot be installed: {cause.args[0] if isinstance(cause, HarnessMissing) else cause}"
                    raise HarnessMissing(msg) from cause
            return self._installed[harness.name]
