"""An embedded engine as a program."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

from evener.cli.output import tell
from evener.engines.embedded import start_embedded


async def serve_embedded(model: Path | None, **options: Any) -> None:
    """Serve until SIGTERM or SIGINT; `options` are those of `start_embedded`. Raises EmbeddedDied, and what `start_embedded` raises."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    engine = await start_embedded(model, **options)
    stopping, dying = asyncio.create_task(stop.wait()), asyncio.create_task(engine.died())
    try:
        if sys.stdout.isatty():
            print(f"{engine.url} serves {model or 'SmolLM2-135M-Instruct'}; Ctrl-C ends it.", flush=True)
        else:
            tell({"url": engine.url})
        await asyncio.wait({stopping, dying}, return_when=asyncio.FIRST_COMPLETED)
        if not stop.is_set():
            raise dying.result()
    finally:
        await engine.stop()
        for task in (stopping, dying):
            task.cancel()
        await asyncio.gather(stopping, dying, return_exceptions=True)
