"""The harnesses that this runner has installed."""

import asyncio
from pathlib import Path

from evener.harnesses.port import Harness, HarnessMissing
from evener.sandbox_runner.core import NoStart


class Bundles:
    """Installed harnesses; one installation at a time."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache.expanduser()
        self._installing = asyncio.Lock()
        self._installed: dict[str, Path] = {}

    async def bundle(self, harness: Harness) -> Path:
        """Return the harness's folder, installing it at first use. Raises NoStart with the reason."""
        async with self._installing:
            if harness.name not in self._installed:
                try:
                    self._installed[harness.name] = await harness.install(self._cache)
                except (HarnessMissing, OSError) as cause:
                    msg = f"harness {harness.name} cannot be installed: {cause}"
                    raise NoStart(msg) from cause
            return self._installed[harness.name]
