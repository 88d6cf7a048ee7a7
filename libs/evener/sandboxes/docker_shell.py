"""The shell in a container that waits for a program and becomes it.

It is there before its program is known, so that starting the program is neither a request to the daemon nor a new process. It reads the
program from its stdin. Of the shell nothing is left beside the program that an agent could talk to: no process, and no
descriptor but the output.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from evener.sandboxes.docker_api import Attached, Docker, DockerError
from evener.sandboxes.output_log import BoundedLog

STDOUT: Final = 1
WAITS_MARK: Final = b"."
BEGINS_MARK: Final = b"b"
ABSENT_MARK: Final = b"m"
WAITING_SCRIPT: Final = f"printf {WAITS_MARK.decode()}\n".encode()
"""The shell reads commands from its stdin, by itself: no other program of the image has a part in it."""
BECOMING: Final = f"""\
if found=$(command -v {{name}}) && case $found in */*) [ -f "$found" ] && [ -x "$found" ];; esac; then
    printf {BEGINS_MARK.decode()}
    exec {{words}} < /dev/null
fi
printf {ABSENT_MARK.decode()}
"""
"""`command -v` prints names without a slash for what is built into the shell."""
VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""The names that a shell can export. `env` sets others."""
SAID_BYTES: Final = 1 << 12


class NotBegun(DockerError):
    """Look at the Docker daemon's log: a shell of a container ended before it became its program."""


class WaitingShell:
    """A shell that waits, or the program that it has become."""

    def __init__(self, exec_id: str, user: str, attached: Attached) -> None:
        self.exec_id = exec_id
        self.user = user
        self._attached = attached
        self._pieces = attached.output()
        self._printed = BoundedLog(SAID_BYTES)
        self._rest = b""
        self.is_ready = False
        """Whether it has begun to wait. It may have ended since."""

    @property
    def waits(self) -> bool:
        """Whether it began to wait, and still does."""
        return self.is_ready and not self._attached.has_ended

    async def ready(self) -> None:
        """Wait until it waits. Raises NotBegun, DockerError."""
        if not self.is_ready:
            await self._told(WAITS_MARK)
            self.is_ready = True

    async def become(self, argv: Sequence[str], environment: Mapping[str, str], printed: BoundedLog) -> bool:
        """Have it become a program that prints to a log; return whether there is one of that name. Raises NotBegun, DockerError."""
        self._printed = printed  # before anything is read: what it complains of may arrive before its marks, which are on stdout
        await self._attached.send_all(_script(argv, environment))
        await self.ready()
        return await self._told(BEGINS_MARK, ABSENT_MARK) == BEGINS_MARK

    async def read(self) -> None:
        """Read what it prints, to its end. Raises DockerError."""
        try:
            self._printed.add(self._rest)
            async for _, piece in self._pieces:
                self._printed.add(piece)
        finally:
            self.close()

    def close(self) -> None:
        """Part from it. A shell that still waits ends."""
        self._attached.close()

    async def _told(self, *marks: bytes) -> bytes:
        """Return the mark that comes next on stdout. What the program has complained of meanwhile is printed."""
        if not self._rest:
            async for stream, piece in self._pieces:
                if stream == STDOUT:
                    self._rest = piece
                    break
                self._printed.add(piece)
        if self._rest[:1] not in marks:
            await self.read()
            raise NotBegun(self._printed.read().decode(errors="replace").strip() or "it ended without a word")
        mark, self._rest = self._rest[:1], self._rest[1:]
        return mark


async def open_shell(docker: Docker, container: str, user: str, workdir: str) -> WaitingShell:
    """Start a shell in a running container. Raises DockerError."""
    wanted = {
        "Cmd": ["sh"],
        "User": user,
        "WorkingDir": workdir,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
    }
    exec_id: str = (await docker.post(f"/containers/{container}/exec", wanted))["Id"]
    attached = await docker.attach(f"/exec/{exec_id}/start", {"Detach": False, "Tty": False})
    attached.send(WAITING_SCRIPT)
    return WaitingShell(exec_id, user, attached)


def _script(argv: Sequence[str], environment: Mapping[str, str]) -> bytes:
    odd = [f"{name}={value}" for name, value in environment.items() if not VARIABLE.fullmatch(name)]
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in environment.items() if VARIABLE.fullmatch(name))
    words = shlex.join((*(("env", *odd) if odd else ()), *argv))
    return (exports + BECOMING.format(name=shlex.quote(argv[0]), words=words)).encode(errors="surrogateescape")
