"""The harness port: how one agent program is installed and launched without a person, how its exit is judged, what is special."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from evener.proto.errors import EvenerError
from evener.proto.spec import Quirks


class HarnessError(EvenerError):
    """Correct the harness's name, its options, or what was given as its quirks."""


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


class Probe(Struct, frozen=True, kw_only=True):
    """How a policy has this harness write a file: what `evener harness check` lets its scripted engine say."""

    tool: str
    """Name of its shell tool, or of its tool that writes files."""
    arguments: Mapping[str, Any]
    """Of the call. In its texts `{command}` (a shell command that writes the file), `{path}` and `{content}` are replaced."""

    def filled(self, path: str, content: str) -> dict[str, Any]:
        """Return the arguments that write a file: its path relative to the working directory, content without quotes."""
        words = {"{command}": f"printf '%s' '{content}' > {path} && cat {path}", "{path}": path, "{content}": content}
        return {name: words.get(value, value) if isinstance(value, str) else value for name, value in self.arguments.items()}


class Harness(Protocol):
    """One folder of `evener.harnesses` each. Without state."""

    name: str
    summary: str
    """What it is, in a line."""
    version: str
    """Pinned; recorded with every session."""
    package: str | None
    """What `install` brings, pinned: `npm:@openai/codex@0.169.0`. None: it comes with Evener."""
    dialects: tuple[str, ...]
    """The dialects that it can speak, the default first: `openai_chat`, `openai_responses`, `anthropic_messages`, `google_generate`."""
    has_tools: bool
    """It runs commands, or writes outside its working directory: `local` wants the user's trust."""
    quirks: Quirks
    probe: Probe | None
    """None: nothing is known of its tools."""

    def check(self, options: Mapping[str, str]) -> None:
        """Raise HarnessError for an option that is unknown, missing or wrong."""
        ...

    def first_prompt_bytes(self, options: Mapping[str, str]) -> int:
        """Return about how long its first prompt is, instruction apart: so that a context which cannot hold it is told. 0: not known."""
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


def bundle_of(harness: Harness, cache: Path) -> Path:
    """Return where `install` puts the harness's bundle, if it has one. The folder is there once it is whole."""
    return cache / f"{harness.name}-{harness.version}"


def only_options(given: Mapping[str, str], known: tuple[str, ...], harness: str) -> None:
    """Raise HarnessError for an option that is not known."""
    if unknown := sorted(given.keys() - set(known)):
        msg = f"harness {harness} has no option {unknown[0]!r} (it has: {', '.join(known) or 'none'})"
        raise HarnessError(msg)


def numbers(given: Mapping[str, str], names: tuple[str, ...], harness: str) -> None:
    """Raise HarnessError for an option that is not a number of tokens."""
    for name in names:
        if not given.get(name, "1").isdecimal():
            msg = f"harness {harness}: option {name} is {given[name]!r}, not a number of tokens"
            raise HarnessError(msg)


def one_of(given: Mapping[str, str], name: str, values: tuple[str, ...], harness: str) -> str:
    """Return an option that has few values; the first is the default. Raises HarnessError."""
    value = given.get(name, values[0])
    if value not in values:
        msg = f"harness {harness}: option {name} is {value!r}, not one of {', '.join(values)}"
        raise HarnessError(msg)
    return value
