"""llama.cpp's server, which ends when its parent ends: `python -m evener.engines.llama_server --model FILE ...`.

It imports nothing of Evener, whose libraries would take 0.3 s of CPU at each start.
"""

import argparse
import ctypes
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Final

READY: Final = "READY "
"""What it prints before its URL once it serves."""
PROMPT_CACHE_MIB: Final = 512
"""Memory for prompts whose slot was given to another. llama.cpp's own default is 8 GiB."""
WARNINGS: Final = 2
"""llama.cpp's verbosity: warnings and errors."""
PR_SET_PDEATHSIG: Final = 1


def main() -> None:
    """Serve until terminated."""
    parser = argparse.ArgumentParser(prog="python -m evener.engines.llama_server")
    parser.add_argument("--model", required=True)
    parser.add_argument("--host", required=True)
    for name in ("port", "context", "parallel", "threads", "parent"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    _die_with(options.parent)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # llama.cpp's threads need no farewell
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group: the parent stops this child
    import xllamacpp  # noqa: PLC0415 (only the child needs it)

    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.hostnames = [options.host]
    params.port = options.port
    params.n_ctx = options.context
    params.n_parallel = options.parallel
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.cache_ram_mib = PROMPT_CACHE_MIB
    params.verbosity = WARNINGS
    params.use_jinja = True
    params.ui = False
    params.model_alias = {Path(options.model).stem}
    try:
        server = xllamacpp.Server(params)
    except Exception as error:  # noqa: BLE001 (whatever llama.cpp raises, the parent shows this line)
        sys.exit(f"llama.cpp: {error}")
    print(f"{READY}{server.listening_address}", flush=True)  # noqa: T201 (the parent reads it)
    threading.Event().wait()


def _die_with(parent: int) -> None:
    """Be killed when the parent dies, also if that has happened already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the parent is gone")


if __name__ == "__main__":
    main()
