"""`python -m evener.engines.scripted --script FILE --port N`: a scripted engine until it is stopped."""

import argparse
import asyncio
import signal
import sys
from pathlib import Path

from evener.engines.embedded import default_weights
from evener.engines.scripted.app import CONTEXT, END_OF_TURN, MODEL
from evener.engines.scripted.script import Script, read_script
from evener.engines.scripted.server import scripted_engine
from evener.proto.errors import EvenerError
from evener.templates.folder import load as load_folder
from evener.templates.gguf import load_tokenizer


def main() -> None:
    """Parse the command line, and serve."""
    parser = argparse.ArgumentParser(prog="python -m evener.engines.scripted", description="An engine that says what a script says.")
    parser.add_argument("--script", type=Path, help="JSON file; without it the engine samples from its own distribution")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tokenizer", type=Path, help="a GGUF file or a folder with tokenizer.json; the embedded model's without it")
    parser.add_argument("--ledger", type=Path, help="file to append to, one JSON line a request")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--context", type=int, default=CONTEXT)
    parser.add_argument("--end-of-turn", default=END_OF_TURN)
    try:
        asyncio.run(_serve(parser.parse_args()))
    except (EvenerError, OSError) as error:
        sys.exit(f"error: {error}")


async def _serve(options: argparse.Namespace) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    script = read_script(options.script) if options.script else Script()
    path = options.tokenizer or default_weights()
    tokenizer = load_folder(path).tokenizer if path.is_dir() else load_tokenizer(path)
    async with scripted_engine(
        script,
        tokenizer,
        ledger=options.ledger,
        port=options.port,
        model=options.model,
        context=options.context,
        end_of_turn=options.end_of_turn,
    ) as server:
        print(server.url, flush=True)  # noqa: T201 (a program's output)
        await stop.wait()


if __name__ == "__main__":
    main()
