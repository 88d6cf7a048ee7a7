"""Connects a command to the running Evener, or starts one for the duration of the command."""

import asyncio
import os
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final, NoReturn

import aiohttp
import msgspec
from msgspec import Struct

from evener.client.client import Client
from evener.client.errors import Unavailable, Unreachable
from evener.proto.errors import ConfigError, EvenerError
from evener.runtime.disk import is_full
from evener.runtime.interrupt import ended_by
from evener.runtime.tls import client_context
from evener.service.config import default_state, secret_of
from evener.service.exits import complain
from evener.service.state_folder import STATE_FILE, TOKEN_FILE, RunningUp

SERVICES_START_SECONDS: Final = 180.0
SERVICES_STOP_SECONDS: Final = 40.0
FULL_STOP_SECONDS: Final = 2.0
"""The limit of a stop when the disk is full: then nothing can be handed back, and nothing acknowledged is lost."""
READY_ANSWER_SECONDS: Final = 2.0
READY_POLL_SECONDS: Final = 0.1
EXIT_POLL_SECONDS: Final = 1.0
LOG_FILE: Final = "up.log"
CA_FILE: Final = "EVENER_TLS_CA_FILE"
"""The variable of the key `tls_ca_file`, by which commands too know whom to trust."""
TOKEN: Final = "EVENER_TOKEN"
"""The variable of the token with which commands ask. Without it they use the operator's."""
COMPLAINT: Final = "evener: "
FULL_SECONDS: Final = 10.0
"""How long the disk may be full under services that a command started."""
OTHERS_FULL_SECONDS: Final = 30.0
"""How long the disk may be full under services that were running before: somebody may make room."""
ENDED_SECONDS: Final = 2.0
"""How long after its connections break the end of a child may be noticed."""


class Readiness(Struct, frozen=True, kw_only=True):
    """The answer of /readyz: for each service, each condition and whether it holds."""

    services: dict[str, dict[str, bool]]


_readiness: Final = msgspec.json.Decoder(Readiness)
_told_of_up: Final = msgspec.json.Decoder(RunningUp)


class NotStarted(EvenerError):
    """`evener up` could not be started for this command. Its log is up.log in the state folder; `evener doctor` says what is missing."""


class DiskFull(EvenerError):
    """Make room and run the command again, with its run id if it has one: what was acknowledged is kept."""


class UpEnded(EvenerError):
    """The `evener up` that this command started has ended. Mend what it reported and run the command again: finished work is kept."""


@asynccontextmanager
async def connect(state: Path | None, up: Callable[[], Sequence[str]] = tuple, *, sampling: bool = False) -> AsyncIterator[Client]:
    """Yield a client of the Evener at EVENER_URL, or of the one running on this state folder, or of one started for this block.

    EVENER_URL may name several schedulers that stand by for each other, separated by commas. `up` is called for the options of a started
    Evener. `sampling`: the command needs an engine, so a warning on stderr says what a running Evener lacks.
    """
    folder = state_folder(state)
    if url := os.environ.get("EVENER_URL"):
        _check_url(url)
        async with Client(url, _token(folder), ca_file=_ca_file()) as client:
            yield client
    elif found := await find_running(folder):
        if sampling and (lacking := await _lacks(found.url)):
            complain(f"warning: waiting for the evener at {found.url}, which is not ready: {lacking}")
        async with (
            Client(found.url, _token(folder), ca_file=_ca_file()) as client,
            ended_by(_until_full(folder, OTHERS_FULL_SECONDS)),
        ):
            yield client
    else:
        async with connect_new(folder, up()) as client:
            yield client


@asynccontextmanager
async def connect_new(folder: Path, up: Sequence[str]) -> AsyncIterator[Client]:
    """Yield a client of an Evener that is started for this block, whatever else runs. `up` are its options."""
    async with _started(folder, up) as url, Client(url, _token(folder), ca_file=_ca_file()) as client:
        yield client


def state_folder(state: Path | None) -> Path:
    """Return the absolute path of the state folder, the default one if none is given."""
    return Path(state or default_state()).expanduser().absolute()


async def find_running(folder: Path) -> RunningUp | None:
    """Return the Evener that runs on this state folder and answers. None: there is none."""
    told = _told(folder)
    return told if told is not None and await _answers(f"{told.url}/healthz") else None


def _told(folder: Path) -> RunningUp | None:
    try:
        return _told_of_up.decode((folder / STATE_FILE).read_bytes())
    except (OSError, msgspec.DecodeError):
        return None


def _ca_file() -> str | None:
    return os.environ.get(CA_FILE)


def _token(folder: Path) -> str:
    given = secret_of(os.environ.get(TOKEN) or os.environ.get("EVENER_OPERATOR_TOKEN") or None)
    if given is not None:
        return given
    try:
        return (folder / TOKEN_FILE).read_text().strip()
    except OSError as cause:
        msg = f"no token: neither {TOKEN} nor EVENER_OPERATOR_TOKEN is set, and {folder / TOKEN_FILE} cannot be read"
        raise ConfigError(msg) from cause


async def _get(url: str) -> tuple[bool, bytes]:
    """Return whether a URL answers with success, and the answer."""
    try:
        timeout, tls = aiohttp.ClientTimeout(total=READY_ANSWER_SECONDS), aiohttp.TCPConnector(ssl=client_context(_ca_file()))
        async with aiohttp.ClientSession(timeout=timeout, connector=tls) as session, session.get(url) as answer:
            return answer.ok, await answer.read()
    except (aiohttp.ClientError, TimeoutError, ValueError):
        return False, b""


async def _answers(url: str) -> bool:
    return (await _get(url))[0]


async def _lacks(url: str) -> str:
    """Return the conditions of readiness that do not hold. Empty: all hold, or nothing answers."""
    _, answer = await _get(f"{url}/readyz")
    try:
        services = _readiness.decode(answer).services
    except msgspec.DecodeError:
        return ""
    return "; ".join(f"{service}: {name}" for service, held in services.items() for name, holds in held.items() if not holds)


def _check_url(url: str) -> None:
    if not all(each.strip().startswith(("http://", "https://")) for each in url.split(",")):
        msg = f"EVENER_URL is {url!r}, not the base URL of an Evener, such as http://127.0.0.1:8700, or several, separated by commas"
        raise ConfigError(msg)


@asynccontextmanager
async def _started(folder: Path, up: Sequence[str]) -> AsyncIterator[str]:
    """Run `evener up` as a child inside this block; yield its URL once it is ready."""
    # Killed when this process is; in a session of its own, because Ctrl-C is for this command, which then stops the child.
    words = ("-m", "evener.sandboxes.launch", str(os.getpid()), sys.executable, "-m", "evener.cli", "up")
    options = ("--state", str(folder), "--port", "0", *up)
    with _log_of(folder) as log:
        start = log.tell()
        child = await asyncio.create_subprocess_exec(
            sys.executable, *words, *options, stdin=DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    try:
        url = await _ready(child, folder, start)
        async with ended_by(_until_ended(child, folder, start)), ended_by(_until_full(folder, FULL_SECONDS)):
            try:
                yield url
            except (Unreachable, Unavailable):  # its connections break before its end is noticed
                with suppress(TimeoutError):
                    await asyncio.wait_for(_until_ended(child, folder, start), ENDED_SECONDS)
                raise
    finally:
        await _stop(child, FULL_STOP_SECONDS if is_full(folder) else SERVICES_STOP_SECONDS)


async def _until_ended(child: Process, folder: Path, log_start: int) -> NoReturn:
    """Wait until the child ends. Raises UpEnded."""
    code = await child.wait()
    msg = f"the evener that this command started has ended: {_why(folder, log_start, code)}"
    raise UpEnded(msg)


async def _until_full(folder: Path, seconds: float) -> NoReturn:
    """Wait until the disk under the services has been full for this long: they wait silently. Raises DiskFull."""
    full_since: float | None = None
    while full_since is None or time.monotonic() - full_since < seconds:
        await asyncio.sleep(EXIT_POLL_SECONDS)
        full_since = None if not await asyncio.to_thread(is_full, folder) else full_since or time.monotonic()
    msg = f"the disk of {folder} is full"
    raise DiskFull(msg)


def _log_of(folder: Path) -> BinaryIO:
    folder.mkdir(parents=True, exist_ok=True)
    return (folder / LOG_FILE).open("ab")


async def _ready(child: Process, folder: Path, log_start: int) -> str:
    """Wait until the child is ready; return its URL. Raises NotStarted with the last line that the child wrote."""
    for number in range(int(SERVICES_START_SECONDS / READY_POLL_SECONDS)):
        if child.returncode is not None:
            raise NotStarted(_why(folder, log_start, child.returncode))
        told = _told(folder)
        if told is not None and told.pid == child.pid and await _answers(f"{told.url}/readyz"):
            return told.url
        if number * READY_POLL_SECONDS > FULL_SECONDS and is_full(folder):
            msg = f"not ready, and the disk of {folder} is full"
            raise NotStarted(msg)
        await asyncio.sleep(READY_POLL_SECONDS)
    msg = f"not ready after {SERVICES_START_SECONDS:.0f} s; its GET /readyz says what is missing, and up.log why"
    raise NotStarted(msg)


def _why(folder: Path, log_start: int, code: int) -> str:
    """Return why a child ended: its last line of output, or that the disk is full."""
    said = _last_line(folder / LOG_FILE, log_start)
    full = f"the disk of {folder} is full"
    if is_full(folder) and full not in said:
        return full + (f" ({said})" if said else "")
    return said or f"exit status {code}"


async def _stop(child: Process, seconds: float) -> None:
    """Let the child drain, at most for this long. Survives a cancellation."""
    if child.returncode is not None:
        return
    child.terminate()
    try:
        await asyncio.wait_for(asyncio.shield(child.wait()), seconds)
    except TimeoutError:
        child.kill()
        await child.wait()


def _last_line(log: Path, start: int) -> str:
    """Return the last whole message that a child wrote, otherwise its last whole line: a full disk cuts lines."""
    with log.open("rb") as file:
        file.seek(start)
        written = file.read().decode(errors="replace")
    lines = [line.strip() for line in written.splitlines(keepends=True) if line.endswith("\n") and line.strip()]
    told = [line for line in lines if line.startswith(COMPLAINT)]
    return (told or lines or [""])[-1].removeprefix(COMPLAINT)
