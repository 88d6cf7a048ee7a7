"""Where the time of a call goes: samples of the gateway's process by py-spy, counted for the part of the work that each was in."""

import asyncio
from asyncio.subprocess import DEVNULL
from collections import Counter
from pathlib import Path
from typing import Final

from proofs.bench.gateway_peers import PY_SPY, environment

PER_SECOND: Final = 250
IDLE: Final = ("_worker (", "Writer._waiting (")
"""Threads that wait for work."""
PARTS: Final = (
    ("the engine: request and its sending", ("EngineHttp._request", "VllmEngine._body")),
    ("the engine: its events", ("VllmEngine.generate", "EngineHttp.events")),
    ("placing: first prompts rendered whole", ("JinjaRenderer.render",)),
    ("placing: what is new, rendered", ("JinjaRenderer.bridge",)),
    ("placing: where it hangs", ("place (tokens",)),
    ("reading the request", ("OpenAIChat.parse", "body_digest", "RequestResponseCycle.receive", "read_request (")),
    ("the record: built and encoded", ("CallSampling._closed", "opened (", "EventLog.record", "SessionLog.apply", "SessionRuntime._index")),
    ("the record: committed", ("EmbeddedProducer.commit", "EmbeddedBus.", "Writer.", "KafkaProducer", "aiokafka")),
    ("the record: followed by its readers", ("Partition._follow", "read (bus/embedded_store.py")),
    ("the answer: read while it is sampled", ("AnswerStream._stream (",)),
    ("the answer: rendered and sent", ("CallResponse._send_frames",)),
)
"""Each part, and functions by which it is known: the first part counts that has one in the stack."""
LOOP: Final = "Runner.run ("
"""The innermost function while uvloop itself runs: it waits, reads sockets, calls back."""
SOCKETS: Final = "event loop and sockets"
OTHER: Final = "HTTP server, tasks"


async def profile(pid: int, folder: Path, *, seconds: int) -> dict[str, float]:
    """Return the share of each part in the time that the process was running. Raises Failed."""
    home = await environment("py-spy", PY_SPY)
    out = folder / "stacks.txt"
    options = ["record", "--duration", str(seconds), "--rate", str(PER_SECOND), "--format", "raw", "--output", str(out), "--pid", str(pid)]
    process = await asyncio.create_subprocess_exec(str(home / "bin" / "py-spy"), *options, stdout=DEVNULL, stderr=DEVNULL)
    await process.wait()
    return shares(out.read_text().splitlines())


def shares(lines: list[str]) -> dict[str, float]:
    """Return the share of each part among stacks with their counts."""
    found: Counter[str] = Counter()
    for line in lines:
        stack, _, samples = line.rpartition(" ")
        if not any(stack.rpartition(";")[2].startswith(name) for name in IDLE):
            found[_part(stack)] += int(samples)
    total = found.total() or 1
    return {part: samples / total for part, samples in found.most_common()}


def _part(stack: str) -> str:
    rest = SOCKETS if stack.rpartition(";")[2].startswith(LOOP) else OTHER
    return next((part for part, names in PARTS if any(name in stack for name in names)), rest)
