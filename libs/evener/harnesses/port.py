"""The harness port: how one agent program is installed and launched without a person, how its exit is judged, what is special."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from evener.proto.errors import EvenerError
from evener.proto.spec import Quirks


class HarnessError(EvenerError):
    """Correct the harness's name or its options."""


class HarnessMissing(EvenerError):
    """Install what is named, or run `evener doctor` to see what this machine lacks."""


class Context(Struct, frozen=True, kw_only=True):
    """What a launch is made of. Paths are as programs in the sandbox find them."""

    instruction: str
    """What the agent is told."""
    base_url: str
    """Of the relay, without `/v1`."""
    key: str
    """The nonce of this start."""
    model: str
    """The name that the harness asks for."""
    answer_tokens: int | None = None
    """Tokens an answer has at most, by the run's sampling parameters. None: the run sets no limit."""
    workdir: str
    home: str
    options: Mapping[str, str] = {}
    """From HarnessSpec."""


class Launch(Struct, frozen=True, kw_only=True):
    """A program to start. Its stdin is closed."""

    argv: tuple[str, ...]
    environment: Mapping[str, str] = {}
    files: Mapping[str, bytes] = {}
    """Files to write first, by place (`/home/agent/...`)."""


class Judged(Struct, frozen=True, kw_only=True):
    """What an exit really means."""

    exit_code: int
    """0: it finished. Where the program's own code lies, the adapter corrects it."""
    detail: str = ""


class Harness(Protocol):
    """One folder of `evener.harnesses` each. Without state."""

    name: str
    version: str
    """Pinned; recorded with every session."""
    has_tools: bool
    """It runs commands, or writes outside its working directory: `local` wants the user's trust."""
    quirks: Quirks

    def check(self, options: Mapping[str, str]) -> None:
        """Raise HarnessError for an option that is unknown, missing or wrong."""
        ...

    async def install(self, cache: Path) -> Path:
        """Return the folder of its read-only bundle, made below `cache` at first use. Raises HarnessMissing."""
        ...

    def launch(self, context: Context, bundle: Path) -> Launch:
        """Return what to start."""
        ...

    def judge(self, exit_code: int, log: bytes) -> Judged:
        """Return what the exit means. `log` is the program's output, possibly cut in the middle."""
        ...


def only_options(given: Mapping[str, str], known: tuple[str, ...], harness: str) -> None:
    """Raise HarnessError for an option that is not known."""
    if unknown := sorted(given.keys() - set(known)):
        msg = f"harness {harness} has no option {unknown[0]!r} (it has: {', '.join(known) or 'none'})"
        raise HarnessError(msg)
