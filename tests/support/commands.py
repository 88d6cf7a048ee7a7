"""Commands at a running Evener."""

import asyncio
import os
import sys
from asyncio.subprocess import PIPE


async def evener(url: str, token: str, *words: str) -> tuple[int | None, str, str]:
    """Run a command at a running Evener; return its exit code, and what it wrote."""
    environ = {**os.environ, "EVENER_URL": url, "EVENER_OPERATOR_TOKEN": token}
    running = await asyncio.create_subprocess_exec(sys.executable, "-m", "evener.cli", *words, stdout=PIPE, stderr=PIPE, env=environ)
    out, errors = await running.communicate()
    return running.returncode, out.decode(), errors.decode()
