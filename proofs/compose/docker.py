"""Docker on this machine: the daemon that runs, or one that is started for this proof; and its commands."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from proofs.compose.errors import CannotCheck

START_SECONDS: Final = 60.0
STOP_SECONDS: Final = 60.0
POLL_SECONDS: Final = 0.5


def run(*words: str, environ: Mapping[str, str] | None = None, folder: Path | None = None, quiet: bool = True) -> str:
    """Run a command to its end; return what it printed. Raises CannotCheck with its last words if it fails."""
    done = subprocess.run(words, env={**os.environ, **(environ or {})}, cwd=folder, capture_output=quiet, text=True, check=False)
    if done.returncode:
        msg = f"{' '.join(words)} ended with {done.returncode}: {(done.stdout or '')[-2000:]}{(done.stderr or '')[-2000:]}"
        raise CannotCheck(msg)
    return done.stdout or ""


def compose_words() -> Sequence[str]:
    """Return how compose is called: as Docker's plugin, or as a program of its own."""
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0:
        return ("docker", "compose")
    if shutil.which("docker-compose"):
        return ("docker-compose",)
    msg = "neither docker compose nor docker-compose is there (Debian, Ubuntu: apt install docker-compose)"
    raise CannotCheck(msg)


@contextmanager
def daemon(cache: Path) -> Iterator[None]:
    """Use the daemon that runs. Where none does, run one for this block, whose images stay in `cache`. Raises CannotCheck."""
    if shutil.which("docker") is None:
        msg = "there is no docker (Debian, Ubuntu: apt install docker.io)"
        raise CannotCheck(msg)
    if _answers():
        yield
        return
    if shutil.which("dockerd") is None or os.geteuid() != 0:
        msg = "no Docker daemon answers, and this is not root with a dockerd to start"
        raise CannotCheck(msg)
    socket = cache / "docker.sock"
    words = ["dockerd", "--data-root", str(cache / "data"), "--exec-root", str(cache / "exec"), "--pidfile", str(cache / "pid")]
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "dockerd.log").open("wb") as log:
        process = subprocess.Popen([*words, "--host", f"unix://{socket}"], stdout=log, stderr=log, start_new_session=True)
    os.environ["DOCKER_HOST"] = f"unix://{socket}"
    try:
        deadline = time.monotonic() + START_SECONDS
        while not _answers():
            if process.poll() is not None or time.monotonic() > deadline:
                msg = f"dockerd did not start: {(cache / 'dockerd.log').read_text()[-2000:]}"
                raise CannotCheck(msg)
            time.sleep(POLL_SECONDS)
        yield
    finally:
        process.terminate()
        process.wait(STOP_SECONDS)


def _answers() -> bool:
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0
