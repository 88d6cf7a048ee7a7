"""A scripted engine as a program."""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

from evener.cli.output import tell
from evener.engines.scripted import Script, scripted_engine
from evener.engines.scripted.script import read_script
from evener.templates.config import PolicyConfig
from evener.templates.jinja import ChatTemplate
from evener.templates.open import read


async def serve(script: Path | None, policy: PolicyConfig, **options: Any) -> None:
    """Serve until SIGTERM or SIGINT; `options` are those of `scripted_engine`. Raises ScriptError, TemplateError, OSError."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    says = Script() if script is None else read_script(script)
    material = read(policy)
    template = ChatTemplate(material.template, material.source.constants)
    async with scripted_engine(says, material.source.tokenizer, template=template, model=policy.name, **options) as server:
        if sys.stdout.isatty():
            print(f"{server.url} serves {policy.name}; Ctrl-C ends it.", flush=True)
        else:
            tell({"url": server.url, "model": policy.name})
        await stop.wait()
