"""Attempts to live longer than one's program, and to be more than a runner can take."""

import asyncio
import os
import secrets
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from proofs.escape.attempt import ESCAPED
from proofs.escape.backends import DOCKER, KILLS_NOTHING, open_backend, open_docker_backend
from proofs.escape.trial import Place, Trial

from evener.proto.sandbox import SandboxSpec
from evener.sandboxes.port import Program

LIVES: Final = """
import time
def live(marker):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.close(1); os.close(2)
            os.execve(sys.executable, ["python3", "-c", "import time; time.sleep(60)", marker], ENVIRONMENT)
        os._exit(0)
    time.sleep(1)
"""
LOG_BYTES: Final = 1 << 16


async def _survives(code: str, place: Place) -> str:
    """Run a program that leaves a process behind; look for that process from outside."""
    marker = f"evener-survivor-{secrets.token_hex(6)}"
    program = Program(argv=("python3", "-c", place.world.program(code.replace("MARKER", repr(marker)))))
    try:
        if place.defended:
            async with open_backend(place.world, place.kind) as sandboxes, sandboxes.open("attempt") as sandbox:
                return await _found(marker, await (await sandbox.start(program)).wait())
        if place.kind == DOCKER:
            async with open_docker_backend(place.world, KILLS_NOTHING) as loosened, loosened.open("attempt") as sandbox:
                return await _found(marker, await (await sandbox.start(program)).wait())
        plain = await asyncio.create_subprocess_exec(
            sys.executable, *program.argv[1:], cwd=place.world.folder, env={"TMPDIR": str(place.world.folder)}
        )
        return await _found(marker, await plain.wait())
    finally:
        for pid in await asyncio.to_thread(_marked, marker):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def _found(marker: str, code: int) -> str:
    return ESCAPED if await asyncio.to_thread(_marked, marker) else f"nothing is left of it (exit code {code})"


def _marked(marker: str) -> list[int]:
    """Return the living processes of this machine, those in sandboxes too, that have a marker among their arguments."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if marker.encode() in words:
                found.append(int(path.parent.name))
    return found


async def _endless(place: Place) -> str:
    """Print without an end; see how much of it the runner holds."""
    kept = LOG_BYTES if place.defended else 1 << 40
    program = Program(argv=("python3", "-c", "while True: print('x' * 65536)"), log_bytes=kept)
    async with open_backend(place.world, place.kind) as sandboxes, sandboxes.open("attempt") as sandbox:
        process = await sandbox.start(program)
        with suppress(TimeoutError):
            async with asyncio.timeout(4):
                await process.wait()
        await process.end(grace_seconds=0)
        return ESCAPED if len(process.log()) > 2 * LOG_BYTES else f"{len(process.log())} bytes are kept"


async def _writes_system(place: Place) -> str:
    """Write as root, without capabilities, where root's programs are."""
    program = Program(argv=("python3", "-c", "open('/usr/bin/evener-trial', 'w').write('x')"), user="0:0")
    spec = SandboxSpec(read_only_root=place.defended)
    async with open_backend(place.world, place.kind) as sandboxes, sandboxes.open("attempt", spec) as sandbox:
        process = await sandbox.start(program)
        code = await process.wait()
        return ESCAPED if code == 0 else process.log().decode(errors="replace")


def survives(name: str, code: str, environment: str = "os.environ") -> Trial:
    """Return the attempt to leave a process behind."""
    return Trial(name=name, tried=partial(_survives, LIVES.replace("ENVIRONMENT", environment) + code))


PROCESS_TRIALS: Final = (
    survives("a process that survives", "live(MARKER)"),
    survives("a process that survives, with an empty environment and a session of its own", "live(MARKER)", "{}"),
    survives(
        "a process that survives every signal it can",
        "import signal\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n    except OSError: pass\nlive(MARKER)",
    ),
    survives("a process that survives its program's death by a signal", "live(MARKER)\nos.kill(os.getpid(), 9)", "{}"),
    Trial(name="endless output", tried=_endless),
    Trial(name="changing the system's programs as root", tried=_writes_system, kinds=(DOCKER,)),
)
